"""docs/examples.md: its commands run word for word and print what the page shows; the notebook's cells run."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.pages import Block, blocks_of, missing_lines, run_command

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "examples.md").read_text()
SECTIONS = {part.splitlines()[0]: blocks_of(part) for part in PAGE.split("\n## ")[1:]}
RUN = {title: blocks for title, blocks in SECTIONS.items() if blocks}
NOTEBOOK = ROOT / "examples" / "notebook.ipynb"


@pytest.mark.parametrize("blocks", RUN.values(), ids=[title.split()[0] for title in RUN])
def test_the_commands_print_what_the_page_shows(
    blocks: list[Block], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    for block in blocks:
        for command in block.commands:
            run_command(command, monkeypatch)
        captured = capsys.readouterr()
        assert not missing_lines(block.shown, captured.err + captured.out), captured.out


def test_recommendations_beat_the_most_popular_items() -> None:
    """The page says so of what the test above finds to be printed."""
    popular, learned = (re.findall(rf"^{name}: MRR ([\d.]+)$", PAGE, re.MULTILINE) for name in ("most popular", "weft"))
    assert len(learned) == 2, "of the graph without columns, and of the one with types and dates"
    assert all(float(ours) > 1.5 * float(theirs) for ours, theirs in zip(learned, popular, strict=True))


def test_every_script_of_a_folder_is_on_the_page() -> None:
    scripts = {str(path.relative_to(ROOT)) for path in (ROOT / "examples").glob("*/*.py")}
    commands = {word for blocks in RUN.values() for block in blocks for line in block.commands for word in line.split()}
    commands |= set((ROOT / "docs" / "types.md").read_text().split())  # which tests/cli/test_types.py follows
    assert len(scripts) >= 7 and scripts <= commands
    assert re.search(rf"jupyter notebook {NOTEBOOK.relative_to(ROOT)}", PAGE)


def test_a_line_that_is_not_printed_is_noticed() -> None:
    printed = "epoch 1\n│ test accuracy │ 97.75 % │\nwritten to a/b"
    assert not missing_lines("...\n│ test accuracy  │ 97.2 % │\nwritten to a/b\n", printed)
    assert missing_lines("│ test accuracy │ 80.1 % │", printed) == ["│ test accuracy │ 80.1 % │"]
    assert missing_lines("written to a/c", printed) == ["written to a/c"]
    assert missing_lines("written to a/b\nepoch 1", printed) == ["epoch 1"], "the order counts"


def texts_of(cells: list[Any]) -> list[str]:
    """What each cell printed."""
    outputs = [[each for each in cell["outputs"] if each.get("name") == "stdout"] for cell in cells]
    return ["".join("".join(each["text"]) for each in found) for found in outputs]


def test_the_notebook_runs_and_prints_what_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    client.NotebookClient(notebook, timeout=280, kernel_name="python3", resources=resources).execute(env=os.environ)
    was = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    now = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for shown, printed in zip(texts_of(was), texts_of(now), strict=True):
        assert not missing_lines(shown, printed), printed
    assert any("image/png" in each.get("data", {}) for cell in now for each in cell.outputs)
    assert any("2 workers" in text for text in texts_of(now))
