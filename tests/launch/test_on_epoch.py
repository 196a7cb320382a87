"""Callbacks: a function of the launching process is called with each epoch's record, and may end the run."""

from pathlib import Path
from typing import Any

import pytest

import weft

TINY = "synthetic:tiny"


def train(run: Path, workers: int, on_epoch: Any, epochs: int = 6, **more: Any) -> weft.Run:
    settings = {"quiet": True, "threads": 1, "train": {"epochs": epochs, "checkpoint_every": 4}}
    return weft.train(TINY, workers=workers, run=run, on_epoch=on_epoch, **{**settings, **more})


@pytest.mark.parametrize("workers", [1, 2])
def test_every_epoch_is_told_and_one_ends_the_run(tmp_path: Path, workers: int) -> None:
    seen: list[dict[str, Any]] = []

    def until_three(record: dict[str, Any]) -> bool | None:
        seen.append(record)
        return False if record["epoch"] == 3 else None

    run = train(tmp_path / "run", workers, until_three)
    assert [record["epoch"] for record in seen] == [1, 2, 3]
    assert seen == run.metrics and "val_accuracy" in seen[0]
    assert run.summary["epochs"] == 3 and run.summary["status"] == "finished"
    whole = train(tmp_path / "whole", workers, lambda record: None)
    assert len(whole.metrics) == 6
    run = train(tmp_path / "run", workers, seen.append, resume=True)
    assert [record["epoch"] for record in seen] == [1, 2, 3, 4, 5, 6]
    assert run.summary["weights_sha256"] == whole.summary["weights_sha256"], "it was a clean end"


@pytest.mark.parametrize("workers", [1, 2])
def test_exceptions_end_the_run_and_stop_training_is_a_way_to(tmp_path: Path, workers: int) -> None:
    class Pruned(Exception):
        pass

    def raising(kind: type[Exception]) -> Any:
        def on_epoch(record: dict[str, Any]) -> None:
            if record["epoch"] == 4:
                raise kind("enough")

        return on_epoch

    assert train(tmp_path / "a", workers, raising(weft.StopTraining)).summary["epochs"] == 4
    with pytest.raises(Pruned, match="enough"):
        train(tmp_path / "b", workers, raising(Pruned))
    assert len(weft.Run(tmp_path / "b").metrics) == 4
    assert len(train(tmp_path / "b", workers, None, resume=True).metrics) == 6, "the checkpoint of that epoch is there"
