"""Two hosts, each with its own network: they work together, and when one is cut off both say so and end."""

import re
import time
from pathlib import Path

import pytest

from tests.launch.launching import epoch_reached, wait_until
from tests.multihost.hosts import finish, output, two_hosts, why_not

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
