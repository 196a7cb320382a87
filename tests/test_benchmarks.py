"""Every benchmark imports what the package has: none of them runs in the tests."""

import importlib
from pathlib import Path

import pytest
import torch

from benchmarks import gpu, harness

NAMES = sorted(path.stem for path in (Path(__file__).parents[1] / "benchmarks").glob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_can_be_imported(name: str) -> None:
    importlib.import_module(f"benchmarks.{name}")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_benchmark_of_gpus_says_where_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["--quick", "--only", "products gat"]) == 2
    assert capsys.readouterr() == ("", f"this measures a GPU, and torch {torch.__version__} can use none here\n")


def test_the_benchmark_of_gpus_takes_cases_by_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    def cases(word: str | None) -> list[str]:
        bench = harness.Bench("gpu", harness.parse(argv=[] if word is None else ["--only", word]))
        kinds = ("epochs gcn", "epochs gat", "spmm", "pack")
        return [f"{graph} {kind}" for graph in gpu.GRAPHS for kind in kinds if gpu.wanted(bench, graph, kind)]

    assert len(cases(None)) == 8
    assert cases("products") == [f"products {kind}" for kind in ("epochs gcn", "epochs gat", "spmm", "pack")]
    assert cases("spmm") == ["arxiv spmm", "products spmm"] and cases("arxiv epochs gat") == ["arxiv epochs gat"]
    with pytest.raises(SystemExit):
        harness.parse(argv=["--onyl", "spmm"])
    assert "unrecognized arguments: --onyl" in capsys.readouterr().err
