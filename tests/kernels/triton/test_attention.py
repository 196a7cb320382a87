"""Fused attention of all three kinds, forward and backward, block by block, whole rows and rows in pieces."""

import pytest
import torch

from tests.kernels.graphs import random_block
from tests.kernels.test_attention import RUNS, scalar_of
from tests.kernels.test_attention import close as tolerance
from tests.kernels.triton.sides import both, close

GRAPHS = {"small": (4, 5, 26), "no edges": (2, 2, 0), "one hub": (1, 3, 13), "no rows": (0, 3, 0)}


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize(
    ("graph", "dtype", "heads", "width", "p", "cut"),
    [
        ("small", torch.float64, 2, 5, 0.3, True),
        ("small", torch.float32, 1, 9, 0.0, False),
        ("small", torch.bfloat16, 3, 1, 0.3, True),
        ("one hub", torch.float64, 1, 33, 0.0, True),
        ("no edges", torch.float32, 2, 4, 0.3, True),
        ("no rows", torch.float32, 2, 4, 0.0, True),
    ],
)
def test_against_the_reference(run, graph, dtype, heads, width, p, cut):
    ours, theirs = both(
        lambda side, block: run(side, block, heads, width, dtype, p), lambda: random_block(*GRAPHS[graph]), cut
    )
    close(ours, theirs, **tolerance(scalar_of(dtype)))


@pytest.mark.parametrize("run", RUNS)
def test_logits_of_a_thousand_stay_finite_and_right(run):
    ours, theirs = both(
        lambda side, block: run(side, block, 1, 4, torch.float64, 0.0, scale=1000.0),
        lambda: random_block(3, 3, 14),
        True,
    )
    assert all(bool(torch.isfinite(one).all()) for one in ours[1:])
    close(ours[2:], theirs[2:], rtol=1e-8, atol=1e-8)
