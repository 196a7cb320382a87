"""Where weights start: each layer's distributions are those of PyG's layer, whatever the number of workers."""

import pytest
import scipy.stats
import torch

from tests.layers.pyg_twins import TWINS, Sizes, starts
from weft.layers import ModelConfig, build_model

SIZES, DRAWS = Sizes(num_in=24, num_out=7, heads=4, relations=5), 400
BOUNDS = {  # of our parameters that are uniform: within sqrt(6 / (in + out)), or 1 / sqrt(in)
    "glorot": lambda num_in, num_out: (6 / (num_in + num_out)) ** 0.5,
    "fan_in": lambda num_in, num_out: num_in**-0.5,
}


@pytest.mark.parametrize("name", TWINS)
def test_a_layer_starts_as_pygs_does(name):
    torch.manual_seed(5)
    drawn = [[(theirs.detach().flatten(), ours.detach().flatten()) for theirs, ours in pairs]
             for pairs in starts(TWINS[name], SIZES, DRAWS)]  # fmt: skip
    for pairs in zip(*drawn, strict=True):
        theirs, ours = (torch.cat(values) for values in zip(*pairs, strict=True))
        if theirs.unique().numel() == 1:  # a constant
            assert torch.equal(ours, theirs)
            continue
        # The most extreme of n uniform numbers is within a few n-ths of the bound, of which 10 leave e^-10.
        few = 10 / ours.numel()
        for value in ("min", "max"):
            assert float(getattr(ours, value)()) == pytest.approx(float(getattr(theirs, value)()), rel=2 * few)
        assert float(ours.var()) == pytest.approx(float(theirs.var()), rel=8 * ours.numel() ** -0.5)
        assert scipy.stats.ks_2samp(ours.numpy(), theirs.numpy()).pvalue > 1e-4


@pytest.mark.parametrize(
    ("name", "of", "rule", "num_in", "num_out"),
    [
        ("gcn", "weight", "glorot", 24, 7),
        ("sage-mean", "neighbour", "fan_in", 24, 7),
        ("sage-mean", "root", "fan_in", 24, 7),
        ("sage-mean", "bias", "fan_in", 24, 7),
        ("gat", "weight", "glorot", 24, 28),
        ("gat", "source", "glorot", 7, 4),
        ("gatv2", "key", "glorot", 24, 28),
        ("gatv2", "query_bias", "fan_in", 24, 28),
        ("transformer", "value", "fan_in", 24, 28),
        ("transformer-mean", "bias", "fan_in", 24, 7),
        ("gin", "first", "fan_in", 24, 7),
        ("gin", "second", "fan_in", 7, 7),
        ("rgcn", "neighbour", "glorot", 24, 7),  # each relation's matrix by itself, though they lie side by side
        ("rgcn-bases", "neighbour", "glorot", 24, 7),
        ("rgcn-bases", "coefficients", "glorot", 2, 5),
    ],
)
def test_bounds_are_exact(name, of, rule, num_in, num_out):
    torch.manual_seed(6)
    bound = BOUNDS[rule](num_in, num_out)
    values = torch.cat([TWINS[name].build(SIZES).get_parameter(of).detach().flatten() for _ in range(DRAWS)])
    assert float(values.abs().max()) <= bound * (1 + 1e-6)
    assert float(values.abs().max()) >= bound * (1 - 10 / values.numel())
    assert float(values.var()) == pytest.approx(bound**2 / 3, rel=8 * values.numel() ** -0.5)


def test_skips_start_as_torchs_linear_does():
    torch.manual_seed(7)
    config = ModelConfig(name="sage", hidden=600, residual=True)
    skips = [skip.detach() for skip in build_model(config, 40, 50).skips]
    for skip, num_in in zip(skips, (40, 600), strict=True):
        assert float(skip.abs().max()) == pytest.approx(num_in**-0.5, rel=1e-3)
