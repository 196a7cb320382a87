"""The model of PyG's convolutions that docs/layers.md shows, and the command below it, as they stand there."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import weft

pytest.importorskip("torch_geometric", reason="PyG is not installed")

SECTION = (Path(__file__).parents[2] / "docs" / "layers.md").read_text().partition("## PyG's convolutions")[2]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where the documented command has been run on the documented model, for two epochs."""
    folder = tmp_path_factory.mktemp("documented")
    (code,) = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
    (folder / "my_package").mkdir()
    (folder / "my_package" / "__init__.py").touch()
    (folder / "my_package" / "models.py").write_text(code)
    (command,) = re.findall(r"`(weft train .*?)`", SECTION)
    said = _weft(folder, *shlex.split(command)[1:], "--data", "synthetic:tiny", "--epochs", "2", "--run", "run")
    assert said.returncode == 0, said.stderr
    return folder


def _weft(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(weft.__file__).parents[1])}
    return subprocess.run(
        [sys.executable, "-m", "weft", *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )


def test_the_documented_command_trains_the_documented_model(trained: Path) -> None:
    summary = weft.Run(trained / "run").summary
    assert summary["workers"] == 4 and summary["strategy"] == "gsplit" and summary["epochs"] == 2
    assert summary["test_accuracy"] > 0


def test_its_run_is_evaluated_and_exported(trained: Path) -> None:
    evaluated = _weft(trained, "evaluate", "run")
    assert evaluated.returncode == 0, evaluated.stderr
    assert f"{100 * weft.Run(trained / 'run').summary['test_accuracy']:.2f}" in evaluated.stdout
    exported = _weft(trained, "export", "run", "--out", "said.csv")
    assert exported.returncode == 0, exported.stderr
    lines = (trained / "said.csv").read_text().splitlines()
    assert len(lines) == 1 + weft.load("synthetic:tiny").num_nodes
