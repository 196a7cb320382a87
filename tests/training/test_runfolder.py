"""Run folders: what survives a crash, and what is never overwritten by accident."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from weft.disk.atomic import write_atomically
from weft.errors import UserError
from weft.training.events import EventFile
from weft.training.machine import describe_machine, peak_rss_bytes
from weft.training.runfolder import RunFolder

CONFIG = {"model": {"kind": "gcn", "hidden": 16}, "data": Path("cora"), "epochs": 3}


def record(epoch: int) -> dict[str, object]:
    return {"epoch": epoch, "seconds": 0.1, "train_loss": 2.0 / epoch, "wire_bytes": {"features": 10 * epoch}}


def make(path: Path, epochs: int = 3) -> RunFolder:
    with RunFolder.create(path, CONFIG) as run:
        for epoch in range(1, epochs + 1):
            run.append(record(epoch))
    return run


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    make(tmp_path / "deep" / "run").write_summary({"status": "finished", "train_loss": torch.tensor(0.5)})
    run = RunFolder.open(tmp_path / "deep" / "run")
    assert run.config() == {"model": {"kind": "gcn", "hidden": 16}, "data": "cora", "epochs": 3}
    assert [r["epoch"] for r in run.metrics()] == [1, 2, 3]
    assert run.metrics()[1]["wire_bytes"] == {"features": 20}
    assert run.summary() == {"status": "finished", "train_loss": 0.5}
    assert run.checkpoints.is_dir()


def test_values_of_torch_and_numpy_and_no_numbers_are_valid_json(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", {}) as run:
        run.append({"epoch": 1, "train_loss": math.nan, "grad_norm": np.float32(2), "rows": torch.arange(2)})

    def refuse(name: str) -> None:
        raise AssertionError(name)

    line = json.loads(run.metrics_file.read_text(), parse_constant=refuse)
    assert line == {"epoch": 1, "train_loss": None, "grad_norm": 2.0, "rows": [0, 1]}


def test_each_epoch_is_on_disk_at_once(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", CONFIG)
    for epoch in (1, 2):
        run.append(record(epoch))
        assert len(RunFolder.open(run.path).metrics()) == epoch
    run.close()


def test_a_run_in_the_way_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "run")
    with pytest.raises(UserError, match=r"--resume.*--overwrite"):
        RunFolder.create(tmp_path / "run", CONFIG)
    assert len(RunFolder.open(tmp_path / "run").metrics()) == 3


def test_overwrite_removes_the_run_and_nothing_else(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    run.write_summary({})
    (run.path / "notes.txt").write_text("mine")
    run.trace_part(1).write_text("{}")
    (run.checkpoints / "old").write_text("")
    again = RunFolder.create(run.path, CONFIG, overwrite=True)
    assert again.metrics() == [] and again.summary() is None
    names = {str(path.relative_to(run.path)) for path in run.path.rglob("*")}
    assert names == {"notes.txt", "config.yaml", "checkpoints", "checkpoints/old"}  # that one is nobody's of weft


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_that_is_no_run_is_never_touched(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="is no run folder"):
        RunFolder.create(tmp_path, CONFIG, overwrite=overwrite)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_empty_folder_will_do_and_a_file_will_not(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, CONFIG)
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(UserError, match="is no run folder"):
        RunFolder.create(file, CONFIG)


def test_resume_cuts_the_epochs_after_the_checkpoint(tmp_path: Path) -> None:
    make(tmp_path / "run", epochs=5).write_summary({"status": "interrupted"})
    with RunFolder.open(tmp_path / "run") as run:
        run.go_on(CONFIG | {"epochs": 6}, after_epoch=3)
        assert run.summary() is None and run.config()["epochs"] == 6
        assert [r["epoch"] for r in run.metrics()] == [1, 2, 3]
        run.append(record(4))
        assert [r["epoch"] for r in run.metrics()] == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ["metrics.jsonl", "summary.json", "trace.json"])
def test_resume_refuses_what_lies_in_the_place_of_a_file_before_it_changes_anything(tmp_path: Path, name: str) -> None:
    make(tmp_path / "run").write_summary({"status": "interrupted"})
    path = tmp_path / "run" / name
    path.unlink(missing_ok=True)
    path.mkdir()
    before = sorted((file, file.stat().st_mtime_ns) for file in (tmp_path / "run").rglob("*"))
    with RunFolder.open(tmp_path / "run") as run, pytest.raises(UserError, match=f"{name} is no file: remove it"):
        run.go_on(CONFIG | {"epochs": 6}, after_epoch=2)
    assert sorted((file, file.stat().st_mtime_ns) for file in (tmp_path / "run").rglob("*")) == before


@pytest.mark.parametrize("torn", ['{"epoch": 3, "seco', '{"epoch"', "{", "\0\0\0"])
def test_a_torn_last_line_is_left_out_and_mended(tmp_path: Path, torn: str) -> None:
    run = make(tmp_path / "run", epochs=2)
    with run.metrics_file.open("a") as file:
        file.write(torn)
    assert [r["epoch"] for r in run.metrics()] == [1, 2]
    with RunFolder.open(run.path) as again:
        again.append(record(3))
    assert [r["epoch"] for r in run.metrics()] == [1, 2, 3]
    assert len(run.metrics_file.read_text().splitlines()) == 3


def test_a_whole_last_line_without_its_end_is_kept(tmp_path: Path) -> None:
    run = make(tmp_path / "run", epochs=2)
    run.metrics_file.write_text(run.metrics_file.read_text().rstrip("\n"))
    with RunFolder.open(run.path) as again:
        again.append(record(3))
    assert [r["epoch"] for r in run.metrics()] == [1, 2, 3]


def test_damage_elsewhere_is_named(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    lines = run.metrics_file.read_text().splitlines()
    run.metrics_file.write_text("\n".join([lines[0], lines[1][:9], lines[2]]) + "\n")
    with pytest.raises(UserError, match="line 2"):
        run.metrics()
    run.summary_file.write_text("{")
    with pytest.raises(UserError, match=r"summary\.json is damaged"):
        run.summary()
    run.config_file.write_text("a: [")
    with pytest.raises(UserError, match=r"config\.yaml is damaged"):
        run.config()


def test_what_is_no_run_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        RunFolder.open(tmp_path / "none")
    with pytest.raises(UserError, match="no config"):
        RunFolder.open(tmp_path)


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "summary.json"
    write_atomically(file, "old")

    def full(descriptor: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_atomically(file, "new")
    assert file.read_text() == "old" and [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_tensorboard_holds_the_curves_and_forgets_what_was_cut(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with RunFolder.create(tmp_path / "run", CONFIG) as run:
        for epoch in range(1, 6):
            run.append(record(epoch) | {"val_accuracy": 0.1 * epoch})
        run.cut(after_epoch=3)
        run.append(record(4) | {"val_accuracy": 0.9})
    events = EventAccumulator(str(run.tensorboard))
    events.Reload()
    assert {"loss/train", "accuracy/val", "run/seconds", "wire_bytes/features"} <= set(events.Tags()["scalars"])
    assert [e.step for e in events.Scalars("accuracy/val")] == [1, 2, 3, 4]
    assert events.Scalars("accuracy/val")[-1].value == pytest.approx(0.9)


def test_reading_a_run_does_not_import_tensorboard() -> None:
    code = "import sys, weft.training.runfolder; sys.exit('tensorboard' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_machine_is_described_in_plain_json() -> None:
    machine = describe_machine()
    assert json.loads(json.dumps(machine)) == machine
    assert machine["cores"] >= 1 and machine["memory_bytes"] > 2**28 and machine["cpu"]
    assert machine["kernels"] in ("native", "reference")


def test_peak_memory_is_this_programs_own() -> None:
    """A child of a large process does not report its parent's memory."""
    code = "from weft.training.machine import peak_rss_bytes as p\na = p(); b = b'x' * 2**27; print(a, p())"
    held = torch.ones(2**28)  # 1 GiB, of float32
    assert peak_rss_bytes() >= held.nbytes
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, after = map(int, run.stdout.split())
    assert before < 2**30 and after - before >= 2**26


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_curves_on_a_full_disk_fail_where_they_are_written(tmp_path: Path) -> None:
    """Not in a thread of their own, whose traceback nobody turns into a sentence."""
    events = EventFile(tmp_path)
    events._file = open("/dev/full", "wb")  # noqa: SIM115
    with pytest.raises(OSError, match="No space left"):
        events.add(1, {"loss": 1.0})
