"""Every benchmark imports what the package has: none of them runs in the tests."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import accuracy, gpu, harness

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


def test_accuracy_goes_on_after_the_seeds_that_are_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped at its third seed, the same command does that one and the rest; another recipe takes nothing of it."""
    monkeypatch.setenv("WEFT_DATA", str(tmp_path))
    monkeypatch.setattr(accuracy, "GOALS", (accuracy.Goal("cora-gcn", 80.0, "81.5", workers=(1,)),))
    done: list[int] = []
    stop = 2

    def run_once(recipe: dict[str, Any], workers: int, seed: int, split: int, folder: Path) -> float:
        if len(done) == stop:
            raise KeyboardInterrupt
        done.append(seed)
        return 80.0 + seed

    monkeypatch.setattr(accuracy, "run_once", run_once)
    monkeypatch.setattr("sys.argv", ["accuracy", "--json", str(tmp_path / "found" / "a.json")])
    with pytest.raises(KeyboardInterrupt):
        accuracy.main()
    kept = (tmp_path / "found" / "a.json.partial").read_text()
    stop = 99
    assert accuracy.main() == 0 and done == [0, 1, 2, 3, 4]
    assert [path.name for path in (tmp_path / "found").iterdir()] == ["a.json"]
    assert json.loads((tmp_path / "found" / "a.json").read_text())["rows"][0]["values"] == [80, 81, 82, 83, 84]
    (tmp_path / "found" / "a.json.partial").write_text(kept.replace('"layers": 2', '"layers": 3'))
    assert '"layers": 2' in kept and accuracy.main() == 0 and done[5:] == [0, 1, 2, 3, 4]
