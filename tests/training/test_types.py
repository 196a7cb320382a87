"""Runs on graphs of several types of vertices: the same on any number of workers, exported, resumed, reused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import weft
from tests.graph.typed import COUNTS, hetero
from weft.errors import UserError
from weft.graph import save_graph
from weft.layers import ModelConfig
from weft.training.summary import weights_digest

MODELS = {"hgt": {"heads": 2}, "rgat": {"heads": 2}, "rgcn": {}}
SETTINGS: dict[str, Any] = {"quiet": True, "threads": 1}


def train(graph: Any, run: Path, name: str = "hgt", workers: int = 1, epochs: int = 3, **more: Any) -> weft.Run:
    model = {"name": name, "hidden": 8, **MODELS.get(name, {})}
    settings = {"train": {"epochs": epochs, "precision": "float64"}, "partition": {"method": "random"}, **SETTINGS}
    return weft.train(graph, model=model, run=run, workers=workers, **settings, **more)


def losses(run: weft.Run) -> list[float]:
    return [record["train_loss"] for record in run.metrics]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("strategy", ["full", "sar", "gsplit"])
def test_losses_do_not_depend_on_workers(name: str, strategy: str, tmp_path: Path) -> None:
    more: dict[str, Any] = {"strategy": strategy}
    if strategy == "gsplit":
        more["sample"] = {"batch": 8, "fanout": (3, 2)}
    one, four = (train(hetero(), tmp_path / f"{w}", name, w, **more) for w in (1, 4))
    np.testing.assert_allclose(losses(one), losses(four), rtol=1e-9)
    assert losses(one)[-1] < losses(one)[0]
    for metric, value in one.evaluate().items():
        assert four.evaluate()[metric] == pytest.approx(value)
    np.testing.assert_allclose(one.outputs().values, four.outputs().values, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("more", [
    {"exchange": {"schedule": "overlapped"}},
    {"memory": {"restrict": "always"}},
    {"memory": {"rematerialise": True}},
    {"strategy": "batchgnn", "sample": {"batch": 8, "fanout": (3, 2), "hot_mib": 0.001}},
    {"strategy": "minibatch", "sample": {"batch": 8, "fanout": (3, 2)}},
], ids=["overlapped", "restricted", "rematerialised", "batchgnn", "minibatch"])  # fmt: skip
def test_other_ways_to_train_give_the_same_numbers(more: dict[str, Any], tmp_path: Path) -> None:
    graph = weft.from_pyg(hetero(learned=False))
    same = {"sample": more["sample"]} if "sample" in more else {}
    plain = train(graph, tmp_path / "plain", strategy="minibatch" if same else "full", **same)
    np.testing.assert_allclose(losses(train(graph, tmp_path / "other", workers=3, **more)), losses(plain), rtol=1e-9)


def test_exports_name_vertices_within_their_types(tmp_path: Path) -> None:
    graph = weft.from_pyg(hetero())
    run = train(graph, tmp_path / "run", workers=3)
    table = run.outputs().table("predictions").to_pydict()
    assert table["id"] == list(range(COUNTS["user"])) and set(table["type"]) == {"user"}
    assert graph.y is not None and table["target"] == graph.y[: COUNTS["user"]].tolist()
    assert table["split"].count("train") == 18
    rows = run.outputs(what="embeddings").table("embeddings").to_pydict()
    assert rows["type"] == [kind for kind, count in COUNTS.items() for _ in range(count)]
    assert rows["id"] == [number for count in COUNTS.values() for number in range(count)]


def test_a_run_goes_on_with_the_rows_that_it_learned(tmp_path: Path) -> None:
    graph = weft.from_pyg(hetero())
    save_graph(graph, tmp_path / "graph")
    data = str(tmp_path / "graph")
    whole = train(data, tmp_path / "whole", epochs=4)
    train(data, tmp_path / "parts", epochs=2, workers=3)
    resumed = train(data, tmp_path / "parts", epochs=4, resume=True)
    np.testing.assert_allclose(losses(resumed), losses(whole), rtol=1e-9)
    again = train(data, tmp_path / "again", epochs=2)
    again = train(data, tmp_path / "again", epochs=4, resume=True)
    assert again.summary["weights_sha256"] == whole.summary["weights_sha256"]
    model = again.model()
    assert weights_digest(model.state_dict()) == again.summary["best_weights_sha256"]
    embedding = model.embedding
    assert isinstance(embedding, nn.Parameter) and embedding.shape == (COUNTS["tag"], 8)


def test_a_model_predicts_for_another_graph_of_the_same_types(tmp_path: Path) -> None:
    run = train(hetero(learned=False), tmp_path / "run")
    found = run.predict(hetero(learned=False, seed=9), workers=3)
    assert found.values.shape == (COUNTS["user"], 3) and found.accuracy is not None
    same = run.predict(hetero(learned=False))
    np.testing.assert_allclose(same.values, run.outputs().values, rtol=1e-9)
    other = hetero(learned=False)
    other["item"].x = torch.ones(COUNTS["item"], 4)
    with pytest.raises(UserError, match=r"type 'item' of .* has 4 features and the run's model was trained on 3"):
        run.predict(other)
    with pytest.raises(UserError, match="has 1 type of vertices and the run's model was trained on 3"):
        run.predict("synthetic:tiny")
    learned = train(hetero(), tmp_path / "learned")
    with pytest.raises(UserError, match="learned a row for each of its vertices"):
        learned.predict(hetero(seed=9))


class Own(nn.Module):
    """A model of a user's own that sees rows of one width."""

    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__()
        self.lin = nn.Linear(num_in, num_out)

    def forward(self, graph: weft.GraphView, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.lin(graph.own(x) + graph.aggregate(x, "mean"))
        return out


def own_model(num_in: int, num_out: int, config: ModelConfig) -> nn.Module:
    return Own(num_in, num_out)


def test_a_model_of_ones_own_stands_behind_the_encoder(tmp_path: Path) -> None:
    model = {"name": "tests.training.test_types:own_model", "hidden": 8}
    settings = {"train": {"epochs": 3, "precision": "float64"}, "partition": {"method": "random"}, **SETTINGS}
    one, three = (weft.train(hetero(), model=model, run=tmp_path / f"{w}", workers=w, **settings) for w in (1, 3))
    np.testing.assert_allclose(losses(one), losses(three), rtol=1e-9)


def test_links_of_a_relation_are_learned(tmp_path: Path) -> None:
    more = {"link": {"relations": ("user buys item",), "negatives": 2}}
    runs = []
    for workers in (1, 3):
        settings = {"train": {"epochs": 3, "precision": "float64", "task": "links"}, "partition": {"method": "random"}}
        model = {"name": "rgcn", "hidden": 8}
        runs.append(
            weft.train(
                hetero(), model=model, run=tmp_path / f"{workers}", workers=workers, **settings, **SETTINGS, **more
            )
        )
    np.testing.assert_allclose(losses(runs[0]), losses(runs[1]), rtol=1e-9)
    rows = runs[0].outputs(what="embeddings")
    assert rows.types is not None and len(rows.ids) == sum(COUNTS.values())


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="executors pool and lambda need features: learned rows change"):
        train(hetero(), tmp_path / "run", "sage", strategy="dorylus")
    with pytest.raises(UserError, match="not RGCN: use executor inline"):
        train(hetero(learned=False), tmp_path / "rgcn", "rgcn", strategy="dorylus")
    with pytest.raises(UserError, match="model hgt learns from vertices of several types"):
        train("synthetic:relational?nodes=100", tmp_path / "other")
    with pytest.raises(UserError, match=r"in the 8 columns of model\.hidden: choose a multiple of model.heads"):
        weft.train(hetero(), model={"name": "hgt", "hidden": 8, "heads": 3}, run=tmp_path / "third", **SETTINGS)
    with pytest.raises(UserError, match="a softmax of rounded logits is biased"):
        train(hetero(), tmp_path / "fourth", workers=2, exchange={"codec": "int8"})
    with pytest.raises(UserError, match="describe the tables of new vertices and of their edges in a file"):
        weft.attach(weft.from_pyg(hetero()), "edges.csv", "nodes.csv")
