"""Products that skip zeros equal plain products, whatever the shape, stride, share of zeros and thread count."""

import importlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from weft.kernels import native_available, products

pytestmark = [
    pytest.mark.skipif(not native_available, reason="the native module is not built"),
    pytest.mark.usefixtures("backend"),
]
native_products = importlib.import_module("weft.kernels.native.products") if native_available else products


@pytest.fixture(autouse=True)
def _always_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_products, "_FEWEST", 0)


def rows(num_rows: int, width: int, share: float, seed: int = 0) -> Tensor:
    """Rows of which about `share` is not zero."""
    generator = torch.Generator().manual_seed(seed)
    kept = torch.rand(num_rows, width, generator=generator) < share
    return torch.randn(num_rows, width, generator=generator) * kept


def close(found: Tensor, x: Tensor, y: Tensor) -> bool:
    """Within what float32 sums may differ by, in the order of their terms."""
    x, y = x.double(), y.double()
    return bool(((found.double() - x @ y).abs() <= 2e-6 * (x.abs() @ y.abs()) + 1e-30).all())


@settings(max_examples=60, deadline=None)
@given(
    num_rows=st.sampled_from([1, 7, 127, 128, 129, 255, 256, 257, 700]),
    depth=st.integers(1, 70),
    width=st.integers(1, 70),
    share=st.sampled_from([0.0, 0.1, 0.25]),
    transposed=st.booleans(),
)
def test_product_equals_dense(num_rows: int, depth: int, width: int, share: float, transposed: bool) -> None:
    x = rows(num_rows, depth, share)
    matrix = torch.randn(width, depth).t() if transposed else torch.randn(depth, width)
    assert close(products.product(x, matrix), x, matrix)
    out = torch.ones(num_rows, width)
    products.product(x, matrix, out=out, accumulate=True)
    torch.testing.assert_close(out, 1 + x @ matrix, rtol=1e-5, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    num_rows=st.sampled_from([1, 9, 255, 256, 257, 1000, 5000]),
    depth=st.integers(1, 70),
    width=st.integers(1, 70),
    sparse_side=st.sampled_from(["left", "right"]),
)
def test_reduce_equals_dense(num_rows: int, depth: int, width: int, sparse_side: str) -> None:
    left = rows(num_rows, depth, 0.2 if sparse_side == "left" else 1.0)
    right = rows(num_rows, width, 0.2 if sparse_side == "right" else 1.0, seed=1)
    assert close(products.reduce_product(left, right), left.t(), right)


def test_zeros_are_skipped_only_where_that_pays() -> None:
    assert native_products.skips(rows(300, 64, 0.25))
    assert not native_products.skips(rows(300, 64, 0.9))
    assert not native_products.skips(rows(300, 64, 0.25).double())
    assert not native_products.skips(rows(300, 64, 0.25).t())


def test_views_of_wider_rows() -> None:
    wide = rows(400, 96, 0.2)
    x, right = wide[:, 8:40], torch.randn(400, 80)[:, 3:51]
    matrix = torch.randn(32, 50)
    assert close(products.product(x, matrix), x, matrix)
    assert close(products.reduce_product(x, right), x.t(), right)


@pytest.mark.usefixtures("beside_the_reference")  # torch's dense products promise no such thing
def test_threads_do_not_change_a_bit() -> None:
    x, right, matrix = rows(6000, 40, 0.25), torch.randn(6000, 33), torch.randn(40, 33)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append((products.product(x, matrix), products.reduce_product(x, right)))
    finally:
        torch.set_num_threads(before)
    for product, reduced in found[1:]:
        assert torch.equal(product, found[0][0]) and torch.equal(reduced, found[0][1])


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="5 columns"):
        products.product(torch.ones(3, 5), torch.ones(4, 2))
    with pytest.raises(ValueError, match="as many rows"):
        products.reduce_product(torch.ones(3, 5), torch.ones(4, 2))


@pytest.mark.parametrize("units", [True, False])
@pytest.mark.parametrize("accumulate", [True, False])
def test_bf16_rows_with_and_without_units_for_them(monkeypatch, units, accumulate):
    monkeypatch.setattr(native_products, "_has_bf16_units", lambda: units)
    draw = torch.Generator().manual_seed(2)
    x, matrix, start = (torch.randn(n, m, generator=draw).bfloat16() for n, m in ((9000, 40), (40, 24), (9000, 24)))
    found = products.product(x, matrix, out=start.clone() if accumulate else None, accumulate=accumulate)
    wanted = x.double() @ matrix.double() + (start.double() if accumulate else 0)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), wanted, rtol=2e-2, atol=5e-2)
    summed = products.reduce_product(x, start)
    assert summed.dtype == torch.bfloat16
    torch.testing.assert_close(summed.double(), x.double().T @ start.double(), rtol=2e-2, atol=2.0)


# -- rows that never change ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("beside_the_reference")
@settings(max_examples=60, deadline=None)
@given(
    num_rows=st.sampled_from([1, 7, 127, 128, 129, 255, 256, 257, 700, 2100]),
    depth=st.integers(1, 90),
    width=st.integers(1, 70),
    share=st.sampled_from([0.0, 0.01, 0.04]),
)
def test_listed_zeros_give_the_same_bits(num_rows: int, depth: int, width: int, share: float) -> None:
    x = rows(num_rows, depth, share)[:, : max(1, depth - 3)]  # a view: rows lie further apart than they are wide
    by_row, by_column = products.list_nonzeros(x, by_column=False), products.list_nonzeros(x, by_column=True)
    if by_row is None or by_column is None:
        assert (x != 0).double().mean() >= native_products.WORTH_LISTING
        return
    matrix, grad = torch.randn(x.shape[1], width), torch.randn(num_rows, width)
    assert close(products.product(x, matrix, lists=by_row), x, matrix)
    assert torch.equal(products.product(x, matrix, lists=by_row), products.product(x, matrix))
    sums = [torch.ones(num_rows, width) for _ in range(2)]
    for out, lists in zip(sums, (by_row, None), strict=True):
        products.product(x, matrix, out=out, accumulate=True, lists=lists)
    assert torch.equal(*sums)
    few = -(-num_rows // 2)
    assert torch.equal(products.product(x[:few], matrix, lists=by_row.first(few)), products.product(x[:few], matrix))
    assert close(products.reduce_product(grad, x, by_column), grad.t(), x)
    assert torch.equal(products.reduce_product(grad, x, by_column), products.reduce_product(grad, x))


@pytest.mark.usefixtures("beside_the_reference")
def test_lists_are_used_in_the_place_of_the_rows() -> None:
    x, matrix, grad = rows(600, 80, 0.02), torch.randn(80, 40), torch.randn(600, 40)
    by_row, by_column = products.list_nonzeros(x, by_column=False), products.list_nonzeros(x, by_column=True)
    assert by_row is not None and by_column is not None
    expected = products.product(x, matrix), products.reduce_product(grad, x)
    x.fill_(7.0)
    assert torch.equal(products.product(x, matrix, lists=by_row), expected[0])
    assert torch.equal(products.reduce_product(grad, x, by_column), expected[1])


@pytest.mark.usefixtures("beside_the_reference")
def test_only_what_is_nearly_all_zero_is_listed() -> None:
    assert products.list_nonzeros(rows(300, 64, 0.03), by_column=False) is not None
    assert products.list_nonzeros(rows(300, 64, 0.2), by_column=False) is None
    assert products.list_nonzeros(rows(300, 64, 0.03).double(), by_column=False) is None


@pytest.mark.usefixtures("beside_the_reference")
def test_lists_of_other_rows_are_refused() -> None:
    x = rows(300, 64, 0.03)
    by_row, by_column = products.list_nonzeros(x, by_column=False), products.list_nonzeros(x, by_column=True)
    assert by_row is not None
    for wrong in (by_column, by_row.first(200)):
        with pytest.raises(ValueError, match="lists must be by row"):
            products.product(x, torch.randn(64, 3), lists=wrong)
    with pytest.raises(ValueError, match="lists must be by column"):
        products.reduce_product(torch.randn(300, 3), x, by_row)
