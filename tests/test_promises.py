"""Every promise in docs/promises.md names tests that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEADER = ["promise", "covers", "does not cover", "shown by"]
TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")


def table_rows() -> list[list[str]]:
    """The cells of every row of every table, headers left out."""
    lines = (ROOT / "docs" / "promises.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [row for row in rows if row != HEADER and not set("".join(row)) <= set("-: ")]


def functions_of(file: Path) -> set[str]:
    tree = ast.parse(file.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", table_rows(), ids=lambda row: re.sub(r"\W+", "-", row[0])[:40])
def test_a_promise_names_what_shows_it(row: list[str]) -> None:
    assert len(row) == len(HEADER), f"{len(row)} cells: {row}"
    assert all(row), f"an empty cell: {row}"
    named = TEST.findall(row[3])
    assert named, f"no test is named: {row[3]}"
    for file, name in named:
        path = ROOT / "tests" / file
        assert path.is_file(), f"tests/{file} does not exist"
        assert name in functions_of(path), f"tests/{file} has no {name}"


def test_there_are_promises() -> None:
    assert len(table_rows()) > 20
