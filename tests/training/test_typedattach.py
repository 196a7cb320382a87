"""What a trained model says of vertices that came to a graph of types: what it says where they had been there."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.graph.test_typedattach import NEW, OLD, forget, tables, write
from weft.errors import UserError
from weft.results import rows_of_new
from weft.training.objective import input_rows

Graphs = tuple[weft.Graph, weft.Graph, weft.Graph]
SETTINGS: dict[str, Any] = {"quiet": True, "threads": 1, "partition": {"method": "random"}}
LEARN = {"epochs": 2, "precision": "float64"}
WITHOUT_TAGS = {"  tag:\n": "", "  - {name: has, source: item, destination: tag, file: has.csv, source_column: i, "
                "destination_column: t,\n     time_column: day, reverse: of}\n": ""}  # fmt: skip


def made(folder: Path, changes: dict[str, str]) -> Graphs:
    """The graph before, the one that vertices came to, and the one that was made at once."""
    old, new = tables()
    before = weft.ingest(write(folder / "old", old, **changes))
    whole = {name: old[name] + new[name] for name in old}
    at_once = weft.ingest(write(folder / "whole", whole, **changes), prepared_as=before.types)
    return before, weft.attach(before, write(folder / "new", new, **changes)), forget(at_once, before)


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Graphs:
    """Tags have learned rows."""
    return made(tmp_path_factory.mktemp("learned"), {})


def close(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> None:
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("strategy", "train"), [("full", {"times": "ignore"}), ("minibatch", {}), ("minibatch", {"task": "links"})]
)
def test_the_model_says_of_them_what_it_says_of_a_graph_that_had_them(
    strategy: str, train: dict[str, Any], tmp_path: Path
) -> None:
    before, found, at_once = made(tmp_path, WITHOUT_TAGS)
    model = {"name": "rgcn", "hidden": 8}
    run = weft.train(before, model, strategy, run=tmp_path / "run", train={**LEARN, **train}, **SETTINGS)
    for what in ("outputs", "embeddings"):
        wanted = run.predict(at_once, what=what)
        for workers in (1, 3):
            rows = run.predict(found, workers, what=what)
            close(rows.values, wanted.values)
            assert rows.ids.tolist() == wanted.ids.tolist()
            new = rows_of_new(rows, before, found)
            of_all = what == "embeddings" or "task" in train
            assert len(new.ids) == (sum(NEW.values()) if of_all else NEW["user"])
            assert [id for id in new.ids if str(id).startswith("u")] == wanted.ids[OLD["user"] :][
                : NEW["user"]
            ].tolist()


@pytest.mark.parametrize("name", ["hgt", "sage"])
def test_rows_that_were_learned_go_on_to_count(learned: Graphs, name: str, tmp_path: Path) -> None:
    before, found, at_once = learned
    settings = {**SETTINGS, "train": {**LEARN, "times": "ignore"}}
    run = weft.train(before, {"name": name, "hidden": 8}, run=tmp_path / "run", workers=2, **settings)
    model, part = run.model(), weft.open_part(at_once)
    assert model.embedding.shape == (3, 8)
    with torch.no_grad(), part.exact_pass() as view:
        wanted = model(view, input_rows(part, model, run.config.train))[: OLD["user"] + NEW["user"]]
    for workers in (1, 3):
        close(run.predict(found, workers).values, wanted.numpy())
    with pytest.raises(UserError, match="learned a row for each of its vertices"):
        run.predict(at_once)  # nobody says that its tags are those of the run


def test_new_vertices_of_other_types_alone_have_no_outputs(learned: Graphs, tmp_path: Path) -> None:
    before = learned[0]
    run = weft.train(before, {"name": "sage", "hidden": 8}, run=tmp_path / "run", **SETTINGS,
                     train={"epochs": 1, "times": "ignore"})  # fmt: skip
    _, new = tables()
    known = {row[0] for row in tables()[0]["users"]}
    some = {"items": new["items"], "has": new["has"], "users": [], "knows": []}
    some["buys"] = [row for row in new["buys"] if row[0] in known]
    description = write(tmp_path / "new", some)
    said = description.read_text()
    said = said[: said.index("  user:")] + "  user:\n" + said[said.index("  item:") : said.index("  - {name: knows")]
    description.write_text(said)
    found = weft.attach(before, description)
    with pytest.raises(UserError, match="none of the new vertices is of type 'user'"):
        rows_of_new(run.predict(found), before, found)
    assert len(rows_of_new(run.predict(found, what="embeddings"), before, found).ids) == NEW["item"]
