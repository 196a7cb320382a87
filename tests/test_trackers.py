"""The trackers of docs/python.md, run as the page has it, each against its own files; skipped where one is missing."""

import re
from pathlib import Path
from typing import Any

import pytest

import weft

PAGE = (Path(__file__).parents[1] / "docs" / "python.md").read_text()
BLOCKS = re.findall(r"^```(?:python)?\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def block(beginning: str) -> str:
    (found,) = (code for code in BLOCKS if code.startswith(beginning))
    return found


@pytest.fixture
def surroundings_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that the page has by then: a small graph, few epochs, `numbers`; in an empty folder."""
    monkeypatch.chdir(tmp_path)
    train = weft.train

    def few(graph: Any, **options: Any) -> weft.Run:
        return train(graph, **{"quiet": True, "threads": 1, "train": {"epochs": 3}, "run": "run", **options})

    monkeypatch.setattr(weft, "train", few)
    names: dict[str, Any] = {"weft": weft, "graph": weft.load("synthetic:tiny")}
    definition = next(code for code in BLOCKS if code.startswith("def numbers(record)"))
    exec(definition.partition("\n\n\n")[0], names)
    return names


def wanted() -> list[tuple[int, float]]:
    return [(record["epoch"], record["val_accuracy"]) for record in weft.Run("run").metrics]


def test_mlflow_has_every_epoch_in_its_file_store(
    surroundings_of_the_page: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed: pip install 'weft[trackers]'")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # which it wants to be asked for since 3.7
    mlflow.set_tracking_uri(f"file:{tmp_path}/mlruns")
    exec(block("import mlflow"), surroundings_of_the_page)
    client = mlflow.MlflowClient()
    (run,) = client.search_runs(["0"])
    history = client.get_metric_history(run.info.run_id, "val_accuracy")
    assert [(one.step, one.value) for one in history] == wanted() and len(history) == 3
    assert {"train_loss", "val_accuracy", "seconds"} <= run.data.metrics.keys() and run.info.status == "FINISHED"
    assert list((tmp_path / "mlruns").rglob("val_accuracy")), "it lies in files"


def test_optuna_prunes_what_falls_behind(
    surroundings_of_the_page: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    optuna = pytest.importorskip("optuna", reason="Optuna is not installed: pip install 'weft[trackers]'")
    code = block("import optuna").partition("\n\nstudy")[0]
    exec(code, surroundings_of_the_page)
    objective = surroundings_of_the_page["objective"]
    always = optuna.pruners.ThresholdPruner(lower=2.0)  # no accuracy is as high
    for pruner, state in ((optuna.pruners.NopPruner(), "COMPLETE"), (always, "PRUNED")):
        (tmp_path / state).mkdir()
        monkeypatch.chdir(tmp_path / state)
        study = optuna.create_study(direction="maximize", pruner=pruner, sampler=optuna.samplers.RandomSampler(0))
        study.optimize(objective, n_trials=1)
        (trial,) = study.trials
        assert trial.state.name == state
        epochs = len(weft.Run("trial-0").metrics)
        assert epochs == (3 if state == "COMPLETE" else 1) and len(trial.intermediate_values) == epochs
        assert state == "PRUNED" or trial.value == weft.Run("trial-0").summary["val_accuracy"]


def test_wandb_has_every_epoch_in_an_offline_run(
    surroundings_of_the_page: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb", reason="Weights & Biases is not installed: pip install wandb")
    logged, log = [], wandb.Run.log

    def listening(run: Any, data: dict[str, Any], step: int) -> None:
        log(run, data, step=step)
        logged.append((run.step, data["val_accuracy"]))

    monkeypatch.setattr(wandb.Run, "log", listening)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    exec(block("import wandb"), surroundings_of_the_page)
    (records,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert logged == wanted() and len(logged) == 3 and records.stat().st_size > 0
