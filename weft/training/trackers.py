"""The trackers that `weft.training.tracking` tells of a run. The packages of two are imported when a run begins."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.training.events import EventFile
from weft.training.runfolder import RunFolder
from weft.training.tracking import TrackedRun, Tracker

BATCH = 100  # parameters that MLflow takes at a time


class TensorBoard:
    """Settings and figures of the process, beside the curves that every run has in RUN/tensorboard.

    It has no place for files; the report lies in the run's folder.
    """

    def __init__(self) -> None:
        self.last_epoch = 0
        self._file: EventFile | None = None

    def begin(self, run: TrackedRun) -> Mapping[str, str]:
        self._folder: RunFolder = run.folder
        rows = "\n".join(f"| {name} | {value} |" for name, value in run.settings.items())
        self._settings = f"| setting | value |\n| --- | --- |\n{rows}"
        return {"folder": str(run.folder.system_events.relative_to(run.folder.path))}

    def epoch(self, epoch: int, numbers: Mapping[str, float]) -> None:
        if self._file is None:  # now, when it is known from which epoch on earlier events are void
            self._file = EventFile(self._folder.system_events, epoch if epoch > 1 else None)
            self._file.add_text("settings", self._settings)
        self._file.add(epoch, {name: value for name, value in numbers.items() if name.startswith("system/")})

    def end(self, status: str, results: Mapping[str, float], files: Sequence[Path]) -> None:
        if self._file is not None:
            self._file.close()


class MLflow:
    """A run of MLflow, at the server or in the folder that MLFLOW_TRACKING_URI names."""

    STATUS: Mapping[str, str] = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}

    def __init__(self) -> None:
        self.last_epoch = 0

    def begin(self, run: TrackedRun) -> Mapping[str, str]:
        import mlflow

        self._client: Any = mlflow.MlflowClient()
        self._metric: Any = mlflow.entities.Metric
        found = run.known.get("run_id")
        if found is None:
            self._id = self._client.create_run(self._experiment(run.project), run_name=run.name).info.run_id
            there: Mapping[str, str] = {}
        else:
            self._id = found
            there = self._client.get_run(found).data.params
            self._client.update_run(found, status="RUNNING")
            history = self._client.get_metric_history(found, "train_loss")
            self.last_epoch = max((one.step for one in history), default=0)
        self._log_settings(run.settings, there, mlflow.entities)
        self._client.log_artifact(self._id, str(run.folder.config_file))
        return {"run_id": self._id}

    def _experiment(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        return str(self._client.create_experiment(name) if found is None else found.experiment_id)

    def _log_settings(self, settings: Mapping[str, str], there: Mapping[str, str], entities: Any) -> None:
        """Parameters of a run cannot be changed: what a resumed run does otherwise becomes a tag."""
        params = [entities.Param(name, value) for name, value in settings.items() if name not in there]
        tags = [
            entities.RunTag(f"resumed.{name}", value) for name, value in settings.items()
            if name in there and there[name] != value
        ]  # fmt: skip
        for first in range(0, len(params), BATCH):
            self._client.log_batch(self._id, params=params[first : first + BATCH])
        self._client.log_batch(self._id, tags=tags)

    def epoch(self, epoch: int, numbers: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        self._client.log_batch(self._id, [self._metric(name, value, now, epoch) for name, value in numbers.items()])

    def end(self, status: str, results: Mapping[str, float], files: Sequence[Path]) -> None:
        for file in files:
            self._client.log_artifact(self._id, str(file))
        for name, value in results.items():
            self._client.set_tag(self._id, f"result.{name}", f"{value:.6g}")
        self._client.set_terminated(self._id, self.STATUS[status])


class WeightsAndBiases:
    """A run of Weights & Biases, at its server, or with WANDB_MODE=offline in files for `wandb sync`."""

    CODES: Mapping[str, int] = {"finished": 0, "interrupted": 143, "failed": 1}

    def __init__(self) -> None:
        self.last_epoch = 0

    def begin(self, run: TrackedRun) -> Mapping[str, str]:
        import wandb

        known = run.known.get("id")
        self._artifact: Any = wandb.Artifact
        self._run: Any = wandb.init(
            project=run.project,
            id=known,
            resume=None if known is None else "allow",
            name=run.name,
            config={name.replace(".", "/"): value for name, value in run.settings.items()},
            settings=wandb.Settings(console="off", silent=True),
            reinit="create_new",
        )
        self.last_epoch = 0 if known is None else run.recorded
        return {"id": str(self._run.id)}

    def epoch(self, epoch: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=epoch)

    def end(self, status: str, results: Mapping[str, float], files: Sequence[Path]) -> None:
        for name, value in results.items():
            self._run.summary[name] = value
        if files:
            artifact = self._artifact(f"report-{self._run.id}", "report")
            for file in files:
                artifact.add_file(str(file))
            self._run.log_artifact(artifact)
        self._run.finish(self.CODES[status])


KINDS: Mapping[str, type[Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WeightsAndBiases}
