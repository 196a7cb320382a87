"""weft.Run, weft.ingest, what weft.train takes, and what Python is told when workers fail."""

from pathlib import Path

import pytest
import torch

import weft
from weft.errors import UserError

TINY = "synthetic:tiny"


def test_a_run_is_opened_by_its_path_and_says_in_one_line_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "run"
    made = weft.train(TINY, run=path, quiet=True, train={"epochs": 2})
    run = weft.Run(str(path))
    assert run == made and run.path == path
    said = f"Run({str(path)!r}: gcn on {TINY}, 1 worker, 2 epochs, test accuracy {run.summary['test_accuracy']:.4f})"
    assert repr(run) == said
    assert repr(run.outputs()) == "Outputs(300 vertices, 4 columns)"
    (path / "summary.json").unlink()
    assert repr(run).endswith("1 worker, not finished, 2 of 2 epochs)")
    assert repr(weft.Run("nowhere")) == "Run('nowhere': no run lies there)"
    (path / "config.yaml").write_text("[")
    assert "config.yaml" in repr(run) and "\n" not in repr(run)


def test_data_of_pyg_is_trained_on_as_it_is(tmp_path: Path) -> None:
    pyg = pytest.importorskip("torch_geometric.data")
    graph = weft.load(TINY)
    dst = torch.arange(300).repeat_interleave(graph.adjacency.degrees())
    data = pyg.Data(x=graph.x, edge_index=torch.stack([graph.adjacency.indices.long(), dst]), y=graph.y)
    for name, mask in graph.masks.items():
        data[f"{name}_mask"] = mask
    settings = {"quiet": True, "train": {"epochs": 2}}
    found = weft.train(data, run=tmp_path / "a", **settings)
    assert (
        found.summary["weights_sha256"] == weft.train(graph, run=tmp_path / "b", **settings).summary["weights_sha256"]
    )


def test_ingest_reads_and_writes(tmp_path: Path) -> None:
    edges = tmp_path / "edges.csv"
    edges.write_text("from,to\nann,bob\nbob,eve\n")
    out = tmp_path / "graph"
    graph = weft.ingest(edges, out=out, undirected=True)
    assert weft.load(out).fingerprint == graph.fingerprint and graph.num_edges == 4
    with pytest.raises(UserError, match="exists already"):
        weft.ingest(edges, out=out)
    assert weft.ingest(edges, out=out, overwrite=True).num_edges == weft.load(out).num_edges == 2


def failing(num_in: int, num_out: int, config: object) -> torch.nn.Module:
    """A model whose second worker fails when it is built."""
    import os

    if os.environ.get("RANK") == "1":
        raise KeyError("moon")
    return torch.nn.Linear(num_in, num_out)


def test_what_fails_in_a_worker_is_raised_with_its_sentence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    settings = {"workers": 2, "threads": 1, "quiet": True, "train": {"epochs": 2}}
    with pytest.raises(weft.RunFailed, match=r"^worker 1 failed during loading: KeyError: 'moon'; all other") as failed:
        weft.train(TINY, model=failing, run=tmp_path / "a", **settings)
    assert (failed.value.code, failed.value.kind) == (1, "error")
    assert 'raise KeyError("moon")' in "".join(failed.value.__notes__)
    with pytest.raises(UserError, match=r"^rgcn learns .*--relation-column|relation"):
        weft.train(TINY, model="rgcn", run=tmp_path / "b", **settings)
    assert "error:" not in capfd.readouterr().err, "Python's caller prints what it is told, if it wants to"
    assert not (tmp_path / "a").exists() or not (tmp_path / "a" / "config.yaml").exists()
