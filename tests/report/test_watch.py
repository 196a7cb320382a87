"""`weft watch`: the report on a run that trains meanwhile, as others see it and in a browser."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.report.fake_runs import fake_run
from weft.errors import UserError
from weft.report.page import page
from weft.report.rundata import load_runs
from weft.report.watch import LivePage, Server
from weft.training.runlock import hold_run

WITHIN_SECONDS = 120
TRAIN = ("--data", "synthetic:tiny", "--epochs", "1000000", "--set", "train.trace_epochs=0", "--set", "threads=1")


@contextmanager
def weft(folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """The command, running."""
    command = [sys.executable, "-P", "-m", "weft", *words]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for_epochs(run: Path, count: int) -> None:
    ends = time.monotonic() + WITHIN_SECONDS
    metrics = run / "metrics.jsonl"
    while not metrics.exists() or metrics.read_text().count("\n") < count:
        assert time.monotonic() < ends, "the run does not train"
        time.sleep(0.1)


def address_of(watching: subprocess.Popen[str]) -> str:
    assert watching.stdout is not None
    found = re.search(r"watching .* at (http://127\.0\.0\.1:\d+/)$", watching.stdout.readline().strip())
    assert found, watching.communicate()
    return found[1]


def read(address: str) -> str:
    with urlopen(address, timeout=60) as answer:
        return answer.read().decode()


def epochs_shown(text: str) -> int:
    found = re.search(r"In training, (\d+) epochs? so far", text)
    assert found, text[-2000:]
    return int(found[1])


@pytest.fixture
def serving() -> Iterator[list[Server]]:
    servers: list[Server] = []
    yield servers
    for server in servers:
        server.shutdown()
        server.server_close()


def serve(servers: list[Server], *runs: Path) -> Server:
    server = Server(LivePage(runs))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    servers.append(server)
    return server


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_a_run_that_trains_is_shown_as_it_goes_on(tmp_path: Path, number: int, code: int) -> None:
    with weft(tmp_path, "train", *TRAIN, "--run", "run"):
        wait_for_epochs(tmp_path / "run", 2)
        with weft(tmp_path, "watch", "run") as watching:
            address = address_of(watching)
            first, state = epochs_shown(read(address)), json.loads(read(f"{address}state"))
            wait_for_epochs(tmp_path / "run", first + 5)
            assert epochs_shown(read(address)) >= first + 5 and json.loads(read(f"{address}state")) != state
            watching.send_signal(number)
            out, err = watching.communicate(timeout=WITHIN_SECONDS)
            assert watching.returncode == code and err == "", out + err


def test_in_a_browser_the_page_updates_itself_and_keeps_what_was_opened(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="aiohttp is in the extra serverless")
    from tests.report.browser import find_chromium, open_tab

    find_chromium()
    epochs = "Number(document.querySelector('.lead').textContent.match(/training, (\\d+) epoch/)[1])"

    async def look(address: str) -> None:
        async with open_tab(address, tmp_path / "profile") as tab:
            before = await tab.value(epochs)
            await tab.value("window.sameDocument = 1; document.querySelector('details').open = true; 1")
            await tab.until(f"{epochs} > {before}")
            assert await tab.value("window.sameDocument") == 1, "it was not loaded anew"
            assert await tab.value("document.querySelector('details').open") is True
            assert await tab.value("document.querySelectorAll('main').length") == 1
            assert (await tab.value("document.querySelector('.live').textContent")).startswith("updated ")
            marks = await tab.value("document.querySelector('[data-plot]').querySelectorAll('.cross').length")
            assert marks == 1, "curves answer to the pointer as they do in a report"
            watching.terminate()
            await tab.until("document.querySelector('.live').textContent === 'weft watch has ended'")

    with weft(tmp_path, "train", *TRAIN, "--run", "run"):
        wait_for_epochs(tmp_path / "run", 2)
        with weft(tmp_path, "watch", "run") as watching:
            asyncio.run(look(address_of(watching)))


def test_what_a_report_shows_of_several_runs_is_shown(tmp_path: Path, serving: list[Server]) -> None:
    runs = [fake_run(tmp_path / name).path for name in ("first", "second")]
    shown = read(serve(serving, *runs).address)
    report = page(load_runs(runs))
    main = re.compile(r"<main>(.*?)<div>Made on", re.DOTALL)
    assert main.findall(shown) == main.findall(report) != []
    assert "SHOWN" in shown and "SHOWN" not in report


def test_a_page_is_made_when_a_file_has_changed_and_not_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = fake_run(tmp_path / "run")
    live = LivePage([run.path])
    made = []
    monkeypatch.setattr("weft.report.watch.page", lambda runs, script: made.append(runs) or f"page {len(made)}")
    assert [live.text(), live.text()] == ["page 1", "page 1"]
    with run.metrics_file.open("a") as file:
        file.write('{"epoch": 999, "train_loss": 1.0}\n')
    assert live.text() == "page 2" and len(made) == 2
    live._seconds = 1.0
    assert live.state()["seconds"] == 20, "what takes long to make is asked for less often"


def test_whether_a_run_trains_is_seen_from_its_lock(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run")
    run.summary_file.unlink()
    live = LivePage([run.path])
    assert "Unfinished after" in live.text() and "was cut off" in live.text()
    with hold_run(run.path):
        assert "In training, " in live.text() and "was cut off" not in live.text()
    assert "Unfinished after" in live.text(), "it was killed: no file has changed"


def test_a_run_that_goes_away_is_a_sentence_on_the_page(tmp_path: Path, serving: list[Server]) -> None:
    run = fake_run(tmp_path / "run")
    server = serve(serving, run.path)
    run.config_file.rename(tmp_path / "config.yaml")
    assert "is no run folder: it has no config.yaml" in read(server.address)
    (tmp_path / "config.yaml").rename(run.config_file)
    assert "Learning" in read(server.address)


def test_only_this_machine_is_answered(tmp_path: Path, serving: list[Server]) -> None:
    server = serve(serving, fake_run(tmp_path / "run").path)
    assert server.server_address[0] == "127.0.0.1"
    for host, status in (("localhost", 200), ("127.0.0.1", 200), ("elsewhere.example", 403)):
        connection = HTTPConnection("127.0.0.1", server.server_port)
        connection.request("GET", "/", headers={"Host": f"{host}:{server.server_port}"})
        answer = connection.getresponse()
        assert answer.status == status and ("Learning" in answer.read().decode()) == (status == 200)
        assert "default-src 'none'" in (answer.getheader("Content-Security-Policy") or "")
        connection.close()


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing does not exist"):
        LivePage([tmp_path / "nothing"])
    with pytest.raises(UserError, match=r"is no run folder: it has no config\.yaml"):
        LivePage([tmp_path])
    run = fake_run(tmp_path / "run")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} is in use by another program: choose another --port"):
            Server(LivePage([run.path]), port)
    with weft(tmp_path, "watch", str(tmp_path / "nothing")) as watching:
        out, err = watching.communicate(timeout=WITHIN_SECONDS)
        assert watching.returncode == 2 and out == "" and os.linesep not in err.strip()
        assert err == f"error: {tmp_path}/nothing does not exist\n"
