"""Whole runs: resumed = uninterrupted bit by bit, several workers = one, learned rows, early stopping."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import weft
from weft.config import make_config
from weft.launch.worker import EXIT_INTERRUPTED
from weft.report.page import write_report
from weft.run import start
from weft.training.console import Console
from weft.training.generation import generations

TINY = "synthetic:tiny"
MODEL = {"name": "sage", "hidden": 8, "layers": 2}


def settings(run: Path, epochs: int = 8, **more):
    train = {"epochs": epochs, "checkpoint_every": 3, **more.pop("train", {})}
    return {"data": TINY, "run": str(run), "model": MODEL, "train": train, "seed": 3, **more}


def train(run: Path, resume: bool = False, **more):
    return start(make_config(settings(run, **more)), resume=resume, quiet=True)


def last_weights(run: Path) -> dict[str, torch.Tensor]:
    state = load_file(generations(run / "checkpoints")[-1] / "state.safetensors")
    return {name: tensor for name, tensor in state.items() if name.startswith("model.")}


class Crash(Exception):
    pass


@pytest.mark.parametrize("at", [1, 4, 6])
@pytest.mark.parametrize("model", ["gcn", "gat"])
def test_a_crashed_run_resumes_to_the_same_bits(tmp_path, monkeypatch, at, model):
    more = {"model": {**MODEL, "name": model, "norm": "batch"}, "optim": {"schedule": "cosine", "warmup_epochs": 2}}
    whole = train(tmp_path / "whole", **more).summary

    def crash(self, record):
        if record["epoch"] == at:
            raise Crash

    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(Console, "update", crash)
        train(tmp_path / "broken", **more)
    resumed = train(tmp_path / "broken", resume=True, **more)
    assert resumed.summary["weights_sha256"] == whole["weights_sha256"]
    assert resumed.summary["best_weights_sha256"] == whole["best_weights_sha256"]
    assert [record["epoch"] for record in resumed.metrics] == list(range(1, 9))


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path):
    whole = train(tmp_path / "whole").summary
    train(tmp_path / "run", epochs=7)
    newest = generations(tmp_path / "run" / "checkpoints")[-1]
    (newest / "state.safetensors").write_bytes(b"torn")
    resumed = train(tmp_path / "run", resume=True, epochs=8)
    assert resumed.summary["weights_sha256"] == whole["weights_sha256"]


def test_sigterm_ends_the_epoch_and_resume_gives_the_same_bits(tmp_path):
    more = {"workers": 2, "threads": 1}
    config = settings(tmp_path / "run", epochs=100_000, **more)  # it is never over before it is asked to stop
    code = f"from weft.config import make_config; from weft.run import start; start(make_config({config!r}))"
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, start_new_session=True)
    metrics = tmp_path / "run" / "metrics.jsonl"
    try:
        until = time.monotonic() + 120
        while not (metrics.exists() and metrics.read_text().count("\n") >= 2):
            assert process.poll() is None and time.monotonic() < until, process.stderr.read().decode()
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == EXIT_INTERRUPTED, said.decode()
    epochs = metrics.read_text().count("\n") + 5
    whole = train(tmp_path / "whole", epochs=epochs, **more).summary
    resumed = train(tmp_path / "run", resume=True, epochs=epochs, **more)
    assert resumed.summary["weights_sha256"] == whole["weights_sha256"]


@pytest.mark.parametrize(
    ("data", "restrict", "workers"),
    [(TINY, "never", 2), (f"{TINY}?train=0.03", "always", 4)],
    ids=["whole", "restricted"],
)
def test_bits_of_rows_are_kept_and_shown(tmp_path, data, restrict, workers):
    """A run with adaptive bits resumes to the same bits; inspect and the report show what was chosen."""
    more = {"data": data, "workers": workers, "threads": 1, "strategy": "adaqp", "exchange": {"assign_cycle": 2}}
    more |= {"epochs": 7, "memory": {"restrict": restrict}}
    whole = train(tmp_path / "run", **more)
    chosen = [record["epoch"] for record in whole.metrics if "bits" in record]
    assert chosen == [1, 2, 4, 6] and whole.summary["assign_seconds"] > 0
    command = [sys.executable, "-m", "weft", "inspect", str(tmp_path / "run")]
    shown = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"COLUMNS": "160"}).stdout
    assert "after epoch 2, layer 2, forward" in shown and "choosing bits of rows" in shown
    older, newest = generations(tmp_path / "run" / "checkpoints")
    assert (older.name, newest.name) == ("epoch-000006", "epoch-000007")
    shutil.rmtree(newest)
    resumed = train(tmp_path / "run", resume=True, **more)
    assert resumed.summary["weights_sha256"] == whole.summary["weights_sha256"]
    page = write_report([tmp_path / "run"], tmp_path / "report.html").read_text()
    assert "Rows by their bits, layer 2, backward" in page


def test_relations_are_learned_from_by_several_workers(tmp_path):
    """Most edges of this graph mislead; a model that tells their kinds apart is not misled."""
    more = {"workers": 2, "threads": 1, "train": {"epochs": 40}, "optim": {"lr": 0.02}}
    graph = weft.load("synthetic:relational")
    typed = weft.train(graph, run=tmp_path / "typed", model={"name": "rgcn", "hidden": 16}, **more)
    untyped = weft.train(graph, run=tmp_path / "untyped", model={"name": "gcn", "hidden": 16}, **more)
    assert typed.summary["test_accuracy"] > untyped.summary["test_accuracy"] + 0.15
    shared = weft.train(graph, run=tmp_path / "shared", model={"name": "rgcn", "hidden": 16, "bases": 2}, **more)
    assert shared.summary["test_accuracy"] > untyped.summary["test_accuracy"] + 0.15


@pytest.mark.parametrize("model", ["gcn", "sage", "gat"])
def test_several_workers_train_to_the_weights_of_one(tmp_path, model):
    more = {"model": {**MODEL, "name": model, "norm": "batch"}, "train": {"precision": "float64"}, "threads": 1}
    train(tmp_path / "one", **more)
    train(tmp_path / "three", workers=3, **more)
    one, three = last_weights(tmp_path / "one"), last_weights(tmp_path / "three")
    assert one.keys() == three.keys()
    for name in one:
        torch.testing.assert_close(three[name], one[name], rtol=1e-8, atol=1e-9)


def test_learned_rows_move_with_their_vertices(tmp_path):
    """Vertices without features; three workers, then the run goes on with two, as one worker would have."""
    graph = weft.load(TINY)
    plain = weft.from_edges(*edges_of(graph), y=graph.y, num_nodes=graph.num_nodes,
                            train_mask=graph.train_mask, val_mask=graph.val_mask)  # fmt: skip
    more = {"train": {"precision": "float64"}, "threads": 1, "optim": {"clip_norm": 0.5}}

    def run(name, epochs, workers, resume=False):
        config = make_config(settings(tmp_path / name, epochs=epochs, workers=workers, **more))
        return start(config, resume=resume, graph=None if resume else plain, quiet=True)

    run("one", 6, 1)
    run("several", 3, 3)
    folder = tmp_path / "several"
    more["data"] = str(folder / "graph")
    run("several", 6, 2, resume=True)
    one, several = last_weights(tmp_path / "one"), last_weights(folder)
    for name in one:
        torch.testing.assert_close(several[name], one[name], rtol=1e-8, atol=1e-9)


def edges_of(graph):
    destination = torch.arange(graph.num_nodes).repeat_interleave(graph.adjacency.degrees())
    return graph.adjacency.indices.long(), destination


def test_patience_stops_early(tmp_path):
    summary = train(tmp_path / "run", epochs=200, train={"patience": 5}).summary
    assert summary["epochs"] == summary["best_epoch"] + 5 < 200


def test_python_api_with_a_layer_of_the_users_own(tmp_path):
    run = weft.train(
        TINY, model="tests.training.own_model:build", run=tmp_path / "run", quiet=True, train={"epochs": 5}
    )
    assert run.summary["model"] == "tests.training.own_model:build"
    assert run.metrics[-1]["train_loss"] < run.metrics[0]["train_loss"]
    assert run.evaluate()["test_accuracy"] == pytest.approx(run.summary["test_accuracy"])
    outputs = run.outputs()
    assert outputs.values.shape == (weft.load(TINY).num_nodes, weft.load(TINY).num_classes)


def test_bf16_precision_and_codec_train(tmp_path):
    more = {"train": {"precision": "bfloat16"}, "exchange": {"codec": "bf16"}, "workers": 2, "threads": 1}
    summary = train(tmp_path / "run", epochs=15, **more).summary
    plain = train(tmp_path / "plain", epochs=15).summary
    assert summary["val_accuracy"] > plain["val_accuracy"] - 0.1


def test_the_best_epoch_by_validation_loss(tmp_path):
    run = train(tmp_path / "run", epochs=40, train={"select": "loss"}, optim={"lr": 0.05})
    losses = [record["val_loss"] for record in run.metrics]
    assert run.summary["best_epoch"] == 1 + losses.index(min(losses)) < 40, "the loss rises again when it overfits"


def test_relations_under_the_sar_preset_give_the_same_weights(tmp_path):
    """The halo in rounds, layers computed again, and rows that the loss does not need left out."""
    more = {
        "data": "synthetic:relational?nodes=300,train=0.05",
        "model": {"name": "rgcn", "hidden": 8, "layers": 2, "bases": 2},
        "train": {"precision": "float64"},
        "workers": 2,
        "threads": 1,
    }
    train(tmp_path / "full", **more, memory={"restrict": "never"})
    train(tmp_path / "sar", **more, strategy="sar", memory={"restrict": "always"})
    full, sar = last_weights(tmp_path / "full"), last_weights(tmp_path / "sar")
    for name in full:
        torch.testing.assert_close(sar[name], full[name], rtol=1e-8, atol=1e-9)


def test_how_memory_is_spared_changes_no_loss(tmp_path):
    """Restricted or not, in memory or in files, layers kept or computed again, one worker or two."""
    data = "synthetic:tiny?train=0.03"
    ways = {
        "plain": {"memory": {"restrict": "never"}},
        "restricted": {"memory": {"restrict": "always"}},
        "files": {"strategy": "sar", "partition": {"parts": 3}, "memory": {"spill": "always"}},
        "two": {"strategy": "sar", "workers": 2, "memory": {"restrict": "always"}},
    }
    losses = {}
    for name, more in ways.items():
        losses[name] = [record["train_loss"] for record in train(tmp_path / name, data=data, **more).metrics]
    for name, found in losses.items():
        assert found == pytest.approx(losses["plain"], rel=1e-4), name
    assert losses["plain"][-1] < losses["plain"][0]


def test_batch_norm_needs_every_vertex(tmp_path):
    model = {**MODEL, "norm": "batch"}
    with pytest.raises(weft.UserError, match="batch normalisation needs all of them"):
        train(tmp_path / "run", model=model, memory={"restrict": "always"})
    assert not (tmp_path / "run").exists()


def test_an_evaluation_that_fails_leaves_the_folder_of_a_run_that_has_trained(tmp_path):
    settings = {"run": tmp_path / "run", "quiet": True}
    with pytest.raises(weft.UserError, match="cannot be evaluated"):
        weft.train(TINY, model="tests.training.own_model:build_fails_evaluation", **settings)
    assert weft.Run(tmp_path / "run").metrics == []  # no epoch was finished
    with pytest.raises(weft.UserError, match="cannot be imported"):
        weft.train(TINY, model="tests.training.own_model:no_such", run=tmp_path / "other", quiet=True)
    assert not (tmp_path / "other").exists()  # it never trained
