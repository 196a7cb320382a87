"""A graph of several types for tests: what PyG calls a HeteroData."""

from typing import Any

import pytest
import torch

COUNTS = {"user": 30, "item": 20, "tag": 9}
WIDTHS = {"user": 5, "item": 3, "tag": 0}
RELATIONS = {
    ("user", "buys", "item"): 80,
    ("item", "bought by", "user"): 80,
    ("user", "follows", "user"): 50,
    ("item", "has", "tag"): 30,
    ("tag", "of", "item"): 30,
}
CLASSES = 3


def hetero(learned: bool = True, seed: int = 4) -> Any:
    """Users, whose class is to be predicted, items, and tags; without `learned` tags have features too."""
    module = pytest.importorskip("torch_geometric.data", reason="PyG is not installed")
    generator = torch.Generator().manual_seed(seed)
    data = module.HeteroData()
    for kind, count in COUNTS.items():
        width = WIDTHS[kind] or (0 if learned else 2)
        data[kind].num_nodes = count
        if width:
            data[kind].x = torch.randn(count, width, generator=generator)
    data["user"].y = torch.randint(0, CLASSES, (COUNTS["user"],), generator=generator)
    order = torch.randperm(COUNTS["user"], generator=generator)
    for role, members in (("train", order[:18]), ("val", order[18:24]), ("test", order[24:])):
        mask = torch.zeros(COUNTS["user"], dtype=torch.bool)
        mask[members] = True
        data["user"][f"{role}_mask"] = mask
    for (source, name, destination), count in RELATIONS.items():
        ends = [torch.randint(0, COUNTS[kind], (count,), generator=generator) for kind in (source, destination)]
        data[source, name, destination].edge_index = torch.stack(ends)
    return data
