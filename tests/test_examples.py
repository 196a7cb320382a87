"""The scripts of examples/, on one process and under torchrun on two, and the code of docs/own-loop.md."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import weft

ROOT = Path(__file__).parents[1]
DATA = "synthetic:tiny?nodes=600"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
SETTINGS = {"full_graph_loop": ["20"], "minibatch_loop": ["6"], "pyg_model": ["6", "-1"]}  # epochs; neighbours: all


def run(*command: str) -> "subprocess.CompletedProcess[str]":
    variables = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, timeout=280
    )


def said(done: "subprocess.CompletedProcess[str]") -> tuple[list[float], float]:
    """The losses and the accuracy that an example printed."""
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"^epoch \d+: loss ([\d.]+)$", done.stdout, re.MULTILINE)]
    (accuracy,) = re.findall(r"^test accuracy ([\d.]+)$", done.stdout, re.MULTILINE)
    return losses, float(accuracy)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples") / "parts"
    weft.partition(DATA, 2, folder, method="random")
    return folder


def largest_class() -> float:
    """The accuracy of naming the largest class of the test vertices for each of them."""
    graph = weft.load(DATA)
    assert graph.y is not None and graph.test_mask is not None
    counts = graph.y[graph.test_mask].bincount()
    return float(counts.max() / counts.sum())


@pytest.mark.parametrize("name", SETTINGS)
def test_an_example_learns_the_same_on_one_process_and_on_two(name: str, parts: Path) -> None:
    if name == "pyg_model":
        pytest.importorskip("torch_geometric")
    script, settings = f"examples/{name}.py", SETTINGS[name]
    losses, accuracy = said(run(script, DATA, *settings))
    assert len(losses) == int(settings[0]) and losses[-1] < 0.7 * losses[0]
    assert accuracy > largest_class() + 0.2
    again, there = said(run(*TORCHRUN, script, str(parts), *settings))
    assert again == pytest.approx(losses, rel=1e-4, abs=1e-5)
    assert there == pytest.approx(accuracy, abs=0.02)


def test_every_example_is_run() -> None:
    assert {file.stem for file in (ROOT / "examples").glob("*.py")} == set(SETTINGS)


# -- docs/own-loop.md ------------------------------------------------------------------------------------------------

PAGE = (ROOT / "docs" / "own-loop.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SMALL_DEMO = "synthetic:demo?nodes=1200,communities=24"  # what the page shows, in seconds


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the page's blocks run: a folder with a partition `parts`."""
    found = tmp_path_factory.mktemp("page")
    weft.partition(SMALL_DEMO, 1, found / "parts", method="random")
    return found


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_a_block_of_the_page_runs(block: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "torch_geometric" in block:
        pytest.importorskip("torch_geometric")
    monkeypatch.chdir(folder)
    random = torch.get_rng_state()
    found: dict[str, object] = {}
    exec(block.replace("synthetic:demo", SMALL_DEMO), found)
    torch.set_rng_state(random)
    weights = found["model"].state_dict().values()  # type: ignore[attr-defined]
    assert all(tensor.isfinite().all() for tensor in weights)


def test_the_page_names_every_example() -> None:
    named = set(re.findall(r"\.\./examples/(\w+)\.py", PAGE))
    assert named == set(SETTINGS) and len(BLOCKS) == 4
    assert "torchrun --nproc-per-node 2 examples/full_graph_loop.py parts" in PAGE
