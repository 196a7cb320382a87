"""Functions that run inside kernels: hashes, and which edges a program works on."""

import triton
import triton.language as tl

_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
_FIRST = tl.constexpr(0xBF58476D1CE4E5B9)
_SECOND = tl.constexpr(0x94D049BB133111EB)
_SOURCE = tl.constexpr(0xC2B2AE3D27D4EB4F)
_COLUMN = tl.constexpr(0x9E3779B9)


@triton.jit
def unsigned(number):
    return number.to(tl.int64).to(tl.uint64, bitcast=True)


@triton.jit
def splitmix64(value):
    value = value + tl.full([], _GOLDEN, tl.uint64)
    value = (value ^ (value >> 30)) * tl.full([], _FIRST, tl.uint64)
    value = (value ^ (value >> 27)) * tl.full([], _SECOND, tl.uint64)
    return value ^ (value >> 31)


@triton.jit
def row_hash(ids, key):
    """Of global ids, int64, and a key: what the hashes of a row's columns begin with."""
    return splitmix64(unsigned(ids) * tl.full([], _GOLDEN, tl.uint64) + unsigned(key))


@triton.jit
def edge_hash(dst_hash, src_ids):
    return splitmix64(unsigned(src_ids) * tl.full([], _SOURCE, tl.uint64) + dst_hash)


@triton.jit
def mix(hashes, columns):
    """32 random bits for each hash and column (any shapes that broadcast)."""
    v = hashes.to(tl.uint32) + columns.to(tl.uint32) * tl.full([], _COLUMN, tl.uint32)
    v = (v ^ (v >> 16)) * tl.full([], 0x85EBCA6B, tl.uint32)
    v = (v ^ (v >> 13)) * tl.full([], 0xC2B2AE35, tl.uint32)
    return v ^ (v >> 16) ^ (hashes >> 32).to(tl.uint32)


@triton.jit
def keep(hashes, columns, threshold):
    return mix(hashes, columns).to(tl.int64) >= threshold


@triton.jit
def item_of(item, indptr, piece_row, piece_begin, num_pieces, piece_edges):
    """Row, edges begin to end, whether it is a piece of a long row, and whether it is a row as a whole.

    Pieces come first. A long row itself is neither, and has no edges here.
    """
    is_piece = item < num_pieces
    if piece_row is None:
        row = item.to(tl.int64)
        begin, end = tl.load(indptr + row), tl.load(indptr + row + 1)
    else:
        row = (item - num_pieces).to(tl.int64)
        begin = tl.zeros([], tl.int64)
        if is_piece:
            row = tl.load(piece_row + item).to(tl.int64)
            begin = tl.load(piece_begin + item)
            end = tl.minimum(begin + piece_edges, tl.load(indptr + row + 1))
        else:
            begin, end = tl.load(indptr + row), tl.load(indptr + row + 1)
    is_whole = (item >= num_pieces) & (end - begin <= piece_edges)
    end = tl.where(is_piece | is_whole, end, begin)
    return row, begin, end, is_piece, is_whole
