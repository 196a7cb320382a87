"""graph.yaml: tables of several types of vertices and of relations between them, and what is wrong with some."""

from pathlib import Path

import numpy as np
import pytest
import torch

from weft.errors import UserError
from weft.graph import ingest
from weft.graph.graph import Graph
from weft.training.given import find_reverses

USERS = "user,age,segment,role\n7,30,a,train\n3,50,b,train\n9,40,a,val\n5,20,b,test\n"
ITEMS = "sku,price,colour\n7,1.5,red\n8,2.5,blue\n"
BUYS = "who,what,amount\n7,8,2\n3,7,1\n9,7,4\n5,8,3\n7,7,5\n"
TAGS = "sku,tag\n7,toy\n8,food\n8,toy\n"
SHOP = """
name: shop
types:
  user: {file: users.csv, id: user, label: segment, split_column: role}
  item: {file: items.csv, id: sku}
  tag:
relations:
  - {name: buys, source: user, destination: item, file: buys.csv, source_column: who, destination_column: what,
     weight_column: amount, reverse: true}
  - {name: has, source: item, destination: tag, file: tags.csv, source_column: sku, destination_column: tag,
     reverse: of}
"""


def write(folder: Path, description: str = SHOP, **files: str) -> Path:
    for name, text in {"users": USERS, "items": ITEMS, "buys": BUYS, "tags": TAGS, **files}.items():
        (folder / f"{name}.csv").write_text(text)
    (folder / "graph.yaml").write_text(description)
    return folder / "graph.yaml"


def edges_of(graph: Graph) -> set[tuple[str, str, str, float]]:
    """(source, relation, destination, weight), vertices as TYPE:ID."""
    assert graph.types is not None and graph.relation_names is not None and graph.original_ids is not None
    kinds = np.array(graph.types.names)[graph.types.column().numpy()]
    names = [f"{kind}:{id}" for kind, id in zip(kinds, graph.original_ids, strict=True)]
    csr = graph.adjacency
    rows = torch.repeat_interleave(torch.arange(graph.num_nodes), csr.degrees()).tolist()
    assert csr.relation is not None and csr.weight is not None
    columns = csr.indices.tolist(), csr.relation.tolist(), rows, csr.weight.tolist()
    return {(names[u], graph.relation_names[r], names[v], w) for u, r, v, w in zip(*columns, strict=True)}


def test_tables_become_a_graph_of_types(tmp_path: Path) -> None:
    graph = ingest(write(tmp_path))
    types = graph.types
    assert graph.name == "shop" and types is not None
    assert types.names == ("user", "item", "tag") and [kind.count for kind in types.vertices] == [4, 2, 2]
    assert types.widths == (1, 3, 0) and types.target == 0 and types.vertices[0].id_column == "user"
    assert graph.original_ids is not None and graph.original_ids.tolist() == [
        "7",
        "3",
        "9",
        "5",
        "7",
        "8",
        "food",
        "toy",
    ]
    assert graph.class_names == ("a", "b") and graph.y is not None and graph.y.tolist() == [0, 1, 0, 1, -1, -1, -1, -1]
    assert [mask.nonzero().flatten().tolist() for mask in graph.masks.values()] == [[0, 1], [2], [3]]
    wanted = {("user:7", "user buys item", "item:8", 2.0), ("item:8", "item rev_buys user", "user:7", 2.0)}
    wanted |= {("item:8", "item has tag", "tag:food", 1.0), ("tag:food", "tag of item", "item:8", 1.0)}
    assert wanted <= edges_of(graph) and graph.num_edges == 16
    assert types.ends == ((0, 1), (1, 0), (1, 2), (2, 1)) and types.reverses == ((0, 1), (2, 3))
    assert find_reverses([0], graph.relation_names, types) == [1] and find_reverses([3], None, types) == [2]
    ages = graph.features_of(0)  # by the mean and spread of the two training users
    assert ages is not None and ages.flatten().tolist() == [-1.0, 1.0, 0.0, -2.0]
    items = graph.features_of(1)
    assert items is not None and sorted(items[0].tolist()) == [-1.0, 0.0, 1.0]
    assert types.vertices[1].preparation is not None and types.vertices[1].preparation.source == "items.csv"


def test_another_graph_is_prepared_in_the_same_way(tmp_path: Path) -> None:
    first = ingest(write(tmp_path))
    (tmp_path / "new").mkdir()
    users = "user,age,segment,role\n1,30,b,train\n2,70,a,test\n"
    again = ingest(
        write(tmp_path / "new", users=users, buys="who,what,amount\n1,7,1\n2,8,1\n"), prepared_as=first.types
    )
    ages = again.features_of(0)
    assert ages is not None and ages.flatten().tolist() == [-1.0, 3.0]
    with pytest.raises(UserError, match="has types of vertices, and the graph to be prepared as has none"):
        ingest(write(tmp_path), prepared_as=first.types.vertices[0].preparation)  # type: ignore[union-attr]
    with pytest.raises(UserError, match=r"is no graph\.yaml"):
        ingest(tmp_path / "buys.csv", prepared_as=first.types)


def test_random_splits_and_labels_of_the_target_alone(tmp_path: Path) -> None:
    text = SHOP.replace("split_column: role", "split: 'random:0.5,0.25@1', ignore: role")
    graph = ingest(write(tmp_path, text))
    assert [int(mask.sum()) for mask in graph.masks.values()] == [2, 1, 1]
    assert all(not bool(mask[4:].any()) for mask in graph.masks.values())


def test_edges_that_name_no_row(tmp_path: Path) -> None:
    lost = BUYS + "4,8,1\n"
    with pytest.raises(
        UserError, match=r"edge 5 of .*buys.csv \(relation 'buys'\) names '4', which is not among the ids"
    ):
        ingest(write(tmp_path, buys=lost))
    graph = ingest(write(tmp_path, SHOP + "missing_rows: drop\n", buys=lost))
    assert graph.num_edges == 16 and graph.types is not None
    preparation = graph.types.vertices[0].preparation
    assert preparation is not None and "1 edges of relation 'buys' left out" in preparation.notes[-1]


MISTAKES = {
    "unknown type": (SHOP.replace("destination: item", "destination: itme"), "did you mean 'item'"),
    "same relation": (SHOP.replace("name: has, source: item, destination: tag", "name: buys, source: user, "
                      "destination: item"), "two relations 'buys' from 'user' to 'item'"),
    "same reverse": (SHOP.replace("reverse: true", "reverse: x") + "  - {name: x, source: item, destination: user, "
                     "file: buys.csv}\n", "two relations 'x' from 'item' to 'user'"),
    "missing table": (SHOP.replace("items.csv", "item.csv"), "item.csv does not exist: mend `file` of type 'item'"),
    "missing edges": (SHOP.replace("tags.csv", "tag.csv"), "mend `file` of relation 'has'"),
    "two labels": (SHOP.replace("{file: items.csv, id: sku}", "{file: items.csv, id: sku, label: colour}"),
                   "types user, item of .* have labels: say which is to be predicted, as `target: user`"),
    "unknown target": (SHOP + "target: users\n", "did you mean 'user'"),
    "no label": (SHOP + "target: item\n", "target 'item' of .* has no label column"),
    "unknown entry": (SHOP.replace("weight_column", "weight"), r"at 'relations.0.weight': there is no such entry"),
    "no file": (SHOP.replace("  tag:\n", "  tag: {id: tag}\n"), "type 'tag' of .* has no file, so that id cannot be"),
    "no types": ("relations: []\n", "no description of tables"),
    "a list": ("- 1\n", "no description of tables"),
    "unknown column": (SHOP.replace("source_column: who", "source_column: whom"), "whom"),
    "a split elsewhere": (SHOP.replace("id: sku}", "id: sku, split: 'random:0.5,0.2'}"),
                          "type 'item' of .* has a split, and the target is 'user'"),
    "a wrong split": (SHOP.replace("split_column: role", "split: half"), "split 'half' of type 'user' in .* is not"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(mistake: str, tmp_path: Path) -> None:
    text, said = MISTAKES[mistake]
    with pytest.raises(UserError, match=said):
        ingest(write(tmp_path, text))


def test_options_of_the_command_are_said_in_the_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="says itself what its tables hold, so that features cannot be given"):
        ingest(write(tmp_path), features="items.csv")
    assert ingest(write(tmp_path), name="other").name == "other"


def test_a_target_named_among_several_labels(tmp_path: Path) -> None:
    text = MISTAKES["two labels"][0] + "target: user\n"
    graph = ingest(write(tmp_path, text))
    assert graph.class_names == ("a", "b") and graph.types is not None and graph.types.widths == (1, 1, 0)


def test_one_type_alone_is_a_graph_like_others(tmp_path: Path) -> None:
    text = """
types: {user: {file: users.csv, id: user, label: segment, split_column: role}}
relations: [{name: knows, source: user, destination: user, file: knows.csv}]
"""
    graph = ingest(write(tmp_path, text, knows="src,dst\n7,3\n3,9\n"))
    assert graph.types is None and graph.num_features == 1 and graph.id_column == "user"
    assert graph.relation_names == ("user knows user",) and graph.preparation is not None
