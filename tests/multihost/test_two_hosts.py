"""Two hosts, each with its own network: they work together, and when one is cut off both say so and end."""

import json
import re
import time
from pathlib import Path

import pytest

import weft
from tests.launch.launching import epoch_of, epoch_reached, wait_until
from tests.multihost.hosts import finish, output, two_hosts, why_not

DATA = "synthetic:demo"
REASON = why_not()
pytestmark = [pytest.mark.multihost, pytest.mark.skipif(REASON is not None, reason=str(REASON))]


def test_workers_of_two_hosts_exchange_rows(tmp_path: Path) -> None:
    with two_hosts() as hosts:
        script = ["-m", "tests.multihost.comm_script", str(tmp_path), "3", "60"]
        runs = [hosts.torchrun(host, 2, script) for host in (0, 1)]
        for host, run in enumerate(runs):
            code, said = finish(run, 180)
            assert code == 0, said
            for worker in (2 * host, 2 * host + 1):
                assert f"worker {worker} sent {3 * 3 * 3 * 8 * 4} bytes forward" in said


def test_a_host_that_is_cut_off_ends_the_run_on_both_sides(tmp_path: Path) -> None:
    deadline_seconds = 8
    with two_hosts() as hosts:
        script = ["-m", "tests.multihost.comm_script", str(tmp_path), "1000000", str(deadline_seconds)]
        runs = [hosts.torchrun(host, 1, script) for host in (0, 1)]
        wait_until(lambda: epoch_reached(tmp_path, 0, 3) and epoch_reached(tmp_path, 1, 3), seconds=180)
        hosts.cut()
        begin = time.monotonic()
        said = []
        for run in runs:
            try:
                code, text = finish(run, 60)
            except BaseException:
                print(output(run))
                raise
            assert code != 0
            said.append(text)
        # torchrun itself needs some seconds to notice and to end; the workers' own word is timed by the deadline.
        assert time.monotonic() - begin < deadline_seconds + 30
        for worker, text in enumerate(said):
            words = rf"worker {worker} lost worker {1 - worker} during epoch \d+: .* deadline of {deadline_seconds} s"
            assert re.search(words, text), text


def test_a_cable_that_is_out_for_a_while_stops_nobody(tmp_path: Path) -> None:
    with two_hosts() as hosts:
        script = ["-m", "tests.multihost.comm_script", str(tmp_path), "1000000", "120"]
        runs = [hosts.torchrun(host, 1, script) for host in (0, 1)]
        wait_until(lambda: epoch_reached(tmp_path, 0, 3) and epoch_reached(tmp_path, 1, 3), seconds=180)
        for out_seconds in (0.3, 3.0):
            hosts.cut()
            time.sleep(out_seconds)
            before = max(epoch_of(tmp_path, worker) for worker in (0, 1))
            hosts.mend()
            wait_until(lambda: epoch_reached(tmp_path, 1, before + 5), seconds=90)  # noqa: B023 (called at once)
        assert [run.poll() for run in runs] == [None, None], "\n".join(output(run) for run in runs)


def _partition(folder: Path) -> Path:
    """A small graph in four parts."""
    weft.partition(DATA, 4, folder / "parts", method="random")
    return folder / "parts"


def test_two_hosts_train_together_as_one_does(tmp_path: Path) -> None:
    parts = _partition(tmp_path)
    train = ["weft", "train", "--data", str(parts), "--model", "gcn", "--epochs", "5", "--seed", "3"]
    with two_hosts() as hosts:
        arguments = ["-m", "--", *train, "--run", str(tmp_path / "two")]
        runs = [hosts.torchrun(host, 1, arguments) for host in (0, 1)]
        for run in runs:
            code, said = finish(run, 240)
            assert code == 0, said
    weft.train(str(parts), model="gcn", workers=1, run=tmp_path / "one", seed=3, train={"epochs": 5})
    two, one = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("two", "one"))
    assert (two["workers"], one["workers"]) == (2, 1)
    assert two["wire_bytes"]["hidden_forward"] > 0
    assert two["train_loss"] == pytest.approx(one["train_loss"], rel=1e-4)


def test_training_ends_when_a_host_is_cut_off(tmp_path: Path) -> None:
    parts, deadline_seconds = _partition(tmp_path), 15  # more than the starts of the two can lie apart
    with two_hosts() as hosts:
        arguments = ["-m", "--", "weft", "train", "--data", str(parts), "--model", "gcn", "--epochs", "1000000"]
        arguments += ["--set", f"deadline_seconds={deadline_seconds}", "--set", "train.patience=null"]
        runs = [hosts.torchrun(host, 1, [*arguments, "--run", str(tmp_path / "run")]) for host in (0, 1)]
        wait_until(lambda: _epochs(tmp_path / "run") >= 3 or any(run.poll() is not None for run in runs), seconds=240)
        assert [run.poll() for run in runs] == [None, None], "\n".join(output(run) for run in runs)
        hosts.cut()
        begin = time.monotonic()
        for worker, run in enumerate(runs):
            code, said = finish(run, 90)
            assert code != 0
            assert re.search(rf"worker {worker} lost worker {1 - worker} during epoch \d+", _one_line(said)), said
        assert time.monotonic() - begin < deadline_seconds + 40


def _epochs(run: Path) -> int:
    try:
        return len((run / "metrics.jsonl").read_text().splitlines())
    except FileNotFoundError:
        return 0


def _one_line(text: str) -> str:
    return " ".join(text.split())
