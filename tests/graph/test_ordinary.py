"""An ordinary table of people: what ingest makes of it by itself is as good as what a careful person makes of it."""

from pathlib import Path

import numpy as np
import pytest
import torch

import weft
from tests.graph.ordinary import by_hand, ordinary
from weft.graph import ingest_edges
from weft.graph.graph import Graph

SPLIT = "random:0.5,0.2@3"


def accuracy(graph: Graph, model: str, folder: Path, seeds: int = 2) -> float:
    """The mean test accuracy over seeds."""
    values = []
    for seed in range(seeds):
        run = weft.train(
            graph, model=model, run=folder / f"{seed}", seed=seed, quiet=True,
            train={"epochs": 40, "eval_every": 10}, optim={"lr": 0.01},
        )  # fmt: skip
        values.append(run.summary["test_accuracy"])
    return float(np.mean(values))


def test_prepared_features_are_those_that_are_made_by_hand(tmp_path: Path) -> None:
    people = ordinary(400)
    edges, nodes = people.write(tmp_path)
    graph = ingest_edges(edges, features=nodes, id_column="person", label_columns=["tariff"], split=SPLIT)
    assert graph.x is not None and graph.train_mask is not None and graph.preparation is not None
    assert graph.original_ids is not None and graph.original_ids.tolist() == people.ids.tolist()
    np.testing.assert_allclose(graph.x.numpy(), by_hand(people, graph.train_mask.numpy()), atol=1e-5)
    assert graph.preparation.names[:4] == ["age", "age missing", "income", "income missing"]
    assert graph.preparation.of_training and graph.preparation.num_rows == int(graph.train_mask.sum())


@pytest.mark.parametrize("model", ["sage", "gat"])
def test_defaults_are_within_two_points_of_preparation_by_hand(model: str, tmp_path: Path) -> None:
    people = ordinary(2500)
    edges, nodes = people.write(tmp_path)
    files = {"features": nodes, "id_column": "person", "label_columns": ["tariff"], "split": SPLIT}
    prepared = ingest_edges(edges, **files)  # type: ignore[arg-type]
    assert prepared.train_mask is not None and prepared.class_names is not None
    hand = prepared.with_vertex_data(x=torch.from_numpy(by_hand(people, np.ones(people.ids.size, np.bool_))))
    ours, theirs = accuracy(prepared, model, tmp_path / "ours"), accuracy(hand, model, tmp_path / "theirs")
    assert ours > theirs - 0.02 and theirs > 0.6, (ours, theirs)
    columns = np.stack([np.nan_to_num(people.age), np.nan_to_num(people.income), people.owner], 1)
    raw = accuracy(prepared.with_vertex_data(x=torch.from_numpy(columns).float()), model, tmp_path / "raw", 1)
    assert raw < ours - 0.15, "the columns as they are would do as well, so that this test shows nothing"
