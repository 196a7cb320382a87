"""Commands of a page and what they print, run in one process; and whether what a page shows is what they print."""

import re
import runpy
import shlex
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from weft.cli import app

NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")


class Block(NamedTuple):
    """A block of commands, and the output that the page shows below it."""

    commands: list[str]
    shown: str


def blocks_of(section: str) -> list[Block]:
    found = re.findall(r"```sh\n(.*?)```\n\n```text\n(.*?)```", section, re.DOTALL)
    return [Block(commands.strip().splitlines(), shown) for commands, shown in found]


def run_command(command: str, patch: pytest.MonkeyPatch) -> None:
    """`weft`, `python SCRIPT` and `head -N FILE`, as a shell would run them, but in this process, to save seconds."""
    program, *arguments = shlex.split(command)
    state = torch.get_rng_state()
    if program == "head":
        lines = Path(arguments[1]).read_text().splitlines()
        print("\n".join(lines[: -int(arguments[0])]))
    elif program == "python":
        patch.setattr(sys, "argv", arguments)
        runpy.run_path(arguments[0], run_name="__main__")
    else:
        assert program == "weft", command
        patch.setattr(sys, "argv", ["weft", *arguments])
        try:
            app.main()
        except SystemExit as end:
            assert not end.code, command
    torch.set_rng_state(state)


def missing_lines(shown: str, printed: str) -> list[str]:
    """Lines that a page shows and that were not printed, in this order; figures may differ by a few per cent."""
    rest, missing = [_plain(line) for line in printed.splitlines()], []
    for line in shown.splitlines():
        plain = _plain(line)
        if plain == "...":
            continue
        place = next((number for number, other in enumerate(rest) if _same(plain, other)), None)
        if place is None:
            missing.append(line)
        else:
            rest = rest[place + 1 :]
    return missing


def _plain(line: str) -> str:
    """Without the widths of a table, which numbers change."""
    return " ".join(re.sub(r"[│┃─━┌┐└┘┏┓┡┩╇┳┬┴┻├┤┼╷╵╭╮╰╯]+", " ", line).split())


def _same(shown: str, printed: str) -> bool:
    if NUMBER.sub("#", shown) != NUMBER.sub("#", printed):
        return False
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True)
    return all(_close(float(a.replace(",", "")), float(b.replace(",", ""))) for a, b in pairs)


def _close(shown: float, printed: float) -> bool:
    return abs(shown - printed) <= max(0.01, 0.05 * abs(shown))
