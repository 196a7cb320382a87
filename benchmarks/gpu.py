"""A full-graph epoch on a GPU beside PyG, and the kernels beside cuSPARSE, a copy, and the bytes that they move.

    python -m benchmarks.gpu [--quick] [--only epochs|spmm|attention|pack|WORD] [--json FILE]

Both sides of every comparison run in one process, in turn; times are medians, memory is what torch's allocator held at
most above what lay there before. An epoch ends when its loss is in host memory; kernels are timed by events on the
device. `--only` takes the cases whose name has the word in it, such as arxiv, products, gcn or "products gat": the
graphs are drawn on the CPU first, so one call for each graph is a good share of work.
"""

import gc
import sys
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.harness import Bench, parse
from benchmarks.peers import HEADS, HIDDEN, MODELS, Epoch, pyg_epoch
from benchmarks.single import ours
from weft import kernels
from weft.cli.gpu import seconds_on_gpu
from weft.graph import Graph, open_graph
from weft.graph.csr import CSR

GIB = 2**30
GRAPHS = {"arxiv": "synthetic:arxiv", "products": "synthetic:products"}
QUICK = "?nodes=10000"

# (graph, model) -> milliseconds of an epoch, GiB, and times faster than PyG that are aimed at; None: no aim.
AIMS: dict[tuple[str, str], tuple[float, float | None, float]] = {
    ("arxiv", "gcn"): (6.0, None, 5.0),
    ("arxiv", "sage"): (7.5, None, 4.0),
    ("arxiv", "gat"): (12.0, 2.0, 5.0),
    ("products", "gcn"): (40.0, 8.0, 8.0),
    ("products", "sage"): (48.0, None, 8.0),
    ("products", "gat"): (130.0, 12.0, 8.0),
}
WIDTHS = (64, 128, 256)
SPMM_AIM, BF16_AIM, ATTENTION_AIM, PACK_AIM = 1.05, 0.6, 1.5, 0.6


def on_gpu(graph: Graph) -> Graph:
    """What PyG reads of a graph, in the GPU's memory."""
    gpu = torch.device("cuda")
    moved = graph.with_vertex_data(x=_moved(graph.x), y=_moved(graph.y), train_mask=_moved(graph.train_mask))
    return replace(moved, adjacency=graph.adjacency.to(gpu))


def _moved(rows: Tensor | None) -> Tensor | None:
    return None if rows is None else rows.cuda()


# -- epochs ------------------------------------------------------------------------------------------------------


def run_epochs(bench: Bench, graph_name: str, name: str, graph: Graph) -> None:
    sides: dict[str, Callable[[], Epoch]] = {
        "weft": lambda: ours(name, graph, device="cuda"),
        "weft bf16": lambda: ours(name, graph, "bfloat16", "cuda"),
        "pyg": lambda: pyg_epoch(name, on_gpu(graph)),
    }
    epochs: dict[str, Epoch] = {}
    peaks: dict[str, float] = {}
    for side, make in sides.items():
        made = _peak_gib(make)
        if made is None:
            bench.note(f"{graph_name} {name}: {side} ran out of the GPU's memory")
        else:
            epochs[side], peaks[side] = made
    seconds = bench.measure(epochs, warmup=2)
    bench.row(f"{graph_name} {name} epoch", seconds, gib=peaks)
    milliseconds, gib, faster = AIMS[graph_name, name]
    if bench.options.quick or "weft" not in seconds:
        return
    bench.bar(f"{graph_name} {name}: epoch", seconds["weft"] * 1e3, milliseconds, " ms", at_least=False)
    if gib is not None:
        bench.bar(f"{graph_name} {name}: memory", peaks["weft"], gib, " GiB", at_least=False)
    if "pyg" in seconds:
        bench.bar(f"{graph_name} {name}: against PyG", seconds["pyg"] / seconds["weft"], faster)


def _peak_gib(make: Callable[[], Epoch]) -> tuple[Epoch, float] | None:
    """A side after two epochs, and the most memory that it took; None: more than there is."""
    _free()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    try:
        epoch = make()
        for _ in range(2):
            epoch()
    except torch.OutOfMemoryError:
        return None
    return epoch, (torch.cuda.max_memory_allocated() - before) / GIB


def _free() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def same_seed_same_bits(bench: Bench, graph_name: str, name: str, graph: Graph) -> None:
    """Two runs of three epochs: the losses agree to the bit."""
    runs = []
    for _ in range(2):
        epoch = ours(name, graph, device="cuda")
        runs.append([epoch() for _ in range(3)])
    bench.note(f"{graph_name} {name}: losses of two runs {'agree' if runs[0] == runs[1] else f'differ: {runs}'}")
    bench.bar(f"{graph_name} {name}: the same seed twice gives the same bits", float(runs[0] == runs[1]), 1.0, "")


# -- kernels -----------------------------------------------------------------------------------------------------


def copy_rate() -> float:
    """Bytes a second of a large copy, read and written."""
    source = torch.randn(1 << 28, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() * 4 / seconds_on_gpu(lambda: target.copy_(source))


def run_spmm(bench: Bench, graph_name: str, graph: Graph) -> None:
    csr = graph.adjacency.to(torch.device("cuda"))
    ones = torch.ones(csr.num_edges, device="cuda")
    matrix = torch.sparse_csr_tensor(
        csr.indptr.int(), csr.indices, ones, (csr.num_rows, csr.num_cols), check_invariants=False
    )
    for width in WIDTHS:
        seconds = _spmm_seconds(csr, matrix, width)
        gathered = csr.num_edges * width * 4 / seconds["weft"] / 1e12
        bench.row(f"{graph_name} spmm {width}", seconds, gathered_tb_s=gathered)
        peer = min(seconds["cusparse"], seconds["weft, rows not cut"])
        bench.bar(f"{graph_name} spmm {width}: against the best", seconds["weft"] / peer, SPMM_AIM, at_least=False)
        if width >= 128:
            share = seconds["weft bf16"] / seconds["weft"]
            bench.bar(f"{graph_name} spmm {width}: bf16 against float32", share, BF16_AIM, at_least=False)


def _spmm_seconds(csr: CSR, matrix: Tensor, width: int) -> dict[str, float]:
    edges, cut = (csr.indptr, csr.indices), kernels.cut_rows(csr.indptr)
    x, out = torch.randn(csr.num_cols, width, device="cuda"), torch.empty(csr.num_rows, width, device="cuda")
    short, short_out = x.bfloat16(), out.bfloat16()
    return {
        "weft": seconds_on_gpu(lambda: kernels.spmm(*edges, x, out=out, cut=cut)),
        "weft bf16": seconds_on_gpu(lambda: kernels.spmm(*edges, short, out=short_out, cut=cut)),
        "weft, rows not cut": seconds_on_gpu(lambda: kernels.spmm(*edges, x, out=out)),
        "cusparse": seconds_on_gpu(lambda: matrix @ x),
    }


def run_attention(bench: Bench, graph_name: str, graph: Graph, rate: float) -> None:
    """GAT's kernels: the forward pass gathers a source's row for each edge, the backward pass a gradient's."""
    csr = graph.adjacency.to(torch.device("cuda"))
    indptr_t, indices_t, order_t = kernels.transpose_csr(csr.indptr, csr.indices, csr.num_cols)
    cuts = kernels.cut_rows(csr.indptr), kernels.cut_rows(indptr_t)
    rows, draw = csr.num_rows, torch.randn
    dst, src, delta = (draw(rows, HEADS, device="cuda") for _ in range(3))
    values, grad = (draw(rows, HIDDEN, device="cuda") for _ in range(2))
    m, denominator = torch.full_like(dst, -torch.inf), torch.zeros_like(dst)
    out, into = torch.zeros_like(values), (torch.zeros_like(dst), torch.zeros_like(src), torch.zeros_like(values))
    edges = csr.indptr, csr.indices

    def forward() -> None:
        m.fill_(-torch.inf)
        denominator.zero_()
        out.zero_()
        kernels.gat_absorb(*edges, dst, src, values, 0.2, m, denominator, out, cut=cuts[0])

    def backward() -> None:
        kernels.gat_backward(
            *edges, indptr_t, indices_t, order_t, dst, src, values, 0.2, m, denominator, delta, grad, *into,
            cut=cuts[0], cut_t=cuts[1],
        )  # fmt: skip

    seconds = {"forward": seconds_on_gpu(forward), "backward": seconds_on_gpu(backward)}
    floor = csr.num_edges * HIDDEN * 4 / rate  # what is gathered, as fast as a copy
    bench.row(f"{graph_name} attention", {**seconds, "bytes at a copy's rate": floor})
    for which, took in seconds.items():
        bench.bar(f"{graph_name} attention {which}: against its bytes", took / floor, ATTENTION_AIM, at_least=False)


def run_pack(bench: Bench, rate: float, rows: int) -> None:
    for width in (2, 4, 8):
        seconds, moved = _pack_seconds(rows, width)
        bench.row(f"pack {width} bits", seconds, share_of_copy=moved / seconds["pack"] / rate)
        for which, took in seconds.items():
            bench.bar(f"{which} {width} bits: share of a copy's rate", moved / took / rate, PACK_AIM, "")


def _pack_seconds(rows: int, width: int) -> tuple[dict[str, float], int]:
    """And the bytes that both move."""
    x, ids = torch.randn(rows, HIDDEN, device="cuda"), torch.arange(rows, device="cuda")
    bits = torch.full((rows,), width, dtype=torch.uint8, device="cuda")
    offsets, size = kernels.packed_offsets(HIDDEN, bits)
    message = torch.empty(size, dtype=torch.uint8, device="cuda")
    seconds = {
        "pack": seconds_on_gpu(lambda: kernels.pack(x, None, bits, offsets, ids, 1, message)),
        "unpack": seconds_on_gpu(lambda: kernels.unpack(message, bits, offsets, x)),
    }
    return seconds, x.numel() * 4 + size


# -- the benchmark -----------------------------------------------------------------------------------------------


def wanted(bench: Bench, graph_name: str, kind: str) -> bool:
    """Whether `--only` is part of a case's name, or of its kind's."""
    word = bench.options.only
    return word is None or word in f"{graph_name} {kind}" or word in kind


def run(bench: Bench) -> None:
    rate = copy_rate()
    bench.note(f"{torch.cuda.get_device_name(0)}: a copy moves {rate / 1e12:.2f} TB/s, torch {torch.__version__}")
    bench.rows.append({"case": "machine", "gpu": torch.cuda.get_device_name(0), "copy_bytes_per_second": rate})
    for graph_name, spec in GRAPHS.items():
        kinds = [f"epochs {name}" for name in MODELS] + ["spmm", "attention"]
        kinds = [kind for kind in kinds if wanted(bench, graph_name, kind)]
        if not kinds:
            continue
        graph = open_graph(spec + (QUICK if bench.options.quick else ""))
        bench.note(f"{graph.name}: {graph.num_nodes:,} vertices, {graph.num_edges:,} edges")
        for kind in kinds:
            _free()
            if kind == "spmm":
                run_spmm(bench, graph_name, graph)
            elif kind == "attention":
                run_attention(bench, graph_name, graph, rate)
            else:
                name = kind.removeprefix("epochs ")
                run_epochs(bench, graph_name, name, graph)
                same_seed_same_bits(bench, graph_name, name, graph)
    if wanted(bench, "", "pack"):
        run_pack(bench, rate, 10_000 if bench.options.quick else 1_000_000)


def main(argv: list[str] | None = None) -> int:
    bench = Bench("gpu", rounds=5, options=parse(__doc__, argv))
    if not torch.cuda.is_available():
        print(f"this measures a GPU, and torch {torch.__version__} can use none here", file=sys.stderr)
        return 2
    run(bench)
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
