"""Which checkpoint workers go on from: one for all, whole on each of them, of this graph and of these settings."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from tests.workers import WorkerFailed, run_workers
from weft.comm import Communicator
from weft.config import make_config
from weft.errors import UserError
from weft.graph.store import save_graph
from weft.launch.worker import refuse_different
from weft.partitioning import load_shard
from weft.run import Run, start
from weft.training.generation import generations
from weft.training.identity import describe_graph
from weft.training.resume import choose

SETTINGS: dict[str, Any] = {
    "data": "synthetic:tiny", "model": {"name": "gcn", "hidden": 4}, "seed": 3, "threads": 1, "partition": {"parts": 3},
    "train": {"epochs": 4, "checkpoint_every": 2, "trace_epochs": 0},
}  # fmt: skip


def train(run: Path, resume: bool = False, **more: Any) -> dict[str, Any]:
    config = make_config({**SETTINGS, **more, "run": str(run)})
    return dict(start(config, resume=resume, quiet=True).summary)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints of epochs 2 and 4, written by one worker."""
    run = tmp_path_factory.mktemp("finished") / "run"
    train(run)
    return run


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def chosen(comm: Communicator, folders: list[Path], parts: Path, graph: dict[str, Any]) -> tuple[str, str] | None:
    """What a worker goes on from; `folders`: the checkpoints as each worker sees them."""
    ids = load_shard(parts, comm.worker, comm.num_workers).global_ids
    found = choose(folders[comm.worker], comm, ids, {"graph": graph})
    return None if found is None else (found[0].path.name, found[1].digest)


def choose_from(run: Path, views: list[Path]) -> list[tuple[str, str]]:
    graph = json.loads((run / "checkpoints" / "epoch-000004" / "manifest.json").read_text())["run"]["graph"]
    return run_workers(chosen, 3, views, run / "parts", graph, fresh=True)


def test_a_worker_that_cannot_read_takes_all_others_along(run: Path, tmp_path: Path) -> None:
    """One sees another file system: there the newest checkpoint is cut short."""
    views = [run / "checkpoints"] * 2 + [tmp_path / "elsewhere"]
    shutil.copytree(run / "checkpoints", views[2])
    file = views[2] / "epoch-000004" / "state.safetensors"
    file.write_bytes(file.read_bytes()[:-7])
    found = choose_from(run, views)
    assert len(set(found)) == 1 and found[0][0] == "epoch-000002"


def test_weights_of_another_run_at_the_same_path_are_noticed(run: Path, tmp_path: Path) -> None:
    """Whole and with a manifest that verifies, but not what worker 0 has."""
    train(tmp_path / "other", seed=4)
    views = [run / "checkpoints", tmp_path / "other" / "checkpoints", run / "checkpoints"]
    with pytest.raises(WorkerFailed) as failed:
        choose_from(run, views)
    assert failed.value.kind == "UserError"
    words = ("worker 1", "epoch-000004/state.safetensors was altered", "readable at the same path", "--overwrite")
    assert all(word in failed.value.message for word in words), failed.value.message


def test_a_worker_that_sees_nothing_is_named(run: Path, tmp_path: Path) -> None:
    with pytest.raises(WorkerFailed, match=r"worker 2: .*/nowhere/epoch-000002/state.safetensors is missing"):
        choose_from(run, [run / "checkpoints"] * 2 + [tmp_path / "nowhere"])


def test_a_damaged_checkpoint_gives_way_and_worker_0_says_so(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    whole = json.loads((run / "summary.json").read_text())
    (run / "checkpoints" / "epoch-000004" / "manifest.json").write_text("{")
    assert train(run, resume=True)["weights_sha256"] == whole["weights_sha256"]
    said = capfd.readouterr().err
    assert "note: checkpoint epoch-000004: worker 0:" in said and "all workers turn to epoch-000002" in said


def test_nothing_that_verifies_is_an_error_and_changes_nothing(run: Path) -> None:
    before = tree(run)
    for file in run.glob("checkpoints/*/state.safetensors"):
        file.write_bytes(b"torn")
    damaged = tree(run)
    for verb in (lambda: train(run, resume=True), lambda: Run(run).evaluate(), lambda: Run(run).outputs()):
        with pytest.raises(UserError, match=r"state.safetensors was altered or truncated.*--overwrite"):
            verb()
    assert tree(run) == damaged != before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": {"name": "gcn", "hidden": 5}}, ["model.hidden=4", "model.hidden=5"]),
        ({"seed": 4}, ["seed=3", "seed=4"]),
        ({"optim": {"lr": 0.5}}, ["optim.lr"]),
        ({"strategy": "batchgnn"}, ["exchange.plan=full", "exchange.plan=macrobatch"]),
        ({"workers": 2, "exchange": {"codec": "int8"}}, ["exchange.codec=raw"]),
        ({"data": "synthetic:tiny?seed=9"}, ["another graph"]),
        ({"data": "synthetic:tiny?seed=9", "workers": 2, "partition": {"parts": 4}}, ["another graph"]),
    ],
)
def test_what_would_be_another_run_is_refused_before_anything_changes(
    run: Path, change: dict[str, Any], words: list[str]
) -> None:
    before = tree(run)
    with pytest.raises(UserError) as refused:
        train(run, resume=True, **change)
    assert all(word in str(refused.value) for word in words), refused.value
    assert "another --run" in str(refused.value)
    assert tree(run) == before


def test_epochs_workers_and_how_the_work_is_done_may_change(run: Path) -> None:
    more = {"train": {**SETTINGS["train"], "epochs": 6, "patience": 50}, "strategy": "sar", "workers": 2}
    longer = train(run, resume=True, **more)
    assert (longer["epochs"], longer["workers"]) == (6, 2)
    assert [record["epoch"] for record in Run(run).metrics] == [1, 2, 3, 4, 5, 6]


def test_all_vertex_data_are_part_of_the_graph(tmp_path: Path) -> None:
    """The same edges with one other number in any of them: another graph, and the one kept in the run stays."""
    graph = weft.load("synthetic:tiny").with_vertex_data(timestamp=torch.arange(300))
    settings: dict[str, Any] = {"run": tmp_path / "run", "quiet": True, "train": {"epochs": 1}}
    weft.train(graph, **settings)
    before = tree(tmp_path / "run")
    for name, what in (("x", "features"), ("y", "labels"), ("val_mask", "splits"), ("timestamp", "timestamp")):
        rows = graph.vertex_data[name].clone()
        rows.view(-1)[7] = not rows.view(-1)[7] if rows.dtype == torch.bool else rows.view(-1)[7] + 1
        with pytest.raises(UserError, match=rf"another graph .*its {what} differ"):
            weft.train(graph.with_vertex_data(**{name: rows}), resume=True, **settings)
    assert tree(tmp_path / "run") == before
    assert weft.train(graph, resume=True, **settings).summary["epochs"] == 1


def test_a_graph_is_described_alike_however_it_is_cut(tmp_path: Path) -> None:
    graph = weft.load("synthetic:tiny")
    weft.partition(graph, 3, tmp_path / "parts", method="random")
    whole = run_workers(described, 1, tmp_path / "parts")
    assert run_workers(described, 3, tmp_path / "parts") == whole * 3


def described(comm: Communicator, parts: Path) -> dict[str, Any]:
    return describe_graph(load_shard(parts, comm.worker, comm.num_workers), comm)


def test_a_graph_that_has_changed_since_is_not_judged(tmp_path: Path) -> None:
    """Also where nothing is trained: the folder that the run's settings name holds another graph now."""
    save_graph(weft.load("synthetic:tiny"), tmp_path / "graph")
    train(tmp_path / "run", data=str(tmp_path / "graph"), partition={}, train={"epochs": 1})
    save_graph(weft.load("synthetic:tiny?seed=9"), tmp_path / "graph", overwrite=True)
    for verb in (Run(tmp_path / "run").evaluate, Run(tmp_path / "run").outputs):
        with pytest.raises(UserError, match="is of another graph than"):
            verb()


def test_hosts_with_other_settings_are_named() -> None:
    with pytest.raises(WorkerFailed, match=r"worker 2 has other settings than worker 0 \(seed\)"):
        run_workers(with_own_seed, 3)


def with_own_seed(comm: Communicator) -> None:
    refuse_different(make_config({**SETTINGS, "workers": 3, "seed": int(comm.worker == 2)}), comm)


def test_what_auto_chose_is_kept(tmp_path: Path) -> None:
    """A resumed run does not choose again, whatever would be chosen now."""
    start(make_config({**SETTINGS, "strategy": "batchgnn", "run": str(tmp_path / "run")}), quiet=True)
    again = make_config({**SETTINGS, "strategy": "auto", "run": str(tmp_path / "run")})
    assert start(again, resume=True, quiet=True).config.strategy == "batchgnn"


def test_early_stopping_is_not_gone_past(tmp_path: Path) -> None:
    """A run that patience has ended is over: resumed, it trains no further epoch."""
    more = {"train": {"epochs": 200, "patience": 3}, "optim": {"lr": 0.3}}
    ended = train(tmp_path / "run", **more)
    assert ended["epochs"] < 200
    again = train(tmp_path / "run", resume=True, **more)
    names = ("epochs", "best_epoch", "weights_sha256", "best_weights_sha256", "train_loss", "val_accuracy")
    assert [again[name] for name in names] == [ended[name] for name in names]


def test_differences_begin_anew_with_other_workers(tmp_path: Path) -> None:
    exchange = {"codec": "int8", "delta": True}
    first = train(tmp_path / "run", workers=3, exchange=exchange, train={"epochs": 2})
    more = train(tmp_path / "run", resume=True, workers=2, exchange=exchange, train={"epochs": 4})
    assert more["train_loss"] < first["train_loss"]
    assert len(generations(tmp_path / "run" / "checkpoints")) == 2


def tree(folder: Path) -> dict[str, bytes]:
    """Files and what they hold, but for notes of what has been verified."""
    files = (file for file in sorted(folder.rglob("*")) if file.is_file() and not file.name.startswith(".verified"))
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}
