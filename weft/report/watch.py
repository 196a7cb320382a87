"""The report on runs that still train, served on the loopback interface; the page updates itself.

The page asks for /state and, where that differs from what it shows, for the page anew. A page is made only when
somebody asks and a file of a run has changed, and not so often that making it takes much of a processor's time.
"""

import errno
import json
import sys
import time
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

from weft.errors import UserError
from weft.report.page import document, page
from weft.report.rundata import load_runs
from weft.report.text import escape
from weft.training.runfolder import RunFolder
from weft.training.runlock import is_written

HOST = "127.0.0.1"
POLL_SECONDS = 2.0  # between two questions of a page
SHARE = 0.05  # of a processor's time, at most, goes into making pages for one browser
_SCRIPT = Path(__file__).with_suffix(".js")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"


class LivePage:
    """The page about some run folders as they are now; kept until one of their files changes."""

    def __init__(self, runs: Sequence[Path]) -> None:
        self._runs = list(runs)
        load_runs(self._runs)  # a folder that is no run is a mistake at the start
        self._lock = Lock()
        self._version, self._text = "", ""
        self._seconds = 0.0  # of a processor, that the last page took

    def version(self) -> str:
        """Differs whenever a file that the page is made of does, and where a process begins or ends to write one."""
        stamps = [_stamp(file) for run in self._runs for file in _files(run)]
        return json.dumps([stamps, [is_written(run) for run in self._runs]])

    def state(self) -> dict[str, str | float]:
        """What a page that is open asks for: whether it is out of date, and when to ask again."""
        return {"version": self.version(), "seconds": max(POLL_SECONDS, self._seconds / SHARE)}

    def text(self) -> str:
        """The page. Where the folders cannot be read now, a sentence in its place, until they can."""
        with self._lock:
            version = self.version()  # before files are read: what changes meanwhile makes the next page
            if version != self._version:
                started = time.thread_time()
                self._text, self._version = self._make(version), version
                self._seconds = time.thread_time() - started
            return self._text

    def _make(self, version: str) -> str:
        script = f"const SHOWN = {json.dumps(version)};\n{_SCRIPT.read_text()}"
        try:
            return page(load_runs(self._runs), script)
        except UserError as error:
            return document("weft watch", f'<p class="problem">{escape(str(error))}</p>', script)


def _files(run: Path) -> tuple[Path, ...]:
    folder = RunFolder(run)
    return folder.config_file, folder.metrics_file, folder.summary_file, folder.trace_file


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


class Server(ThreadingHTTPServer):
    """Serves a page to browsers of this machine."""

    daemon_threads = True  # a browser that keeps a connection open does not keep the program

    def __init__(self, live: LivePage, port: int = 0) -> None:
        """port 0: the system chooses one."""
        self.live = live
        try:
            super().__init__((HOST, port), _Answer)
        except OSError as error:
            in_use = error.errno == errno.EADDRINUSE
            reason = "is in use by another program" if in_use else f"cannot be opened ({error.strerror})"
            raise UserError(f"port {port} {reason}: choose another --port, or none to let the system choose") from None

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that leaves before it has its answer is no failure."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Answer(BaseHTTPRequestHandler):
    """The answer to one request; `server` is the Server."""

    server: Server
    timeout = 60  # of a connection that says nothing

    def do_GET(self) -> None:
        if not self._is_for_us():
            # A page of another site whose name leads here by its own name server would read the report.
            self._send(HTTPStatus.FORBIDDEN, "text/plain", "weft watch answers to 127.0.0.1 and localhost alone\n")
        elif self.path == "/":
            self._send(HTTPStatus.OK, "text/html", self.server.live.text())
        elif self.path == "/state":
            self._send(HTTPStatus.OK, "application/json", json.dumps(self.server.live.state()))
        else:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", "weft watch has one page: /\n")

    def _is_for_us(self) -> bool:
        return self.headers.get("Host", "") in {f"{name}:{self.server.server_port}" for name in (HOST, "localhost")}

    def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
        content = text.encode()
        self.send_response(status)
        for name, value in (
            ("Content-Type", f"{kind}; charset=utf-8"),
            ("Content-Length", str(len(content))),
            ("Cache-Control", "no-store"),
            ("Content-Security-Policy", _POLICY),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not worth a line each."""
