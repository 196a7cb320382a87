"""Rows as small integers: the same bytes from every implementation, no bias, the variance that theory says."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from weft import kernels
from weft.kernels import reference
from weft.kernels.reference.quantise import DRAW_BITS, draws

pytestmark = pytest.mark.usefixtures("backend")
WIDTHS = [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40, 64, 100, 128, 200, 257]


def packed(x: Tensor, bits: Tensor, key: int = 7, ids: Tensor | None = None) -> tuple[Tensor, Tensor]:
    offsets, size = kernels.packed_offsets(x.shape[1], bits)
    message = torch.zeros(size, dtype=torch.uint8)
    ids = torch.arange(len(x)) if ids is None else ids
    assert kernels.pack(x, None, bits, offsets, ids, key, message) == -1
    return message, offsets


def round_trip(x: Tensor, bits: int | Tensor, key: int = 7, ids: Tensor | None = None) -> Tensor:
    bits = torch.full((len(x),), bits, dtype=torch.uint8) if isinstance(bits, int) else bits
    message, offsets = packed(x, bits, key, ids)
    return kernels.unpack(message, bits, offsets, torch.empty_like(x))


def steps_on_the_wire(x: Tensor, bits: int) -> Tensor:
    """The step of every row as the receiver reads it."""
    message, offsets = packed(x, torch.full((len(x),), bits, dtype=torch.uint8))
    halves = torch.stack([message[offsets + 4], message[offsets + 5]], 1).view(torch.bfloat16)
    return halves.float().squeeze(1)


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(WIDTHS), st.integers(1, 60), st.integers(0, 2**62), st.booleans(), st.booleans())
def test_every_implementation_writes_the_same_bytes(width, rows, key, indexed, adds):
    draw = torch.Generator().manual_seed(rows * 1000 + width)
    x = torch.randn(rows + 3, width, generator=draw) * 10 ** float(torch.randint(-6, 6, (1,), generator=draw))
    index = torch.randperm(rows + 3, generator=draw)[:rows] if indexed else None
    x = x if indexed else x[:rows]
    bits = torch.tensor([2, 4, 8], dtype=torch.uint8)[torch.randint(3, (rows,), generator=draw)]
    ids = torch.randint(1 << 40, (rows,), generator=draw)
    offsets, size = kernels.packed_offsets(width, bits)
    assert size == sum(kernels.packed_bytes(width, int(b)) for b in bits)
    messages = [torch.zeros(size, dtype=torch.uint8) for _ in range(2)]
    spans = [torch.zeros(rows) for _ in range(2)]
    for pack, message, span in zip((kernels.pack, reference.pack), messages, spans, strict=True):
        assert pack(x, index, bits, offsets, ids, key, message, span) == -1
    assert torch.equal(*messages) and torch.equal(*spans)
    into = torch.randn(x.shape, generator=draw)
    ours = kernels.unpack(messages[0], bits, offsets, into.clone(), index, adds)
    assert torch.equal(ours, reference.unpack(messages[0], bits, offsets, into.clone(), index, adds))
    if index is not None:  # nothing else was touched
        others = torch.ones(len(x), dtype=torch.bool)
        others[index] = False
        assert torch.equal(ours[others], into[others])


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_messages_too_large_for_the_caches_are_unpacked_alike(bits):
    """64 MiB and more are written past the caches where rows are aligned; a view that begins elsewhere is not."""
    rows, width = 1 << 16, 264
    row_bits = torch.full((rows,), bits, dtype=torch.uint8)
    message, offsets = packed(torch.randn(rows, width, generator=torch.Generator().manual_seed(2)), row_bits)
    index = torch.randperm(rows + 5, generator=torch.Generator().manual_seed(3))[:rows]
    aligned = torch.zeros(rows + 5, width)
    elsewhere = torch.zeros((rows + 5) * width + 1)[1:].view(-1, width)
    for target in (aligned, elsewhere):
        kernels.unpack(message, row_bits, offsets, target, index)
    assert torch.equal(aligned, elsewhere)
    some = index[::1000]
    few, size = kernels.packed_offsets(width, row_bits[::1000])
    assert size == few.numel() * kernels.packed_bytes(width, bits)
    alone = torch.cat(
        [message[offsets[k] : offsets[k] + kernels.packed_bytes(width, bits)] for k in range(0, rows, 1000)]
    )
    assert torch.equal(
        reference.unpack(alone, row_bits[::1000], few, torch.empty(some.numel(), width), None, False), aligned[some]
    )


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_values_come_back_within_a_step_and_rows_do_not_touch_each_other(bits):
    x = torch.randn(500, 37, generator=torch.Generator().manual_seed(1))
    x[::7] *= 1000
    back = round_trip(x, bits)
    span = x.amax(1) - x.amin(1)
    step = span / ((1 << bits) - 1) * (1 + 2**-7)  # as rounded up to bf16
    assert bool(((back - x).abs() <= step[:, None] * (1 + 1e-5)).all())
    # Largest values do not run over into a neighbour: a row packed alone comes back as among others.
    for row in (0, 7, 499):
        assert torch.equal(round_trip(x[row : row + 1], bits, ids=torch.tensor([row])), back[row : row + 1])


@pytest.mark.parametrize("value", [0.0, 1.1, -3.4e38, 1e-42, 123456.789])
def test_constant_rows_are_exact(value):
    x = torch.full((3, 19), value)
    for bits in (2, 4, 8):
        assert torch.equal(round_trip(x, bits), x)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_no_bias_and_the_variance_of_theory(bits):
    """Over 10^4 draws, with the parameters that travelled."""
    draws = 10_000
    row = torch.randn(24, generator=torch.Generator().manual_seed(3)) * 2 + 100  # far from 0: bf16 would miss it
    x = row.repeat(draws, 1)
    back = round_trip(x, bits).double()
    step = float(steps_on_the_wire(x[:1], bits))
    position = (row.double() - float(row.min())) / step
    p = position - position.floor()
    sigma = step * (p * (1 - p)).sqrt()
    error = back.mean(0) - row.double()
    resolution = 1e-5 * abs(float(row.max()))  # float32 of the values themselves
    assert bool((error.abs() <= 4 * sigma / draws**0.5 + step * 2**-DRAW_BITS + resolution).all())
    found, wanted = float(back.var(0).sum()), float(sigma.square().sum())
    assert abs(found - wanted) < 0.05 * wanted


@pytest.mark.parametrize("width", [5, 64])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_no_draw_leads_past_the_largest_integer(bits, width):
    """Steps that bf16 holds, or all but holds: nothing is left between the largest value and the largest integer."""
    generator = torch.Generator().manual_seed(9)
    most, rows = (1 << bits) - 1, 200_000
    step = (1 + torch.rand(rows, generator=generator)).bfloat16().float()
    step *= 2.0 ** torch.randint(-60, 60, (rows,), generator=generator)
    x = torch.zeros(rows, width)
    x[:, 1:] = (step * most * (1 - torch.randint(3, (rows,), generator=generator) * 2.0**-24))[:, None]
    error = (round_trip(x, bits) - x).abs().amax(1)
    assert bool((error <= 1.01 * x.amax(1) / most).all())


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_quantised_with_the_parameters_that_travel(bits):
    """Had other ones been used, the mean over many draws would be off by up to half a step at the far end."""
    draws, most = 160_000, (1 << bits) - 1
    row = torch.tensor([0.0, 0.3, 1.0005 * most, 0.7])  # a step that bf16 must round up a good deal
    x = row.repeat(draws, 1)
    step = float(steps_on_the_wire(x[:1], bits))
    assert step == 1.0078125
    mean = float(round_trip(x, bits)[:, 2].double().mean())
    noise = 4 * 0.5 * step / draws**0.5
    assert abs(mean - 1.0005 * most) < noise
    assert abs(most * step - 1.0005 * most) > 3 * noise, "what comes of quantising with the step that did not travel"


def test_rounding_depends_on_the_vertex_not_on_its_place():
    x = torch.randn(50, 33, generator=torch.Generator().manual_seed(5))
    ids = torch.randint(1 << 40, (50,))
    order = torch.randperm(50)
    assert torch.equal(round_trip(x, 4, ids=ids)[order], round_trip(x[order], 4, ids=ids[order]))
    assert not torch.equal(round_trip(x, 4, key=1), round_trip(x, 4, key=2))


def test_draws_are_uniform_and_independent_across_columns():
    drawn = draws(torch.arange(4000), 48, 11).double() / 2**DRAW_BITS
    counts = torch.histc(drawn, 16, 0, 1)
    expected = drawn.numel() / 16
    assert float(((counts - expected) ** 2 / expected).sum()) < 45  # chi-squared, 15 degrees of freedom
    correlation = torch.corrcoef(drawn.T) - torch.eye(48)
    assert float(correlation.abs().max()) < 5 / 4000**0.5


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("column", [0, 5, 16, 36])
@pytest.mark.parametrize("bits_each", [2, 4, 8])
def test_what_is_not_finite_is_named(bad, column, bits_each):
    x = torch.randn(40, 37)
    x[23, column] = bad
    x[31, column] = bad
    bits = torch.full((40,), bits_each, dtype=torch.uint8)
    offsets, size = kernels.packed_offsets(37, bits)
    for pack in (kernels.pack, reference.pack):
        message = torch.zeros(size, dtype=torch.uint8)
        assert pack(x, None, bits, offsets, torch.arange(40), 1, message, None) == 23


def test_a_range_that_floats_cannot_hold_is_named():
    x = torch.tensor([[3e38, -3e38, 0.0]])
    bits = torch.full((1,), 8, dtype=torch.uint8)
    offsets, size = kernels.packed_offsets(3, bits)
    assert (
        kernels.pack(x, None, bits, offsets, torch.zeros(1, dtype=torch.int64), 1, torch.zeros(size, dtype=torch.uint8))
        == 0
    )
