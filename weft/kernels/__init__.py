"""The kernels, as functions of torch tensors, which backends run: see weft/kernels/backends.py."""

from weft.kernels import native, triton
from weft.kernels.attention import (
    attend_finish,
    dot_absorb,
    dot_backward,
    gat_absorb,
    gat_backward,
    gatv2_absorb,
    gatv2_backward,
)
from weft.kernels.backends import Backend, register_backend
from weft.kernels.build import native_available
from weft.kernels.csr import build_csr, transpose_csr
from weft.kernels.cuts import cut_rows
from weft.kernels.elementwise import (
    bias_elu_dropout,
    bias_relu_dropout_,
    dropout_rows,
    elu_dropout_backward,
    head_dot,
    head_dot_backward,
    relu_dropout_backward,
    rowwise_head_dot,
)
from weft.kernels.quantise import pack, packed_bytes, packed_offsets, unpack
from weft.kernels.rows import gather, max_absorb, max_backward, max_finish, scatter_add, spmm

__all__ = [
    "Backend",
    "attend_finish",
    "bias_elu_dropout",
    "bias_relu_dropout_",
    "build_csr",
    "cut_rows",
    "dot_absorb",
    "dot_backward",
    "dropout_rows",
    "elu_dropout_backward",
    "gat_absorb",
    "gat_backward",
    "gather",
    "gatv2_absorb",
    "gatv2_backward",
    "head_dot",
    "head_dot_backward",
    "max_absorb",
    "max_backward",
    "max_finish",
    "native_available",
    "pack",
    "packed_bytes",
    "packed_offsets",
    "register_backend",
    "relu_dropout_backward",
    "rowwise_head_dot",
    "scatter_add",
    "spmm",
    "transpose_csr",
    "unpack",
]

register_backend(native.BACKEND)
register_backend(triton.BACKEND)
