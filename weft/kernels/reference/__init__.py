"""Every kernel in plain torch: its specification, the oracle of the tests, and what runs where no other backend does.

These functions expect arguments that weft.kernels has checked. A backend's kernel has the same name and signature.
"""

from collections.abc import Callable
from typing import Any

from weft.kernels.reference.attention import (
    attend_finish,
    dot_absorb,
    dot_backward,
    gat_absorb,
    gat_backward,
    gatv2_absorb,
    gatv2_backward,
)
from weft.kernels.reference.csr import build_csr, transpose_csr
from weft.kernels.reference.elementwise import (
    bias_elu_dropout,
    bias_relu_dropout_,
    dropout_rows,
    elu_dropout_backward,
    head_dot,
    head_dot_backward,
    relu_dropout_backward,
    rowwise_head_dot,
)
from weft.kernels.reference.index import extremes
from weft.kernels.reference.partition import community_order, rebalance, stream_partition
from weft.kernels.reference.products import list_nonzeros, product, reduce_product
from weft.kernels.reference.quantise import pack, unpack
from weft.kernels.reference.rows import gather, max_absorb, max_backward, max_finish, scatter_add, spmm
from weft.kernels.reference.sampling import (
    find_slots,
    forget,
    gather_places,
    merge_sides,
    number_known,
    number_new,
    sample,
    split_columns,
    with_loops,
)

__all__ = [
    "attend_finish",
    "bias_elu_dropout",
    "bias_relu_dropout_",
    "build_csr",
    "community_order",
    "dot_absorb",
    "dot_backward",
    "dropout_rows",
    "elu_dropout_backward",
    "extremes",
    "find_slots",
    "forget",
    "gat_absorb",
    "gat_backward",
    "gather",
    "gather_places",
    "gatv2_absorb",
    "gatv2_backward",
    "head_dot",
    "head_dot_backward",
    "list_nonzeros",
    "max_absorb",
    "max_backward",
    "max_finish",
    "merge_sides",
    "number_known",
    "number_new",
    "pack",
    "product",
    "rebalance",
    "reduce_product",
    "relu_dropout_backward",
    "rowwise_head_dot",
    "sample",
    "scatter_add",
    "split_columns",
    "spmm",
    "stream_partition",
    "transpose_csr",
    "unpack",
    "with_loops",
]

KERNELS: dict[str, Callable[..., Any]] = {name: globals()[name] for name in __all__}
