"""The folder of a run: what was asked, what happened epoch by epoch, and what came out.

    config.yaml      the resolved settings
    metrics.jsonl    one JSON object per epoch, flushed line by line
    summary.json     the result, written whole or not at all
    checkpoints/     weights and optimiser state
    trace.json       where the time went, for Chrome, Perfetto and the report
    tensorboard/     the same curves for TensorBoard
    report.html      the page that `weft report` makes of it

Worker 0 creates the folder and writes it; anyone may read it, while the run lasts or after it crashed.
"""

import json
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import yaml

from weft.errors import UserError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

Record = dict[str, Any]
"""One epoch: {"epoch": 1, "seconds": .., "train_loss": .., "val_<metric>": .., "wire_bytes": {..}, ...}"""


class RunFolder:
    """A run's files. `create` to write, `open` to read; `close` (or leave the `with` block) when done."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.yaml"
        self.metrics_file = self.path / "metrics.jsonl"
        self.summary_file = self.path / "summary.json"
        self.checkpoints = self.path / "checkpoints"
        self.trace_file = self.path / "trace.json"
        self.tensorboard = self.path / "tensorboard"
        self.report_file = self.path / "report.html"
        self._metrics: IO[str] | None = None
        self._events: SummaryWriter | None = None
        self._purge_events_from: int | None = None

    @classmethod
    def create(
        cls,
        path: Path | str,
        config: Mapping[str, Any],
        resume: bool = False,
        overwrite: bool = False,
    ) -> "RunFolder":
        """A folder ready to be written, with the settings in it.

        A run that lies there already is an error, unless it is to be gone on with (`resume`: everything is
        kept but the summary, see `cut`) or done again (`overwrite`: the run's own files are removed, others
        are not).
        """
        folder = cls(path)
        check_free(folder.path, resume=resume, overwrite=overwrite)
        if folder.exists():
            folder._remove(("summary_file",) if resume else tuple(_OWN_FILES))
        folder.checkpoints.mkdir(parents=True, exist_ok=True)
        folder.write_config(config)
        return folder

    @classmethod
    def open(cls, path: Path | str) -> "RunFolder":
        """A folder that a run has made, to be read."""
        folder = cls(path)
        if not folder.exists():
            what = "does not exist" if not folder.path.exists() else "is no run folder: it has no config.yaml"
            raise UserError(f"{folder.path} {what}")
        return folder

    def exists(self) -> bool:
        return self.config_file.is_file()

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Reading

    def config(self) -> dict[str, Any]:
        try:
            config = yaml.safe_load(self.config_file.read_text())
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise UserError(f"{self.config_file} is damaged: {' '.join(str(error).split())}") from None
        if not isinstance(config, dict):
            raise UserError(f"{self.config_file} holds no settings")
        return config

    def metrics(self) -> list[Record]:
        """The epochs so far. A last line that a crash cut short is left out."""
        if not self.metrics_file.exists():
            return []
        lines = self.metrics_file.read_bytes().splitlines()
        records = []
        for number, line in enumerate(lines, start=1):
            record = _parse(line)
            if record is not None:
                records.append(record)
            elif line.strip() and number < len(lines):
                raise UserError(f"{self.metrics_file} is damaged at line {number}: remove that line to go on")
        return records

    def summary(self) -> dict[str, Any] | None:
        """The result; None while the run goes on or where it crashed."""
        if not self.summary_file.exists():
            return None
        try:
            summary = json.loads(self.summary_file.read_bytes())
        except ValueError as error:
            raise UserError(f"{self.summary_file} is damaged ({error}): train again") from None
        if not isinstance(summary, dict):
            raise UserError(f"{self.summary_file} holds no summary: train again")
        return summary

    # Writing

    def write_config(self, config: Mapping[str, Any]) -> None:
        write_atomically(self.config_file, yaml.safe_dump(_plain(config), sort_keys=False, allow_unicode=True))

    def append(self, record: Mapping[str, Any]) -> None:
        """Adds an epoch; when this returns, a crash of the process does not lose it."""
        if self._metrics is None:
            self._mend_last_line()
            self._metrics = self.metrics_file.open("a", encoding="utf-8")
        self._metrics.write(_to_json(record) + "\n")
        self._metrics.flush()
        self._write_events(record)

    def cut(self, after_epoch: int) -> None:
        """Forgets the epochs after a checkpoint's, which a resumed run will do again."""
        self.close()
        kept = [record for record in self.metrics() if record["epoch"] <= after_epoch]
        write_atomically(self.metrics_file, "".join(_to_json(record) + "\n" for record in kept))
        self._purge_events_from = after_epoch + 1

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        write_atomically(self.summary_file, _to_json(summary, indent=2) + "\n")

    def trace_part(self, worker: int) -> Path:
        """Where a worker on this file system leaves its part of the trace for `merge_files`."""
        return self.path / f"trace-{worker}.json"

    def close(self) -> None:
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None
        if self._events is not None:
            self._events.close()
            self._events = None

    def _write_events(self, record: Mapping[str, Any]) -> None:
        if self._events is None:
            from torch.utils.tensorboard import SummaryWriter  # here: slow to import, needed by worker 0 only

            self._events = SummaryWriter(str(self.tensorboard), purge_step=self._purge_events_from)
        for name, value in record.items():
            if name == "epoch":
                continue
            entries = value.items() if isinstance(value, Mapping) else ((None, value),)
            for key, number in entries:
                if isinstance(number, int | float) and not isinstance(number, bool):
                    tag = _tag(name) if key is None else f"{name}/{key}"
                    self._events.add_scalar(tag, number, int(record["epoch"]))

    def _mend_last_line(self) -> None:
        """Ends the file with a whole line, so that the next one does not run into a torn one."""
        if not self.metrics_file.exists():
            return
        content = self.metrics_file.read_bytes()
        if not content or content.endswith(b"\n"):
            return
        whole, _, last = content.rpartition(b"\n")
        with self.metrics_file.open("r+b") as file:
            if _parse(last) is None:
                file.truncate(len(whole) + 1 if whole else 0)
            else:
                file.seek(0, os.SEEK_END)
                file.write(b"\n")

    def _remove(self, names: tuple[str, ...]) -> None:
        for name in names:
            path: Path = getattr(self, name)
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        if "trace_file" in names:
            for part in self.path.glob("trace-*.json"):
                part.unlink()


_OWN_FILES = ("config_file", "metrics_file", "summary_file", "checkpoints", "trace_file", "tensorboard", "report_file")


def check_free(path: Path, resume: bool = False, overwrite: bool = False) -> None:
    """Refuses a folder that a run may not be written to; for use before any costly work."""
    is_run = (path / "config.yaml").is_file()
    if resume and not is_run:
        raise UserError(f"{path} holds no run to resume: check --run, or train without --resume")
    if is_run and not resume and not overwrite:
        raise UserError(
            f"{path} holds a run already: go on with it by --resume, do it again by --overwrite, "
            "or choose another --run"
        )
    if path.exists() and not is_run and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{path} exists and is no run folder: choose another --run")


def write_atomically(path: Path, text: str) -> None:
    """The file is there whole or, as before, not at all, also after a power failure."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _tag(name: str) -> str:
    """TensorBoard groups by the part before the slash: val_accuracy and test_accuracy belong together."""
    split, _, metric = name.partition("_")
    return f"{metric}/{split}" if split in ("train", "val", "test") and metric else f"run/{name}"


def _parse(line: bytes) -> Record | None:
    """The record of a line, or None for a torn one. Every record has an epoch."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("epoch"), int) else None


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(_plain(value), indent=indent, allow_nan=False, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """The same of plain JSON values: numpy and torch become numbers, paths text, NaN and infinity null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    return str(value)
