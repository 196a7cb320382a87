"""A graph of types with vertices attached is the graph that would have been made of all tables at once."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.graph.test_interop import same
from tests.graph.typed import COUNTS, WIDTHS, hetero
from weft.errors import UserError
from weft.graph import load_graph, save_graph

Table = list[list[Any]]
OLD, NEW = {"user": 40, "item": 20}, {"user": 9, "item": 4}
TAGS = ("books", "food", "toys")
DESCRIPTION = """
name: shop
target: user
types:
  user: {file: users.csv, id: who, label: segment, split: "random:0.5,0.2@0", time_column: asked}
  item: {file: items.csv, id: sku, log: price, learned_columns: brand}
  tag:
relations:
  - {name: buys, source: user, destination: item, file: buys.csv, source_column: u, destination_column: i,
     weight_column: amount, edge_features: [hour], time_column: day, reverse: true}
  - {name: has, source: item, destination: tag, file: has.csv, source_column: i, destination_column: t,
     time_column: day, reverse: of}
  - {name: knows, source: user, destination: user, file: knows.csv, source_column: a, destination_column: b,
     time_column: day}
"""
HEADS = {
    "users": ["who", "age", "town", "segment", "asked"],
    "items": ["sku", "price", "brand"],
    "buys": ["u", "i", "amount", "hour", "day", "basket"],
    "has": ["i", "t", "day"],
    "knows": ["a", "b", "day"],
}


def tables() -> tuple[dict[str, Table], dict[str, Table]]:
    """Rows of the old tables, and those that come: an edge comes where one of its ends does, and some between old."""
    rng = np.random.default_rng(3)
    date = [f"2024-0{1 + k // 28}-{1 + k % 28:02}" for k in range(84)]
    counts = {kind: OLD[kind] + NEW[kind] for kind in OLD}
    users = [[f"u{(7 * k) % 53}", round(rng.normal(40, 9), 2) if k % 5 else "", ["rome", "oslo"][k % 2],
              "ab"[k % 2], date[rng.integers(84)]] for k in range(counts["user"])]  # fmt: skip
    items = [[100 - k, round(float(rng.lognormal()), 3), f"brand-{k % 6}"] for k in range(counts["item"])]
    who, sku = [row[0] for row in users], [row[0] for row in items]
    drawn: dict[str, list[tuple[tuple[int, ...], list[Any]]]] = {"buys": [], "has": [], "knows": []}
    for _ in range(300):
        u, i = int(rng.integers(counts["user"])), int(rng.integers(counts["item"]))
        more = [int(rng.integers(1, 5)), round(rng.random(), 3), date[rng.integers(84)], len(drawn["buys"])]
        drawn["buys"].append(((u - OLD["user"], i - OLD["item"]), [who[u], sku[i], *more]))
        a, b = (int(end) for end in rng.integers(counts["user"], size=2))
        drawn["knows"].append(((a - OLD["user"], b - OLD["user"]), [who[a], who[b], date[rng.integers(84)]]))
    for i in range(counts["item"]):
        drawn["has"].append(((i - OLD["item"],), [sku[i], TAGS[i % 3], date[rng.integers(84)]]))
    old: dict[str, Table] = {"users": users[: OLD["user"]], "items": items[: OLD["item"]]}
    new: dict[str, Table] = {"users": users[OLD["user"] :], "items": items[OLD["item"] :]}
    for name, edges in drawn.items():
        comes = [max(ends) >= 0 or k % 7 == 0 for k, (ends, _) in enumerate(edges)]
        old[name] = [row for (_, row), late in zip(edges, comes, strict=True) if not late]
        new[name] = [row for (_, row), late in zip(edges, comes, strict=True) if late]
    return old, new


def write(folder: Path, rows: dict[str, Table], **changes: str) -> Path:
    """The tables, and their description with other words in it."""
    folder.mkdir(parents=True)
    for name, lines in rows.items():
        text = [",".join(map(str, line)) for line in (HEADS[name], *lines)]
        (folder / f"{name}.csv").write_text("\n".join(text) + "\n")
    said = DESCRIPTION
    for before, after in changes.items():
        said = said.replace(before, after)
    (folder / "graph.yaml").write_text(said)
    return folder / "graph.yaml"


def forget(graph: weft.Graph, before: weft.Graph) -> weft.Graph:
    """The whole graph without what nobody knows of new vertices: labels and splits. Old ones keep those of before."""
    assert graph.types is not None and before.types is not None
    y = torch.full_like(graph.y, -1)
    y[: OLD["user"]] = before.y[: OLD["user"]]
    masks = {}
    for split, mask in before.masks.items():
        masks[f"{split}_mask"] = torch.zeros(graph.num_nodes, dtype=torch.bool)
        masks[f"{split}_mask"][: OLD["user"]] = mask[: OLD["user"]]
    return graph.with_vertex_data(y=y, **masks)


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, weft.Graph, weft.Graph, weft.Graph]:
    """The folder of tables; the old graph, the one that vertices came to, and the one that was made at once."""
    folder = tmp_path_factory.mktemp("attach")
    old, new = tables()
    before = weft.ingest(write(folder / "old", old))
    whole = {name: old[name] + new[name] for name in old}
    at_once = weft.ingest(write(folder / "whole", whole), prepared_as=before.types)
    found = weft.attach(before, write(folder / "new", new))
    return folder, before, found, at_once


def equal(found: weft.Graph, wanted: weft.Graph) -> None:
    time = found.time, wanted.time  # NaN where it is not known
    torch.testing.assert_close(*time, rtol=0, atol=0, equal_nan=True)
    same(found.with_vertex_data(time=None), wanted.with_vertex_data(time=None))
    for name, rows in wanted.adjacency.edge_data.items():
        assert torch.equal(found.adjacency.edge_data[name], rows), name
    assert found.types is not None and wanted.types is not None
    assert [(one.name, one.count, one.num_features) for one in found.types.vertices] == [
        (one.name, one.count, one.num_features) for one in wanted.types.vertices
    ]
    assert found.types.starts == wanted.types.starts and found.types.ends == wanted.types.ends
    assert found.types.target == wanted.types.target and found.types.reverses == wanted.types.reverses


def test_attached_vertices_are_as_if_they_had_been_there(graphs: Any, tmp_path: Path) -> None:
    _, before, found, at_once = graphs
    equal(found, forget(at_once, before))
    assert found.num_nodes == before.num_nodes + sum(NEW.values()) and found.name == before.name
    assert found.original_ids is not None and before.original_ids is not None
    assert found.original_ids[: OLD["user"]].tolist() == before.original_ids[: OLD["user"]].tolist()
    save_graph(found, tmp_path / "g")
    equal(load_graph(tmp_path / "g"), found)


def test_vertices_may_come_one_after_another(graphs: Any, tmp_path: Path) -> None:
    _, before, found, _ = graphs
    _, new = tables()
    first = {"users": new["users"], "items": [], "knows": new["knows"]}
    known = {row[0] for row in tables()[0]["items"]}
    for name, place in (("buys", 1), ("has", 0)):
        first[name] = [row for row in new[name] if row[place] in known]
    then = {name: [row for row in new[name] if row not in first[name]] for name in new}
    description = write(tmp_path / "first", first)
    description.write_text(description.read_text().replace("item: {file: items.csv, id: sku, log: price, "
                           "learned_columns: brand}", "item:"))  # fmt: skip
    step = weft.attach(before, description)
    description = write(tmp_path / "then", then)
    said = description.read_text()
    at = said.index("  user:"), said.index("  item:")
    said = said[: at[0]] + "  user:\n" + said[at[1] :]
    description.write_text(said[: said.index("  - {name: knows")])
    again = weft.attach(step, description)
    assert again.meta["attached_to"] == found.meta["attached_to"] == before.fingerprint
    csr, wanted = again.adjacency, found.adjacency
    assert torch.equal(csr.indptr, wanted.indptr) and torch.equal(csr.indices, wanted.indices)
    assert again.original_ids.tolist() == found.original_ids.tolist()


def test_ids_may_be_numbers_and_reverses_may_be_listed(tmp_path: Path) -> None:
    """Of PyG, which has no files: types keep counting, and edges of either direction bring those of the other."""
    data = hetero()
    graph = weft.from_pyg(data)
    assert graph.types is not None
    count = COUNTS["user"]
    x = torch.arange(2.0 * WIDTHS["user"]).view(2, -1)
    np.save(tmp_path / "users.npy", x.numpy())
    (tmp_path / "buys.csv").write_text(f"src,dst\n{count},3\n{count + 1},4\n0,5\n")
    (tmp_path / "new.yaml").write_text(
        "types: {user: {file: users.npy}, item: }\n"
        "relations: [{name: buys, source: user, destination: item, file: buys.csv}]\n"
    )
    found = weft.attach(graph, tmp_path / "new.yaml")
    data["user"].x = torch.cat([data["user"].x, x])
    data["user"].num_nodes = count + 2
    data["user"].y = torch.cat([data["user"].y, torch.tensor([-1, -1])])
    for role in ("train", "val", "test"):
        mask = data["user"][f"{role}_mask"]
        data["user"][f"{role}_mask"] = torch.cat([mask, torch.zeros(2, dtype=torch.bool)])
    buys = data["user", "buys", "item"]
    buys.edge_index = torch.cat([buys.edge_index, torch.tensor([[count, count + 1, 0], [3, 4, 5]])], 1)
    equal(replace(found, vertex_data={**found.vertex_data}), weft.from_pyg(data))


@pytest.mark.parametrize(
    ("files", "changes", "sentence"),
    [
        ({"users": [["u0", 3, "rome", "a", "2024-01-01"]]}, {}, r"'user:u0' in .*users.csv is a vertex of"),
        ({"knows": [["u0", "nobody", "2024-01-01"]]}, {}, r"names 'nobody', which is not among the ids of type 'user'"),
        ({"has": [[100, "cars", "2024-01-01"]]}, {}, r"names 'cars', which is not among the ids of type 'tag'"),
        ({}, {"name: knows": "name: likes"}, r"relation of graph 'shop': .*user likes user"),
        ({}, {"  tag:": "  tag: {file: users.csv, id: who}"}, r"type 'tag' of graph 'shop' has no features"),
        ({}, {"  tag:": "  tag:\n  town: {file: users.csv, id: who}"}, r"unknown type of vertices 'town'"),
        ({}, {"weight_column: amount, ": ""}, r"'user buys item' of graph 'shop' have weights and"),
        ({}, {"edge_features: [hour], ": ""}, r"have features and those of .* have none"),
        ({}, {"edge_features: [hour]": "edge_features: [hour, basket]"}, r"new edges have 2 features and those of"),
        ({}, {"destination_column: b,\n     time_column: day": "destination_column: b"}, r"have times and those of"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(
    graphs: Any, tmp_path: Path, files: dict[str, Table], changes: dict[str, str], sentence: str
) -> None:
    before = graphs[1]
    _, new = tables()
    with pytest.raises(UserError, match=sentence):
        weft.attach(before, write(tmp_path / "new", {**new, **files}, **changes))


def test_other_arguments_and_files_are_refused(graphs: Any, tmp_path: Path) -> None:
    folder, before, _, _ = graphs
    for arguments in (("edges.csv", "nodes.csv"), ({"a": 1},)):
        with pytest.raises(UserError, match="describe the tables of new vertices and of their edges in a file"):
            weft.attach(before, *arguments)
    with pytest.raises(UserError, match="says where everything is: leave other files"):
        weft.attach(before, folder / "new" / "graph.yaml", folder / "new" / "users.csv")
    with pytest.raises(UserError, match="have features: give those of the new ones, too"):
        weft.attach(weft.load("synthetic:tiny"), folder / "new" / "graph.yaml")
