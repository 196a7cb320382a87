"""The code of docs/python.md runs, block after block, as in a notebook."""

import re
from pathlib import Path

import pytest
import torch

PAGE = (Path(__file__).parents[1] / "docs" / "python.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SMALL_DEMO = "synthetic:demo?nodes=1200,communities=24"  # what the page shows, in seconds


def test_the_page_runs_from_its_beginning_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    random = torch.get_rng_state()
    found: dict[str, object] = {}
    for block in BLOCKS:
        exec(block.replace("synthetic:demo?", f"{SMALL_DEMO},").replace('"synthetic:demo"', f'"{SMALL_DEMO}"'), found)
    torch.set_rng_state(random)
    assert len(BLOCKS) >= 2 and found["run"] == found["same"]
