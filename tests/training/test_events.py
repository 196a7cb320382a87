"""What TensorBoard reads of a run, and what a run does not import."""

import subprocess
import sys
from pathlib import Path

from weft.training.runfolder import RunFolder


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_shows_what_the_metrics_say(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", {}) as folder:
        for epoch in (1, 2, 3):
            folder.append({"epoch": epoch, "train_loss": epoch / 2, "wire_bytes": {"ids": 300 * epoch}, "note": "x"})
    assert curves(folder.tensorboard) == {
        "loss/train": [(1, 0.5), (2, 1.0), (3, 1.5)],
        "wire_bytes/ids": [(1, 300.0), (2, 600.0), (3, 900.0)],
    }


def test_an_epoch_can_be_read_before_the_run_ends(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", {}) as folder:
        folder.append({"epoch": 1, "train_loss": 0.5})
        assert curves(folder.tensorboard) == {"loss/train": [(1, 0.5)]}


def test_epochs_that_are_done_again_replace_those_before(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", {}) as folder:
        for epoch in (1, 2, 3):
            folder.append({"epoch": epoch, "train_loss": 1.0})
        folder.go_on({}, after_epoch=1)
        folder.append({"epoch": 2, "train_loss": 2.0})
    assert len(list(folder.tensorboard.iterdir())) == 2
    assert curves(folder.tensorboard) == {"loss/train": [(1, 1.0), (2, 2.0)]}


RUN = """
import sys, weft
weft.train("synthetic:tiny", run=sys.argv[1], quiet=True, train={"epochs": 2, "checkpoint_every": 1})
weft.train("synthetic:tiny", run=sys.argv[1], quiet=True, train={"epochs": 3}, resume=True)
slow = ("torch._dynamo", "sympy", "torch.utils.tensorboard", "boto3", "tensorboard.compat.tensorflow_stub")
print([name for name in slow if name in sys.modules])
"""


def test_a_run_imports_nothing_slow_that_it_does_not_use(tmp_path: Path) -> None:
    """torch's compiler and tensorboard's file systems would take longer than all of weft."""
    command = [sys.executable, "-P", "-c", RUN, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
