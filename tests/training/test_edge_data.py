"""Runs on a graph whose edges carry features and weights: read, evaluated, resumed, put on others, or told of."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.one_run import trained
from tests.sample.cases import a_graph
from weft.errors import UserError
from weft.graph import save_graph
from weft.graph.graph import Graph
from weft.report.page import write_report

BASE: dict[str, Any] = {
    "train": {"epochs": 3, "precision": "float64", "trace_epochs": 0}, "threads": 1, "seed": 3,
}  # fmt: skip
GAT = {"name": "gat", "hidden": 3, "heads": 2, "edge_weights": True}


def roads(seed: int = 5, features: bool = True, weighted: bool = True) -> Graph:
    graph = a_graph(weighted=weighted, seed=seed)
    csr = graph.adjacency
    assert csr.features is not None
    csr = replace(csr, features=csr.features / csr.features.abs().max() if features else None, relation=None)
    if weighted and csr.weight is not None:
        csr = replace(csr, weight=csr.weight / csr.weight.max())
    masks = {"val_mask": None, "test_mask": None, "timestamp": None, "table": None}
    return replace(graph, adjacency=csr, num_relations=0, name="roads").with_vertex_data(**masks)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("roads") / "graph"
    save_graph(roads(), folder)
    return str(folder)


def losses(run: Path) -> list[float]:
    return [record["train_loss"] for record in weft.Run(run).metrics]


@pytest.mark.parametrize("strategy", ["full", "gsplit"])
def test_a_run_reads_edges_on_any_number_of_workers_and_goes_on_where_it_was_stopped(
    tmp_path: Path, data: str, strategy: str
) -> None:
    settings = {**BASE, "data": data, "model": GAT, "strategy": strategy}
    if strategy != "full":
        settings["sample"] = {"batch": 12, "fanout": [3, 3]}
    alone = trained(tmp_path / "one", {**settings, "workers": 1})
    assert not any("does not read" in note for note in alone["notes"])
    trained(tmp_path / "three", {**settings, "workers": 3})
    np.testing.assert_allclose(losses(tmp_path / "three"), losses(tmp_path / "one"), rtol=1e-9)
    trained(tmp_path / "stopped", {**settings, "workers": 1}, stop_after=1)
    again = trained(tmp_path / "stopped", {**settings, "workers": 1}, resume=True)
    assert again["weights_sha256"] == alone["weights_sha256"]
    runs = [weft.Run(tmp_path / name) for name in ("one", "three")]
    one, three = (run.outputs().values for run in runs)
    np.testing.assert_allclose(three, one, rtol=1e-9, atol=1e-11)
    assert runs[1].evaluate() == pytest.approx(runs[0].evaluate())
    assert runs[0].model().layers[0].edges == weft.layers.EdgeReads(2, True)


def test_a_trained_model_reads_the_edges_of_another_graph(tmp_path: Path, data: str) -> None:
    trained(tmp_path / "run", {**BASE, "data": data, "model": GAT, "workers": 1})
    run, other = weft.Run(tmp_path / "run"), roads(seed=6)
    found = run.predict(other).values
    np.testing.assert_allclose(run.predict(other, workers=2).values, found, rtol=1e-9, atol=1e-11)
    csr = other.adjacency
    assert csr.features is not None
    turned = replace(other, adjacency=replace(csr, features=-csr.features))
    assert np.abs(run.predict(turned).values - found).max() > 1e-3
    with pytest.raises(UserError, match="roads' has 0 edge features and the run's model was trained on 2"):
        run.predict(roads(features=False))
    with pytest.raises(UserError, match="GAT reads edge weights, and edges of roads have none"):
        run.predict(roads(weighted=False))


@pytest.mark.parametrize("model", [GAT, {"name": "sage", "edge_weights": True}, {"name": "sage", "reduce": "max"}])
def test_a_restricted_pass_reads_the_edges_that_are_left(tmp_path: Path, model: dict[str, Any]) -> None:
    """Two training vertices of a graph with few edges: most vertices are left out, and no number changes."""
    graph = a_graph(num_edges=90)
    csr = graph.adjacency
    csr = replace(csr, relation=None, weight=torch.rand(csr.num_edges, generator=torch.Generator().manual_seed(1)))
    assert csr.features is not None and graph.y is not None
    csr = replace(csr, features=csr.features / 8)
    train = torch.zeros(60, dtype=torch.bool)
    train[(graph.y >= 0).nonzero().squeeze(1)[:2]] = True
    masks = {"train_mask": train, "val_mask": ~train, "test_mask": None}
    save_graph(replace(graph, adjacency=csr, num_relations=0).with_vertex_data(**masks), tmp_path / "graph")
    settings = {**BASE, "data": str(tmp_path / "graph"), "model": model, "workers": 2}
    for name, restrict in (("whole", "never"), ("cut", "always")):
        trained(tmp_path / name, {**settings, "memory": {"restrict": restrict}})
    np.testing.assert_allclose(losses(tmp_path / "cut"), losses(tmp_path / "whole"), rtol=1e-9)


def test_edges_that_are_not_read_are_told_of_once_and_in_the_report(tmp_path: Path, data: str, capfd: Any) -> None:
    for name, model, said in (
        (
            "gcn",
            {"name": "gcn"},
            "have features that gcn does not read: features are read by gat, gatv2, sage, transformer",
        ),
        ("gin", {"name": "gin"}, "have features and weights that gin does not read"),
        ("sage", {"name": "sage"}, "weights are read by this model with model.edge_weights=true"),
        ("off", {"name": "gat", "edge_features": "off"}, "have weights that gat does not read"),
        ("all", {"name": "sage", "edge_weights": True}, ""),
        ("neither", {"name": "gat", "edge_weights": True, "edge_features": "off"}, ""),
    ):
        run = weft.train(data, model={**model, "hidden": 4}, run=tmp_path / name, threads=1, train={"epochs": 1})
        shown = "".join(capfd.readouterr())
        notes = [note for note in run.summary["notes"] if "does not read" in note]
        assert len(notes) == bool(said) and shown.count("does not read") == bool(said), name
        assert said in "".join(notes)
    page = write_report([tmp_path / "gcn", tmp_path / "sage", tmp_path / "all"], tmp_path / "page.html").read_text()
    assert "Warnings" in page and page.count("does not read") == 2
    assert "gcn: the edges of roads have features that gcn does not read" in page
    assert "does not read" not in write_report([tmp_path / "all"], tmp_path / "one.html").read_text()


def test_minibatches_that_are_drawn_by_weight_read_weights(tmp_path: Path, data: str) -> None:
    sample = {"batch": 12, "fanout": [3, 3], "method": "weighted"}
    settings = {**BASE, "data": data, "model": {"name": "sage"}, "strategy": "batchgnn", "sample": sample}
    notes = trained(tmp_path / "run", {**settings, "workers": 1})["notes"]
    assert not any("does not read" in note for note in notes)


def test_functions_carry_weights_of_sums_and_no_features(tmp_path: Path, data: str) -> None:
    model = {"name": "sage", "edge_weights": True, "edge_features": "off", "hidden": 4, "dropout": 0.0}
    settings = {**BASE, "data": data, "model": model, "workers": 2}
    trained(tmp_path / "full", settings)
    away = {**settings, "strategy": "dorylus", "executor": {"name": "inline", "intervals": 2}}
    trained(tmp_path / "away", away)
    np.testing.assert_allclose(losses(tmp_path / "away"), losses(tmp_path / "full"), rtol=1e-9)
    for name, model in (
        ("gat", {"name": "gat"}),
        ("sage", {"name": "sage"}),
        ("w", {"name": "gat", "edge_weights": True}),
    ):
        with pytest.raises(UserError, match=r"reads what edges carry: set model\.edge_"):
            weft.train(data, run=tmp_path / name, quiet=True, **{**BASE, "model": model}, strategy="dorylus",
                       executor={"name": "inline", "intervals": 2})  # fmt: skip


def test_codecs_that_would_bias_logits_are_refused(tmp_path: Path, data: str) -> None:
    settings = {**BASE, "train": {"epochs": 1}, "workers": 2, "exchange": {"codec": "int8"}, "quiet": True}
    with pytest.raises(
        UserError, match=r"attention that reads edges makes its logits of the rows.*: use codec raw or bf16"
    ):
        weft.train(data, model="gat", run=tmp_path / "gat", **settings)
    weft.train(data, model={"name": "gat", "edge_features": "off"}, run=tmp_path / "off", **settings)
    weft.train(data, model="sage", run=tmp_path / "sage", **settings)


def test_embeddings_of_links_read_edges(tmp_path: Path, data: str) -> None:
    settings = {
        **BASE, "train": {**BASE["train"], "task": "links"}, "data": data, "model": GAT, "strategy": "batchgnn",
        "sample": {"batch": 40, "fanout": [3, 3]}, "link": {"exclude": True},
    }  # fmt: skip
    trained(tmp_path / "one", {**settings, "workers": 1})
    trained(tmp_path / "three", {**settings, "workers": 3})
    np.testing.assert_allclose(losses(tmp_path / "three"), losses(tmp_path / "one"), rtol=1e-9)
    assert torch.isfinite(torch.from_numpy(weft.Run(tmp_path / "one").outputs().values)).all()
