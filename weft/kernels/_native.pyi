"""The native module: what src/ binds, for the type checker. tests/kernels/test_build.py compares it with the module.

Kernels of tensors take addresses: a call costs 3 us so, and 11 where tensors cross the border through DLPack. A row
count, a dtype code (weft/kernels/native/pointers.py) or a number of threads is an int. 0 stands for no tensor.
Kernels of graphs and of edge files take NumPy arrays.
"""

import collections.abc
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Pointer: TypeAlias = int
Carried: TypeAlias = collections.abc.Sequence[NDArray[np.uint8]]  # what edges carry, array by array
Csr: TypeAlias = tuple[Pointer, Pointer, int, int]  # indptr, indices, rows, edges
Transposed: TypeAlias = tuple[Pointer, Pointer, Pointer, int]  # indptr, indices, forward positions, rows
Drop: TypeAlias = tuple[float, int, Pointer, Pointer]  # p, key, ids of destinations, ids of sources
Gat: TypeAlias = tuple[Pointer, Pointer, Pointer, int, int, int, float]  # 2 terms, values, dtype, heads, columns, slope
Gatv2: TypeAlias = tuple[
    Pointer, Pointer, int, Pointer, int, int, float
]  # query, key, dtype, att, heads, columns, slope
Dot: TypeAlias = tuple[
    Pointer, Pointer, Pointer, int, int, int, int, float
]  # query, key, values, dtype, heads, columns of keys, columns of values, scale
Two: TypeAlias = tuple[Pointer, Pointer]
Three: TypeAlias = tuple[Pointer, Pointer, Pointer]
Four: TypeAlias = tuple[Pointer, Pointer, Pointer, Pointer]
InEdges: TypeAlias = tuple[Pointer, Pointer, Pointer, Pointer, Pointer]  # indptr, indices, weight, row ids, column ids

isa: str  # avx512, avx2 or plain
source_hash: str  # of cmake/source_hash.cmake

def attend_finish(l: Pointer, o: Pointer, dtype: int, rows: int, heads: int, width: int, threads: int, /) -> None: ...
def bias_elu_dropout(
    x: Pointer,
    dtype: int,
    rows: int,
    width: int,
    bias: Pointer,
    row_ids: Pointer,
    p: float,
    key: int,
    out: Pointer,
    threads: int,
    /,
) -> None: ...
def bias_relu_dropout(
    x: Pointer, dtype: int, rows: int, width: int, bias: Pointer, row_ids: Pointer, p: float, key: int, threads: int, /
) -> None: ...
def build_csr(
    src: Pointer,
    dst: Pointer,
    wide: bool,
    edges: int,
    num_src: int,
    num_dst: int,
    indptr: Pointer,
    indices: Pointer,
    order: Pointer,
    threads: int,
    /,
) -> None: ...
def community_order(
    indptr: NDArray[np.int64], indices: NDArray[np.int32], room: int, growth: int, rounds: int
) -> NDArray[np.int64]: ...
def count_edges(
    src: NDArray[np.int32], dst: NDArray[np.int32], both_ways: bool, degrees: NDArray[np.int32]
) -> None: ...
def count_sampled(
    graph: InEdges,
    rows: Pointer,
    bounds: Pointer,
    keys: Pointer,
    batches: int,
    fanout: int,
    method: int,
    first: tuple[Pointer, Pointer],
    begins: Pointer,
    degrees: Pointer,
    indptr: Pointer,
    intervals: Pointer,
    threads: int,
    /,
) -> None: ...
def density(x: Pointer, rows: int, width: int, stride: int, sampled: int, /) -> float: ...
def dot_absorb(csr: Csr, inputs: Dot, state: Three, drop: Drop | None, threads: int, /) -> None: ...
def dot_backward(
    csr: Csr,
    transposed: Transposed,
    inputs: Dot,
    state: Four,
    gradients: Three,
    scratch: Two,
    drop: Drop | None,
    threads: int,
    /,
) -> None: ...
def dropout_rows(
    x: Pointer, dtype: int, rows: int, width: int, row_ids: Pointer, p: float, key: int, out: Pointer, threads: int, /
) -> None: ...
def elu_dropout_backward(
    grad: Pointer,
    result: Pointer,
    dtype: int,
    rows: int,
    width: int,
    row_ids: Pointer,
    p: float,
    key: int,
    into: Pointer,
    threads: int,
    /,
) -> None: ...
def extremes(index: Pointer, count: int, wide: bool, threads: int, /) -> tuple[int, int]: ...
def fill_sampled(
    graph: InEdges,
    rows: Pointer,
    bounds: Pointer,
    keys: Pointer,
    batches: int,
    fanout: int,
    method: int,
    first: tuple[Pointer, Pointer],
    begins: Pointer,
    degrees: Pointer,
    indptr: Pointer,
    intervals: Pointer,
    columns: Pointer,
    positions: Pointer,
    threads: int,
    /,
) -> None: ...
def find_slots(
    table: Pointer,
    nodes: Pointer,
    count: int,
    own_start: int,
    own_end: int,
    slots: int,
    stamp: int,
    where: Pointer,
    fetched: Pointer,
    /,
) -> tuple[int, int]: ...
def forget(table: Pointer, nodes: Pointer, count: int, /) -> None: ...
def gat_absorb(csr: Csr, inputs: Gat, state: Three, drop: Drop | None, threads: int, /) -> None: ...
def gat_backward(
    csr: Csr,
    transposed: Transposed,
    inputs: Gat,
    state: Four,
    gradients: Three,
    scratch: Two,
    drop: Drop | None,
    threads: int,
    /,
) -> None: ...
def gather(
    x: Pointer, index: Pointer, wide: bool, count: int, row_bytes: int, out: Pointer, threads: int, /
) -> None: ...
def gather_places(
    own: Pointer,
    num_own: int,
    cache: Pointer,
    num_cached: int,
    fetched: Pointer,
    where: Pointer,
    count: int,
    row_bytes: int,
    out: Pointer,
    threads: int,
    /,
) -> None: ...
def gatv2_absorb(csr: Csr, inputs: Gatv2, state: Three, drop: Drop | None, threads: int, /) -> None: ...
def gatv2_backward(
    csr: Csr,
    transposed: Transposed,
    inputs: Gatv2,
    state: Four,
    gradients: Three,
    scratch: Pointer,
    drop: Drop | None,
    threads: int,
    /,
) -> None: ...
def group_edges(
    src: NDArray[np.int32],
    dst: NDArray[np.int32],
    carried: Carried,
    without_loops: bool,
    shift: int,
    group_of_cell: NDArray[np.int32],
    pairs: NDArray[np.int32],
    room: Carried,
    counts: NDArray[np.int64],
) -> int: ...
def head_dot(
    z: Pointer, dtype: int, rows: int, heads: int, width: int, att: Pointer, out: Pointer, threads: int, /
) -> None: ...
def head_dot_backward(
    z: Pointer,
    dtype: int,
    rows: int,
    heads: int,
    width: int,
    att: Pointer,
    grad: Pointer,
    d_z: Pointer,
    d_att: Pointer,
    threads: int,
    /,
) -> None: ...
def list_nonzeros(
    left: Pointer,
    rows: int,
    depth: int,
    left_stride: int,
    by_column: bool,
    starts: Pointer,
    offsets: Pointer,
    values: Pointer,
    /,
) -> None: ...
def locate(
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    owner: NDArray[np.int16],
    position: NDArray[np.int32],
    starts: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> None: ...
def mark_bits(positions: NDArray[np.int32], bits: NDArray[np.uint64]) -> None: ...
def max_absorb(
    indptr: Pointer,
    indices: Pointer,
    rows: int,
    edges: int,
    x: Pointer,
    dtype: int,
    width: int,
    weight: Pointer,
    out: Pointer,
    count: Pointer,
    threads: int,
    /,
) -> None: ...
def max_backward(
    indptr: Pointer,
    indices: Pointer,
    rows: int,
    edges: int,
    x: Pointer,
    dtype: int,
    width: int,
    weight: Pointer,
    out: Pointer,
    grad_share: Pointer,
    dx: Pointer,
    threads: int,
    /,
) -> None: ...
def merge_sides(
    first_start: Pointer,
    first: Pointer,
    second_start: Pointer,
    second: Pointer,
    begin: int,
    end: int,
    before: int,
    first_columns: int,
    ids: Pointer,
    out: Pointer,
    order: Pointer,
    threads: int,
    /,
) -> None: ...
def num_lists(rows: int, depth: int, by_column: bool, /) -> int: ...
def number_bits(positions: NDArray[np.int32], bits: NDArray[np.uint64], before: NDArray[np.int64]) -> None: ...
def number_known(table: Pointer, nodes: Pointer, count: int, /) -> None: ...
def number_new(table: Pointer, nodes: Pointer, known: int, ends: Pointer, edges: int, columns: Pointer, /) -> int: ...
def pack(
    x: Pointer,
    width: int,
    index: Pointer,
    rows: int,
    bits: Pointer,
    offsets: Pointer,
    ids: Pointer,
    key: int,
    out: Pointer,
    spans: Pointer,
    threads: int,
    /,
) -> int: ...
def rebalance(
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    owner: NDArray[np.int32],
    num_parts: int,
    load: NDArray[np.float64],
    limit: NDArray[np.float64],
    weight: NDArray[np.int32] | None = None,
) -> NDArray[np.int32]: ...
def relu_dropout_backward(
    grad: Pointer, out: Pointer, dtype: int, count: int, p: float, into: Pointer, threads: int, /
) -> None: ...
def scatter_add(
    out: Pointer,
    out_rows: int,
    width: int,
    index: Pointer,
    wide: bool,
    count: int,
    rows: Pointer,
    dtype: int,
    threads: int,
    /,
) -> None: ...
def skip_product(
    left: Pointer,
    rows: int,
    depth: int,
    left_stride: int,
    right: Pointer,
    width: int,
    right_stride: int,
    right_step: int,
    out: Pointer,
    out_stride: int,
    accumulate: bool,
    threads: int,
    lists: Three | None,
    /,
) -> None: ...
def skip_reduce(
    left: Pointer,
    rows: int,
    depth: int,
    left_stride: int,
    right: Pointer,
    width: int,
    right_stride: int,
    out: Pointer,
    threads: int,
    lists: Three | None,
    /,
) -> None: ...
def sort_bucket(
    pairs: NDArray[np.int32],
    first: int,
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    order: NDArray[np.int64],
) -> None: ...
def split_columns(
    indptr: Pointer, indices: Pointer, rows: int, border: int, before: Three, after: Three, /
) -> None: ...
def split_rows(
    indptr: NDArray[np.int64],
    positions: NDArray[np.int32],
    carried: Carried,
    owner: NDArray[np.int16],
    starts: NDArray[np.int64],
    counts: NDArray[np.int64],
    local_degrees: NDArray[np.int32],
    remote_degrees: NDArray[np.int32],
    local: NDArray[np.int32],
    remote: NDArray[np.int32],
    local_room: Carried,
    remote_room: Carried,
) -> None: ...
def spmm(
    indptr: Pointer,
    indices: Pointer,
    rows: int,
    edges: int,
    x: Pointer,
    x_dtype: int,
    width: int,
    weight: Pointer,
    row_scale: Pointer,
    col_scale: Pointer,
    out: Pointer,
    out_dtype: int,
    accumulate: bool,
    threads: int,
    /,
) -> None: ...
def stream_partition(
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    order: NDArray[np.int64],
    owner: NDArray[np.int32],
    num_parts: int,
    load: NDArray[np.float64],
    limit: NDArray[np.float64],
    passes: int,
) -> NDArray[np.int32]: ...
def stream_rows(
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    first: int,
    owner: NDArray[np.int16],
    load: NDArray[np.float64],
    limit: NDArray[np.float64],
    filled: NDArray[np.float64],
    price: float,
    per_part: float,
) -> None: ...
def transpose_csr(
    indptr: Pointer,
    indices: Pointer,
    rows: int,
    columns: int,
    edges: int,
    indptr_t: Pointer,
    indices_t: Pointer,
    order: Pointer,
    threads: int,
    /,
) -> None: ...
def unpack(
    message: Pointer,
    width: int,
    rows: int,
    bits: Pointer,
    offsets: Pointer,
    index: Pointer,
    into: Pointer,
    add: bool,
    threads: int,
    /,
) -> None: ...
def with_loops(
    indptr: Pointer,
    indices: Pointer,
    weight: Pointer,
    loop_weight: Pointer,
    rows: int,
    out_indptr: Pointer,
    out_indices: Pointer,
    out_weight: Pointer,
    /,
) -> int: ...
