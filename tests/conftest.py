"""What all tests share: their surroundings, the choice of fast ones, and the tables of the chaos suites."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Before anything imports torch: threads that wait for each other at the end of a kernel sleep. Several processes of
# tests share the cores, and one that waits in a loop would hold up those that it waits for.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
from hypothesis import HealthCheck, settings

from tests import workers
from tests.chaos.counting import PLAYED, Round, table
from tests.one_run import on_warm_workers
from weft.serverless.broker import Broker
from weft.serverless.pool import PoolInvoker

ROOT = Path(__file__).parents[1]
ROUNDS = "chaos rounds"
WARM = ("layers", "oracle", "partitioning", "sample", "training")  # packages whose runs need no processes of their own

# A busy machine takes long for what is right: no drawn example fails for the time that it takes.
settings.register_profile("patient", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="skip each test as soon as it starts a Python process")


def pytest_configure(config: pytest.Config) -> None:
    # pytest-xdist starts Python processes itself, which run the tests: the one that starts them runs none.
    runs_tests = hasattr(config, "workerinput") or not getattr(config.option, "numprocesses", None)
    if config.getoption("--fast") and runs_tests:
        workers.before_start = _skip
        sys.addaudithook(_skip_where_python_starts)


_refused: list[str] = []  # what a test wanted to start under --fast, by whichever of its threads


def _skip_where_python_starts(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "subprocess.Popen":
        executable, words, *_ = arguments
        words = [words] if isinstance(words, str | bytes | os.PathLike) else words
        if any(os.path.basename(os.fsdecode(word)).startswith("python") for word in (executable, *words)):
            _refused.append(str(words))
            _skip()


def _skip() -> None:
    pytest.skip("it starts processes: --fast leaves it out")


@pytest.fixture(autouse=True)
def no_processes_of_threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under --fast. What starts processes in a thread of its own is refused before that: the test would wait for it."""

    def scale(pool: PoolInvoker, workers: int) -> None:
        if workers:
            pool.close()
            _skip()
        Broker.scale(pool, workers)

    if request.config.getoption("--fast"):
        monkeypatch.setattr(PoolInvoker, "scale", scale)
        monkeypatch.setattr("weft.serverless.endpoint.Endpoint.__init__", lambda *_, **__: _skip())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """A test whose other thread was refused a process ends as skipped, too, whatever it made of that."""
    _refused.clear()
    try:
        return (yield)
    finally:
        if _refused:
            _skip()


@pytest.fixture(autouse=True, scope="session")
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where weft notes the runs that this user made: not in the home of whoever runs the tests.

    And where workers find modules of the tests: they do not look in the current folder.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
        yield


@pytest.fixture(autouse=True)
def warm_workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of several workers on processes that are there, where tests are about what is computed."""
    if request.path.relative_to(ROOT / "tests").parts[0] in WARM:
        monkeypatch.setattr("weft.results.launch_workers", on_warm_workers)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process of pytest-xdist hands the rounds that it played to the one that writes the tables."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[ROUNDS] = [vars(one) for one in PLAYED]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    PLAYED.extend(Round(**fields) for fields in getattr(node, "workeroutput", {}).get(ROUNDS, ()))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The table of all rounds that the chaos suites played, at the end."""
    if PLAYED:
        terminalreporter.section("chaos")
        terminalreporter.write_line(table(PLAYED))
