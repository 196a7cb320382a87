"""Every kernel against the best peer, or beside the bytes that it must move.

    python -m benchmarks.kernels [--quick] [--only spmm|order|rows|attention|quantise|elementwise|loss|words]
        [--json FILE]

SpMM runs beside torch, DGL and SciPy on two graphs of ogbn-arxiv's size, one with communities and one without; every
side returns a fresh output under the same allocator. The other kernels stand beside their byte limit: what they
must read and write at least, at the speed of a plain copy. Gathered rows may lie in cache. A copy also fetches the
lines that it overwrites, which its bytes do not count: what is only read, written past the caches or added in place
costs less, so a share above 1 is possible. Such kernels stand beside torch's own pass of the same kind as well.
"""

import importlib.util
import os
import warnings
from collections.abc import Callable, Iterator

import scipy.sparse
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.harness import Bench, PlainCopy, parse, tuned_allocator
from weft import kernels
from weft.comm import Communicator
from weft.graph import synthetic
from weft.graph.csr import CSR
from weft.kernels import products
from weft.partitioning.order import community_order
from weft.training.loss import GlobalLoss

WIDTHS = (16, 32, 40, 64, 128, 256, 602)
QUICK_WIDTHS = (32, 128, 256)
REORDER_BAR, COPY_BAR = 1.7, 0.7
SAMPLE_SECONDS = 0.1  # of kernels that take milliseconds: several calls, so that a neighbour's moment does not count
HEADS, HEAD_WIDTH = 4, 64

Sides = dict[str, Callable[[], object]]


def arxiv(**settings: float) -> CSR:
    """In-edges of the synthetic graph with ogbn-arxiv's size, both directions of every edge."""
    adjacency = synthetic("arxiv", features=1, **settings).adjacency
    return CSR(adjacency.indptr, adjacency.indices, adjacency.num_cols)


def uniform(num_nodes: int = 169_343, num_edges: int = 2_332_486) -> CSR:
    """No structure at all: the worst case for every cache."""
    draw = torch.Generator().manual_seed(0)
    src, dst = (torch.randint(num_nodes, (num_edges,), generator=draw) for _ in range(2))
    indptr, indices, _ = kernels.build_csr(src, dst, num_nodes, num_nodes)
    return CSR(indptr, indices, num_nodes)


def rows_of(csr: CSR) -> Tensor:
    return torch.repeat_interleave(torch.arange(csr.num_rows), csr.degrees())


def relabelled(csr: CSR, order: Tensor) -> CSR:
    """The same graph with vertex order[k] called k."""
    place = torch.empty_like(order)
    place[order] = torch.arange(order.numel())
    src, dst = place[csr.indices.long()], place[rows_of(csr)]
    indptr, indices, _ = kernels.build_csr(src, dst, csr.num_cols, csr.num_rows)
    return CSR(indptr, indices, csr.num_cols)


class Peers:
    """The graph in every peer's own format, made once."""

    def __init__(self, csr: CSR, weight: Tensor) -> None:
        shape = (csr.num_rows, csr.num_cols)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "sparse CSR is in beta"
            self.torch = {
                weighted: torch.sparse_csr_tensor(csr.indptr, csr.indices.long(), values, shape)
                for weighted, values in ((False, torch.ones_like(weight)), (True, weight))
            }
        self.scipy = {
            weighted: scipy.sparse.csr_matrix((matrix.values().numpy(), csr.indices.numpy(), csr.indptr.numpy()), shape)
            for weighted, matrix in self.torch.items()
        }
        self.weight = weight[:, None]
        self.dgl = None
        if has_dgl():
            import dgl

            graph = dgl.graph((csr.indices, rows_of(csr).int()), num_nodes=csr.num_rows).formats(["csc"])
            graph.create_formats_()
            self.dgl, self.ops = graph, dgl.ops

    def sides(self, x: Tensor, weighted: bool) -> Iterator[tuple[str, Callable[[], object]]]:
        matrix, sparse, array = self.torch[weighted], self.scipy[weighted], x.numpy()
        yield "torch", lambda: matrix @ x
        yield "torch reduce", lambda: torch.sparse.mm(matrix, x, "sum")
        if self.dgl is not None and weighted:
            yield "dgl", lambda: self.ops.u_mul_e_sum(self.dgl, x, self.weight)
        elif self.dgl is not None:
            yield "dgl", lambda: self.ops.copy_u_sum(self.dgl, x)
        yield "scipy", lambda: sparse @ array


def has_dgl() -> bool:
    os.environ.setdefault("DGLBACKEND", "pytorch")
    return importlib.util.find_spec("dgl") is not None


def spmm(bench: Bench, csr: CSR, name: str) -> None:
    """Every width, weighted and not, against the fastest of the peers."""
    draw = torch.Generator().manual_seed(1)
    weight = torch.rand(csr.num_edges, generator=draw)
    peers = Peers(csr, weight)
    for width in QUICK_WIDTHS if bench.options.quick else WIDTHS:
        x = torch.randn(csr.num_cols, width, generator=draw)
        half = x.bfloat16()
        for weighted in (False, True):
            values = weight if weighted else None
            sides: Sides = {"ours": lambda x=x, w=values: kernels.spmm(csr.indptr, csr.indices, x, w)}
            sides.update(peers.sides(x, weighted))
            for side, call in sides.items():  # all sides compute the same
                torch.testing.assert_close(torch.as_tensor(call()), sides["ours"](), rtol=1e-3, atol=1e-3, msg=side)
            sides["ours bf16"] = lambda x=half, w=values: kernels.spmm(csr.indptr, csr.indices, x, w)
            seconds = bench.measure(sides)
            case = f"spmm {name} {width}{' weighted' if weighted else ''}"
            bench.row(case, seconds)
            best = min(value for side, value in seconds.items() if not side.startswith("ours"))
            bench.bar(f"{case}, times the best peer", best / seconds["ours"], 1.0)


def order(bench: Bench, width: int = 128) -> None:
    """SpMM before and after the vertices of a graph with clear communities are put in community order."""
    csr = arxiv(homophily=0.9, locality=0.95, label_noise=0.0)
    after = relabelled(csr, community_order(csr))
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(csr.num_cols, width, generator=draw)
    seconds = bench.measure(
        {
            "as given": lambda: kernels.spmm(csr.indptr, csr.indices, x),
            "in community order": lambda: kernels.spmm(after.indptr, after.indices, x),
        }
    )
    bench.row(f"order: spmm {width}", seconds)
    bench.bar("spmm after reordering", seconds["as given"] / seconds["in community order"], REORDER_BAR)


class RowCopy:
    """A copy of some rows of a matrix: the same jumps through memory as a kernel that takes them."""

    def __init__(self, x: Tensor, index: Tensor) -> None:
        self._x, self._index, self._out = x, index, torch.empty(index.numel(), x.shape[1])

    def __call__(self) -> object:
        return kernels.gather(self._x, self._index, self._out)


def beside_limit(
    bench: Bench,
    case: str,
    call: Callable[[], object],
    num_bytes: float,
    copy: PlainCopy,
    others: Sides | None = None,
) -> float:
    """One kernel: its time, the bytes it must move, and what share of a plain copy's speed, timed in turn, that is.

    `others` are passes over the same rows, by what the row calls the kernel's speed against theirs.
    """
    others = others or {}
    seconds = bench.measure({"ours": call, "copy": copy, **others}, rounds=9, seconds_a_sample=SAMPLE_SECONDS)
    rate, copying = num_bytes / seconds["ours"] / 1e9, copy.num_bytes / seconds["copy"] / 1e9
    more = {"share_of_copy": rate / copying, **{name: seconds[name] / seconds["ours"] for name in others}}
    bench.row(case, {"ours": seconds["ours"]}, megabytes=num_bytes / 1e6, gb_per_second=rate, **more)
    return rate / copying


def rows(bench: Bench, csr: CSR, copy: PlainCopy) -> None:
    num, width = csr.num_rows, 128
    draw = torch.Generator().manual_seed(2)
    x = torch.randn(num, width, generator=draw)
    index = torch.randint(num, (num,), generator=draw)
    out = torch.zeros(num, width)
    row = width * 4
    beside_limit(bench, "rows: gather", lambda: kernels.gather(x, index, out), num * (2 * row + 8), copy)
    beside_limit(bench, "rows: scatter_add", lambda: kernels.scatter_add(out, index, x), num * (3 * row + 8), copy)
    beside_limit(
        bench,
        "rows: spmm",
        lambda: kernels.spmm(csr.indptr, csr.indices, x, out=out),
        csr.num_edges * (row + 4) + num * (row + 8),
        copy,
    )
    best, count = torch.full((num, width), -torch.inf), torch.zeros(num, width, dtype=torch.int32)
    beside_limit(
        bench,
        "rows: max",
        lambda: kernels.max_absorb(csr.indptr, csr.indices, x, None, best, count),
        csr.num_edges * (row + 4) + num * 4 * row,
        copy,
    )


def attention(bench: Bench, csr: CSR, copy: PlainCopy) -> None:
    num, edges, heads, width = csr.num_rows, csr.num_edges, HEADS, HEAD_WIDTH
    draw = torch.Generator().manual_seed(3)
    transposed = kernels.transpose_csr(csr.indptr, csr.indices, csr.num_cols)
    both = (csr.indptr, csr.indices, *transposed)
    dst, src, delta = (torch.randn(num, heads, generator=draw) for _ in range(3))
    values, query, grad, key = (torch.randn(num, heads * width, generator=draw) for _ in range(4))
    att = torch.randn(heads, width, generator=draw) / 8
    state = torch.full((num, heads), -torch.inf), torch.zeros(num, heads), torch.zeros(num, heads * width)
    state2, state3 = (tuple(t.clone() for t in state) for _ in range(2))
    small = [torch.zeros(num, heads) for _ in range(2)]
    wide = [torch.zeros(num, heads * width) for _ in range(3)]
    row, term = heads * width * 4, heads * 4
    forward = edges * (row + term + 4) + num * (2 * row + 5 * term)
    beside_limit(
        bench,
        f"attention: GAT {heads}x{width} forward",
        lambda: kernels.gat_absorb(csr.indptr, csr.indices, dst, src, values, 0.2, *state),
        forward,
        copy,
    )
    beside_limit(
        bench,
        f"attention: GAT {heads}x{width} backward",
        lambda: kernels.gat_backward(*both, dst, src, values, 0.2, *state[:2], delta, grad, *small, wide[0]),
        edges * (row + 4 * term + 2 * term + 4 + 8) + num * (3 * row + 12 * term),
        copy,
    )
    beside_limit(
        bench,
        f"attention: GATv2 {heads}x{width} forward",
        lambda: kernels.gatv2_absorb(csr.indptr, csr.indices, query, values, att, 0.2, *state2),
        edges * (row + 4) + num * (3 * row + 4 * term),
        copy,
    )
    d_att = torch.zeros_like(att)
    beside_limit(
        bench,
        f"attention: GATv2 {heads}x{width} backward",
        lambda: kernels.gatv2_backward(*both, query, values, att, 0.2, *state2[:2], delta, grad, *wide[:2], d_att),
        edges * (3 * row + 4 * term + 8 + 8) + num * 6 * row,
        copy,
    )
    beside_limit(
        bench,
        f"attention: dot {heads}x{width} forward",
        lambda: kernels.dot_absorb(csr.indptr, csr.indices, query, key, values, width**-0.5, *state3),
        edges * (2 * row + 4) + num * (3 * row + 4 * term),
        copy,
    )
    beside_limit(
        bench,
        f"attention: dot {heads}x{width} backward",
        lambda: kernels.dot_backward(*both, query, key, values, width**-0.5, *state3[:2], delta, grad, *wide),
        edges * (3 * row + 3 * term + 2 * term + 8 + 8) + num * 8 * row,
        copy,
    )
    z_bytes = num * (row + term)
    beside_limit(bench, "attention: head_dot", lambda: kernels.head_dot(values, att), z_bytes, copy)


def quantise(bench: Bench, copy: PlainCopy, num: int = 169_343, width: int = 256) -> None:
    """Packing rows as integers, gathered through an index as an exchange does, and unpacking them."""
    draw = torch.Generator().manual_seed(4)
    x, out = torch.randn(num, width, generator=draw), torch.zeros(num, width)
    index = torch.randperm(num, generator=draw)[: num // 2].sort().values  # the rows that others need, in order
    copy_rows: Sides = {"rows_against_copying_them": RowCopy(x, index)}
    in_place: Sides = {"against_adding_in_place": lambda: out.add_(1.0)}
    for bits in (2, 4, 8):
        for taken, how in ((None, "all rows"), (index, "half of them, gathered")):
            rows = num if taken is None else taken.numel()
            row_bits = torch.full((rows,), bits, dtype=torch.uint8)
            offsets, size = kernels.packed_offsets(width, row_bits)
            ids, message = torch.arange(rows), torch.empty(size, dtype=torch.uint8)
            args = (row_bits, offsets)
            moved = rows * (width * 4 + 17) + size

            def pack(taken=taken, args=args, ids=ids, message=message) -> object:
                return kernels.pack(x, taken, *args, ids, 7, message)

            def unpack(taken=taken, args=args, message=message) -> object:
                return kernels.unpack(message, *args, out, taken)

            def unpack_add(taken=taken, args=args, message=message) -> object:
                return kernels.unpack(message, *args, out, taken, add=True)

            pack()
            case = f"quantise: {bits} bits, {how}"
            for name, call, more in (("pack", pack, 0), ("unpack", unpack, 0), ("unpack + add", unpack_add, 1)):
                size = moved + more * rows * width * 4
                others = copy_rows if taken is not None else in_place if more else None
                share = beside_limit(bench, f"{case}, {name}", call, size, copy, others)
                bench.bar(f"{case}, {name}: share of a copy's bandwidth", share, COPY_BAR, unit="")


def elementwise(bench: Bench, copy: PlainCopy, num: int = 169_343, width: int = 256) -> None:
    x, out = torch.randn(num, width), torch.empty(num, width)
    grad, ids, bias = torch.randn(num, width), torch.arange(num), torch.randn(width)
    size = x.numel() * 4
    for p in (0.0, 0.5):
        seconds = bench.measure(
            {
                "ours": lambda p=p: kernels.bias_relu_dropout_(x, bias, ids, p, 7),
                "torch": lambda p=p: torch.dropout(torch.relu(x + bias), p, True),
                "copy": copy,
            }
        )
        share = 2 * size / seconds["ours"] / (copy.num_bytes / seconds.pop("copy"))
        bench.row(f"elementwise: bias+relu+dropout {p}", seconds, share_of_copy=share)
    beside_limit(bench, "elementwise: dropout_rows", lambda: kernels.dropout_rows(x, ids, 0.5, 7, out), 2 * size, copy)
    beside_limit(
        bench,
        "elementwise: relu_dropout_backward",
        lambda: kernels.relu_dropout_backward(grad, x, 0.5, out),
        3 * size,
        copy,
    )


def loss(bench: Bench, num: int = 169_343, classes: int = 40, share: float = 0.54) -> None:
    """Cross entropy of the rows that are trained on, forward and backward, beside torch's."""
    draw = torch.Generator().manual_seed(6)
    logits = torch.randn(num, classes, generator=draw, requires_grad=True)
    y, rows = torch.randint(0, classes, (num,), generator=draw), torch.rand(num, generator=draw) < share
    index = rows.nonzero().squeeze(1)
    ours, targets = GlobalLoss(y, index, classes, "none", Communicator.alone()), y[index]

    def run(loss: torch.Tensor) -> None:
        logits.grad = None
        loss.backward()  # type: ignore[no-untyped-call]

    seconds = bench.measure(
        {"ours": lambda: run(ours(logits)), "torch": lambda: run(functional.cross_entropy(logits[index], targets))}
    )
    bench.row(f"loss: cross entropy of {index.numel()} rows", seconds, against_torch=seconds["torch"] / seconds["ours"])


def words(bench: Bench, num: int = 30_000, depth: int = 8_000, width: int = 64) -> None:
    """Products with rows that never change and are nearly all zero, their non-zeros listed once or looked for."""
    draw = torch.Generator().manual_seed(7)
    for share in (0.004, 0.05):
        x = torch.rand(num, depth, generator=draw) * (torch.rand(num, depth, generator=draw) < share)
        matrix, grad = torch.randn(depth, width, generator=draw), torch.randn(num, width, generator=draw)
        by_row, by_column = (products.list_nonzeros(x, by_column) for by_column in (False, True))
        assert by_row is not None and by_column is not None
        sparse = scipy.sparse.csr_matrix(x.numpy())
        transposed, right = sparse.T.tocsr(), grad.numpy()
        sides: dict[str, Sides] = {
            "product": {
                "listed": lambda: products.product(x, matrix, lists=by_row),  # noqa: B023
                "looked for": lambda: products.product(x, matrix),  # noqa: B023
                "scipy": lambda: sparse @ matrix.numpy(),  # noqa: B023
            },
            "sum": {
                "listed": lambda: products.reduce_product(grad, x, by_column),  # noqa: B023
                "looked for": lambda: products.reduce_product(grad, x),  # noqa: B023
                "scipy": lambda: transposed @ right,  # noqa: B023
            },
        }
        for name, calls in sides.items():
            seconds = bench.measure(calls)
            ratios = {side: seconds[side] / seconds["listed"] for side in ("looked for", "scipy")}
            bench.row(f"words: {name}, {share:.1%} not zero", seconds, **{f"{k}/listed": v for k, v in ratios.items()})


def main() -> int:
    tuned_allocator()
    options = parse(__doc__.splitlines()[0] if __doc__ else None)
    bench = Bench("kernels", rounds=5, options=options)
    if not kernels.native_available:
        bench.note("the native kernels are not built: `pip install -e .` builds them")
        return 1
    if not has_dgl():
        bench.note("DGL is left out; install it with: pip install --no-deps -r benchmarks/requirements.txt")
    copy = PlainCopy()
    rate = copy.num_bytes / bench.measure({"copy": copy})["copy"] / 1e9
    bench.note(f"a plain copy moves {rate:.1f} GB/s (read plus written), {torch.get_num_threads()} threads\n")
    community = arxiv()
    if bench.wanted("spmm"):
        spmm(bench, community, "arxiv")
        if not options.quick:
            spmm(bench, uniform(), "uniform")
    if bench.wanted("order"):
        order(bench)
    if bench.wanted("rows"):
        rows(bench, community, copy)
    if bench.wanted("attention"):
        attention(bench, community, copy)
    if bench.wanted("quantise"):
        quantise(bench, copy)
    if bench.wanted("elementwise"):
        elementwise(bench, copy)
    if bench.wanted("loss"):
        loss(bench)
    if bench.wanted("words"):
        words(bench)
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
