"""The command line, called in this process."""

import sys

import pytest

from weft.cli import app as cli


@pytest.fixture
def weft(monkeypatch, capsys, tmp_path):
    """Runs `weft ARGS` in an empty folder; gives (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["weft", *map(str, args)])
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
