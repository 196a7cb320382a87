"""The folder of a run: its settings, a record of each epoch, and the result.

    config.yaml      the resolved settings
    metrics.jsonl    one JSON object per epoch, flushed line by line
    summary.json     the result, written whole or not at all
    checkpoints/     weights and optimiser state
    trace.json       where the time went, for Chrome, Perfetto and the report
    tensorboard/     the same curves for TensorBoard
    report.html      the page that `weft report` makes of it
    track.json       which runs of trackers this one is

Worker 0 creates the folder and writes it; anyone may read it, while the run lasts or after it crashed.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import yaml

from weft.disk import open_file, parse_yaml, read_json, read_text
from weft.disk.atomic import write_atomically
from weft.disk.output import remove
from weft.disk.reading import MAX_YAML_BYTES
from weft.errors import UserError
from weft.graph.files import remove_own, sha256_of
from weft.training.plain import plain, to_json
from weft.training.runlock import is_free

if TYPE_CHECKING:
    from weft.training.tensorboard import Events

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
        self.system_events = self.tensorboard / "system"
        self.report_file = self.path / "report.html"
        self.track_file = self.path / "track.json"
        self._metrics: IO[str] | None = None
        self._events: Events | None = None
        self._purge_events_from: int | None = None

    @classmethod
    def create(
        cls,
        path: Path | str,
        config: Mapping[str, Any],
        overwrite: bool = False,
    ) -> "RunFolder":
        """A folder ready to be written, with the settings in it.

        A run that lies there already is an error, unless it is to be done again (`overwrite`: the run's own files are
        removed, others are not).
        """
        folder = cls(path)
        check_free(folder.path, overwrite=overwrite)
        if folder.exists():
            folder._remove(tuple(_OWN_FILES))
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.write_config(config)  # first: from here on it is a run, which may be gone on with
        folder.checkpoints.mkdir(exist_ok=True)
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
        advice = "write the settings into a file of your own, and train with it under another --run"
        text = read_text(self.config_file, MAX_YAML_BYTES, advice)
        seal = _SEAL.match(text)
        if seal is not None and seal[1] != _digest(text[seal.end() :].encode()):
            raise UserError(f"{self.config_file} is damaged or was altered: {advice}")
        config = parse_yaml(text, f"{self.config_file} is damaged and", advice)
        if not isinstance(config, dict):
            raise UserError(f"{self.config_file} holds no settings")
        return config

    def metrics(self) -> list[Record]:
        """The records so far. A last line that a crash cut short is left out."""
        if not os.path.lexists(self.metrics_file):
            self._check_sum(self.metrics_file, None)
            return []
        with open_file(self.metrics_file, "remove it to go on") as file:
            content = file.read()
        self._check_sum(self.metrics_file, content)
        lines = content.splitlines()
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
        summary = self._sealed_summary()
        return None if summary is None else {key: value for key, value in summary.items() if key not in _SEALS}

    def _sealed_summary(self) -> dict[str, Any] | None:
        if not os.path.lexists(self.summary_file):
            return None
        summary = read_json(self.summary_file, "train again")
        if not isinstance(summary, dict):
            raise UserError(f"{self.summary_file} holds no summary: train again")
        if _DIGEST in summary and summary[_DIGEST] != _summary_digest(summary):
            raise UserError(f"{self.summary_file} is damaged or was altered: train again")
        return summary

    def trace(self) -> bytes | None:
        """The recording of where the time went, if there is one."""
        if not os.path.lexists(self.trace_file):
            self._check_sum(self.trace_file, None)
            return None
        with open_file(self.trace_file, "train again") as file:
            content = file.read()
        self._check_sum(self.trace_file, content)
        return content

    def _check_sum(self, file: Path, content: bytes | None) -> None:
        """Refuses a file that is not as it was when the run ended; content None: it is missing."""
        sums = (self._sealed_summary() or {}).get(_SUMS, {})
        expected = sums.get(file.name) if isinstance(sums, dict) else None
        if expected is None:
            return
        if content is None:
            raise UserError(f"{file} is missing: train again")
        if _digest(content) != expected:
            raise UserError(f"{file} is damaged or was altered since the run ended: train again")

    # Writing

    def write_config(self, config: Mapping[str, Any]) -> None:
        text = yaml.safe_dump(plain(config), sort_keys=False, allow_unicode=True)
        write_atomically(self.config_file, f"# weft run, sha256 {_digest(text.encode())}\n{text}")

    def begin(self) -> None:
        """Marks the run as one that has trained, so that its folder stays whatever fails from now on."""
        self.metrics_file.touch()

    def append(self, record: Mapping[str, Any]) -> None:
        """Adds an epoch; when this returns, a crash of the process does not lose it."""
        if self._metrics is None:
            self._mend_last_line()
            self._metrics = self.metrics_file.open("a", encoding="utf-8")
        self._metrics.write(to_json(record) + "\n")
        self._metrics.flush()
        if self._events is None:
            from weft.training.tensorboard import Events  # here: only who writes a run needs tensorboard

            self._events = Events(self.tensorboard, self._purge_events_from)
        self._events.write(record)

    def go_on(self, config: Mapping[str, Any], after_epoch: int) -> None:
        """Prepares a folder for a resumed run: removes the summary and the records of epochs to be done again."""
        for file in (self.metrics_file, self.summary_file, self.trace_file):  # the run writes them, some at its end
            if os.path.lexists(file) and not file.is_file():
                raise UserError(f"{file} is no file: remove it to go on")
        self._remove(("summary_file",))
        self.checkpoints.mkdir(exist_ok=True)
        self.write_config(config)
        self.cut(after_epoch)

    def cut(self, after_epoch: int) -> None:
        """Removes the records of the epochs after this one."""
        self.close()
        kept = [record for record in self.metrics() if record["epoch"] <= after_epoch]
        write_atomically(self.metrics_file, "".join(to_json(record) + "\n" for record in kept))
        self._purge_events_from = after_epoch + 1

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """The result, with digests of itself and of the files that a report reads beside it."""
        files = (file for file in (self.metrics_file, self.trace_file) if file.exists())
        sealed = {**plain(summary), _SUMS: {file.name: sha256_of(file) for file in files}}
        write_atomically(self.summary_file, to_json({**sealed, _DIGEST: _summary_digest(sealed)}, indent=2) + "\n")

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

    def discard(self) -> None:
        """Removes the run, and the graph and parts that were made for it; what others have put there stays."""
        self.close()
        for name, kind in (("parts", "partition"), ("graph", "graph")):
            with suppress(UserError):
                remove_own(self.path / name, kind)
        self._remove(tuple(_OWN_FILES))

    def _remove(self, names: tuple[str, ...]) -> None:
        for name in names:
            path: Path = getattr(self, name)
            if path.is_dir() and not path.is_symlink():
                for file in (entry for pattern in _OWN_PATTERNS for entry in path.glob(pattern)):
                    remove(file)
                with suppress(OSError):  # others' files are in it
                    path.rmdir()
            else:
                path.unlink(missing_ok=True)
        if "trace_file" in names:
            for part in self.path.glob("trace-*.json"):
                part.unlink()


_SEAL = re.compile(r"# weft run, sha256 ([0-9a-f]+)\n")  # the first line of settings that a run has written
_SUMS, _DIGEST = "file_sha256", "summary_sha256"
_SEALS = (_SUMS, _DIGEST)
_OWN_FILES = (
    *("config_file", "metrics_file", "summary_file", "checkpoints", "trace_file", "system_events", "tensorboard"),
    *("report_file", "track_file"),
)
_OWN_PATTERNS = ("epoch-*", ".epoch-*.partial", "events.out.tfevents.*")  # in the folders among them


def check_free(path: Path, resume: bool = False, overwrite: bool = False) -> None:
    """Refuses a folder that a run may not be written to; for use before any costly work."""
    is_run = (path / "config.yaml").is_file()
    if is_run and not resume and not overwrite:
        raise UserError(
            f"{path} holds a run already: go on with it by --resume, do it again by --overwrite, "
            "or choose another --run"
        )
    if is_run and overwrite and not _SEAL.match((path / "config.yaml").read_text(errors="replace")):
        raise UserError(
            f"{path / 'config.yaml'} was not written by a run of weft: choose another --run, or remove the folder "
            "yourself if nothing in it is needed"
        )
    if path.exists() and not is_run and not is_free(path):
        raise UserError(f"{path} exists and is no run folder: choose another --run")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _summary_digest(summary: Mapping[str, Any]) -> str:
    plain = json.loads(to_json({key: value for key, value in summary.items() if key != _DIGEST}))
    return _digest(json.dumps(plain, sort_keys=True).encode())


def _parse(line: bytes) -> Record | None:
    """The record of a line, or None for a torn one. Every record has an epoch."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("epoch"), int) else None
