"""`--track`: what trackers hold of a run is what the run's own folder says, and a resumed run goes on in theirs.

Each tracker writes its own files, which are read back; a test is skipped where a tracker's package is missing.
"""

import importlib.util
import json
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import weft
from weft.config import make_config
from weft.errors import UserError
from weft.training.plain import flat_numbers, flatten
from weft.training.tracking import SystemFigures, check_trackers

SMALL = {"quiet": True, "threads": 1, "run": "run"}
SYSTEM = {"system/rss_bytes", "system/peak_rss_bytes", "system/busy_cores", "system/host_load"}
NOT_THERE = "is not installed: pip install 'weft[trackers]'"


class Stop(Exception):
    pass


def train(to: str, epochs: int, workers: int = 1, **more: Any) -> weft.Run:
    settings = {"train": {"epochs": epochs, "checkpoint_every": 2}, "track": {"to": [to]}}
    return weft.train("synthetic:tiny", workers=workers, **SMALL, **settings, **more)


def fail_at(epoch: int) -> Any:
    def on_epoch(record: dict[str, Any]) -> None:
        if record["epoch"] == epoch:
            raise Stop

    return on_epoch


def wanted(key: str) -> list[tuple[int, float]]:
    """What the run folder says of each epoch."""
    return [(record["epoch"], flat_numbers(record)[key]) for record in weft.Run("run").metrics]


@pytest.fixture
def mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    package = pytest.importorskip("mlflow", reason=f"MLflow {NOT_THERE}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/mlruns")
    package.set_tracking_uri(f"file:{tmp_path}/mlruns")
    return package


def only_run(mlflow: Any) -> tuple[Any, Any]:
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("weft").experiment_id])
    return client, run


def history(client: Any, run: Any, key: str) -> list[tuple[int, float]]:
    return [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, key)]


@pytest.mark.parametrize("workers", [1, 2])
def test_mlflow_has_settings_epochs_figures_and_the_report(mlflow: Any, workers: int) -> None:
    done = train("mlflow", 3, workers)
    client, run = only_run(mlflow)
    for key in ("train_loss", "val_accuracy", "grad_norm", "wire_bytes/gradients", "phase_seconds/forward"):
        assert history(client, run, key) == wanted(key) and len(wanted(key)) == 3
    assert run.data.metrics.keys() >= SYSTEM and run.data.metrics["system/rss_bytes"] > 1e7
    assert run.data.params == flatten(yaml.safe_load(Path("run/config.yaml").read_text()))
    assert float(run.data.tags["result.test_accuracy"]) == pytest.approx(done.summary["test_accuracy"], rel=1e-5)
    assert run.info.status == "FINISHED" and run.info.run_name == "run"
    report = Path(client.download_artifacts(run.info.run_id, "report.html"))
    assert (
        report.read_bytes() == Path("run/report.html").read_bytes()
        and b"Finished after 3 epochs" in report.read_bytes()
    )
    assert {file.path for file in client.list_artifacts(run.info.run_id)} == {"report.html", "config.yaml"}


def test_a_resumed_run_goes_on_in_the_run_of_mlflow_and_tells_each_epoch_once(mlflow: Any) -> None:
    with pytest.raises(Stop):
        train("mlflow", 6, on_epoch=fail_at(3))  # the newest checkpoint is that of epoch 2
    client, run = only_run(mlflow)
    assert run.info.status == "FAILED" and len(history(client, run, "train_loss")) == 3
    train("mlflow", 5, resume=True)
    client, run = only_run(mlflow)
    assert history(client, run, "train_loss") == wanted("train_loss") and len(wanted("train_loss")) == 5
    assert run.info.status == "FINISHED" and run.data.tags["resumed.train.epochs"] == "5"
    assert json.loads(Path("run/track.json").read_text()) == {"mlflow": {"run_id": run.info.run_id}}
    train("mlflow", 2, overwrite=True)
    experiment = client.get_experiment_by_name("weft").experiment_id
    assert len(client.search_runs([experiment])) == 2, "a run that is done again is a new one"


def test_weights_and_biases_has_the_same_in_offline_runs_of_one_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason=f"Weights & Biases {NOT_THERE}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    train("wandb", 2)
    train("wandb", 4, resume=True)
    records = [read_offline(file) for file in sorted(tmp_path.glob("wandb/offline-run-*/*.wandb"))]
    assert len(records) == 2
    ids = {one.run.run_id for part in records for one in part if one.WhichOneof("record_type") == "run"}
    assert ids == {json.loads(Path("run/track.json").read_text())["wandb"]["id"]}
    told: list[dict[str, Any]] = []
    for part in records:
        rows = [one.history for one in part if one.WhichOneof("record_type") == "history"]
        told += [
            {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in row.item} for row in rows
        ]
    for key in ("train_loss", "val_accuracy", "wire_bytes/gradients"):
        assert [(row["_step"], row[key]) for row in told if key in row] == wanted(key) and len(wanted(key)) == 4
    assert told[0].keys() >= SYSTEM
    (run, *_) = (one.run for one in records[0] if one.WhichOneof("record_type") == "run")
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert config["model/name"] == "gcn" and config["train/epochs"] == "2" and run.project == "weft"
    files = [one for part in records for one in part if one.WhichOneof("record_type") in ("artifact", "request")]
    assert any("report.html" in str(one) for one in files), "the report is an artefact"


def read_offline(file: Path) -> list[Any]:
    """The records of an offline run: a log as LevelDB writes it, of blocks of 32 KiB, behind a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    content, at, found, pending = file.read_bytes(), 7, [], b""
    assert content.startswith(b":W&B")
    while at + 7 <= len(content):
        rest = 2**15 - at % 2**15
        if rest < 7:  # no header fits: zeros up to the next block
            at += rest
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        pending += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            found.append(wandb_internal_pb2.Record.FromString(pending))
            pending = b""
    return found


def test_tensorboard_has_settings_and_figures_beside_the_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.chdir(tmp_path)
    with pytest.raises(Stop):
        train("tensorboard", 6, on_epoch=fail_at(3))
    train("tensorboard", 5, resume=True)
    curves, figures = (EventAccumulator(f"run/{name}") for name in ("tensorboard", "tensorboard/system"))
    curves.Reload()
    figures.Reload()
    assert [one.step for one in curves.Scalars("accuracy/val")] == [1, 2, 3, 4, 5]
    assert set(figures.Tags()["scalars"]) == SYSTEM
    assert [one.step for one in figures.Scalars("system/rss_bytes")] == [1, 2, 3, 4, 5], "each epoch once"
    (text,) = figures.Tensors("settings/text_summary")[-1].tensor_proto.string_val
    assert b"| model.name | gcn |" in text and b"| train.epochs | 5 |" in text
    assert "Finished after 5 epochs" in Path("run/report.html").read_text()
    train("tensorboard", 1, overwrite=True)
    assert len(list(Path("run/tensorboard/system").iterdir())) == 1, "what was tracked before is removed"


def test_numbers_do_not_depend_on_who_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    digests = {
        weft.train("synthetic:tiny", **{**SMALL, "run": name}, train={"epochs": 2}, track={"to": to}).summary[
            "weights_sha256"
        ]
        for name, to in (("told", ["tensorboard"]), ("not", []))
    }
    assert len(digests) == 1


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_package_that_is_missing_is_one_sentence_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda other, *rest: None if other == name else find(other, *rest))
    with pytest.raises(UserError, match=rf"tracking by {name} needs {name}, .* pip install '\.\[trackers\]'"):
        train(name, 1)
    assert not Path("run").exists()
    check_trackers(make_config({"track": {"to": ["tensorboard"]}}).track)
    with pytest.raises(UserError, match=r"track\.to\.0: input should be 'tensorboard', 'mlflow' or 'wandb' .*'mlfow'"):
        make_config({"track": {"to": ["mlfow"]}})


def test_a_tracker_that_cannot_be_reached_ends_the_run_at_its_start(
    mlflow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken").write_text("a file")
    mlflow.set_tracking_uri(f"file:{tmp_path}/taken/mlruns")
    with pytest.raises(UserError, match=r"mlflow does not take the run .*: mend that, or leave it out of --track"):
        train("mlflow", 1)
    assert not Path("run").exists()


def test_a_tracker_that_fails_later_is_left_out_and_the_run_goes_on(
    mlflow: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log_batch = mlflow.MlflowClient.log_batch

    def unplugged(client: Any, run_id: str, metrics: Any = (), **rest: Any) -> None:
        if any(one.step == 2 for one in metrics):
            raise ConnectionError("the server is gone")
        log_batch(client, run_id, metrics, **rest)

    monkeypatch.setattr(mlflow.MlflowClient, "log_batch", unplugged)
    assert train("mlflow", 3).summary["epochs"] == 3
    notes = [line for line in capsys.readouterr().err.splitlines() if "mlflow" in line]
    assert notes == ["note: mlflow is left out from here on: ConnectionError: the server is gone"]


def test_the_command_takes_names_with_commas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.cli import app

    monkeypatch.chdir(tmp_path)
    words = "--data synthetic:tiny --epochs 1 --run run --track tensorboard --set track.project=mine --set threads=1"
    monkeypatch.setattr(sys, "argv", ["weft", "train", *words.split()])
    with pytest.raises(SystemExit) as ended:
        app.main()
    assert not ended.value.code
    assert weft.Run("run").config.track.model_dump() == {"to": ("tensorboard",), "project": "mine"}


def test_figures_are_of_this_process() -> None:
    figures = SystemFigures(torch.device("cpu"))
    sum(number * number for number in range(10**6))
    found = figures.now()
    assert found.keys() == SYSTEM and found["system/rss_bytes"] <= found["system/peak_rss_bytes"]
    assert 0 < found["system/busy_cores"] < 64
