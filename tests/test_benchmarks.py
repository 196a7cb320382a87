"""Every benchmark imports what the package has: none of them runs in the tests."""

import importlib
from pathlib import Path

import pytest

NAMES = sorted(path.stem for path in (Path(__file__).parents[1] / "benchmarks").glob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_can_be_imported(name: str) -> None:
    importlib.import_module(f"benchmarks.{name}")
