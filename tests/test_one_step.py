"""docs/one-step.md shows the frames that a step goes through, from a worker's main function to the wire."""

import json
import re
from pathlib import Path

import pytest

from tests import frames_of_a_step
from weft.config import make_config
from weft.run import start

PAGE = Path(__file__).parents[1] / "docs" / "one-step.md"
LONGEST = 17  # frames of a forward pass over the full graph, the call of Communicator.post included


def frames_under(heading: str) -> list[tuple[str, str]]:
    """File and function of every numbered row of the table under a heading of the page."""
    section = PAGE.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| \d+ \| `([\w/]+\.py)` \| `(\w+)` \|", section, re.MULTILINE)


def recorded(folder: Path, kind: str) -> list[tuple[str, str]]:
    """The frames of the first message of a class, from the worker's main function on, and the one that posts it."""
    found = [tuple(frame) for frame in json.loads((folder / f"0-{kind}.json").read_text())]
    begin = found.index(("weft/launch/worker_main.py", "main"))
    return [*found[begin:], ("weft/comm/communicator.py", "post")]


@pytest.fixture(scope="module")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("frames")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(frames_of_a_step.OUT, str(folder))
        settings = {
            "data": "synthetic:tiny", "run": str(folder / "run"), "workers": 2, "threads": 1,
            "model": {"name": "tests.frames_of_a_step:build"}, "train": {"epochs": 1, "eval_every": 0},
        }  # fmt: skip
        start(make_config(settings), quiet=True)
    return folder


def test_the_page_shows_the_way_from_main_to_the_wire(stacks: Path) -> None:
    assert frames_under("Forward: from main to the wire") == recorded(stacks, "hidden_forward")


def test_the_page_shows_the_way_of_gradients(stacks: Path) -> None:
    assert frames_under("Backward: from main to the wire") == recorded(stacks, "hidden_backward")


def test_the_way_is_short(stacks: Path) -> None:
    assert len(recorded(stacks, "hidden_forward")) <= LONGEST
