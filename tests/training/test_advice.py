"""A run whose accuracy is that of one answer for every vertex says so at its end, and others do not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft.graph import from_edges, random_split
from weft.graph.graph import Graph


def graph_of(informative: bool) -> Graph:
    rng = np.random.default_rng(0)
    y = rng.choice(3, 400, p=[0.5, 0.3, 0.2])
    x = np.eye(3)[y] if informative else np.ones((400, 1))
    ring = np.arange(400)
    return random_split(from_edges(ring, np.roll(ring, 1), x=x, y=y, name="ring"), 0.5, 0.2)


@pytest.mark.parametrize("informative", [False, True])
def test_accuracy_of_the_largest_class(informative: bool, tmp_path: Path, capsys: Any) -> None:
    run = weft.train(
        graph_of(informative), model="sage", run=tmp_path / "run", train={"epochs": 15}, optim={"lr": 0.02}
    )
    summary, shown = run.summary, capsys.readouterr().out
    assert len(summary["notes"]) == (not informative), summary
    assert ("warning" in shown) == (not informative)
    if not informative:
        assert "no better than that of one answer for every vertex" in summary["notes"][0]
        assert abs(summary["test_accuracy"] - 0.5) < 0.15


def test_workers_judge_together_and_other_metrics_are_not_judged(tmp_path: Path) -> None:
    graph = graph_of(False)
    run = weft.train(graph, model="sage", workers=2, run=tmp_path / "two", quiet=True, train={"epochs": 2})
    assert len(run.summary["notes"]) == 1
    run = weft.train(graph, model="sage", run=tmp_path / "f1", quiet=True, train={"epochs": 2, "metric": "macro_f1"})
    assert run.summary["notes"] == []
