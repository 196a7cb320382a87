"""What runs inside the kernels of attention. A program works on one head of a row, or of a piece of a long row.

The kinds differ in their logits: leaky_relu(dst + src) of two terms (GAT), att . leaky_relu(dst + src) of two rows
(GATV2, whose sources are its values too), and scale * dst . src (DOT).
"""
# ruff: noqa: E741  (m, l, o are the names of the online softmax everywhere)

import triton
import triton.language as tl

from weft.kernels.triton.device import edge_hash, item_of, keep, row_hash

GAT = tl.constexpr(0)
GATV2 = tl.constexpr(1)
DOT = tl.constexpr(2)
_STEADY = ["num_pieces", "piece_edges", "key", "threshold", "num_items", "num_programs"]


@triton.jit
def leaky(raw, SLOPE: tl.constexpr):
    return tl.where(raw > 0, raw, raw * SLOPE)


@triton.jit
def head_rows(x, rows, mask, head, width, HEADS: tl.constexpr, BLOCK: tl.constexpr, SUM: tl.constexpr):
    """One head's columns of some rows, [rows, BLOCK]."""
    columns = tl.arange(0, BLOCK)
    places = x + (rows * HEADS + head)[:, None] * width + columns[None, :]
    return tl.load(places, mask=mask[:, None] & (columns < width)[None, :], other=0.0).to(SUM)


@triton.jit
def head_row(x, row, head, width, HEADS: tl.constexpr, BLOCK: tl.constexpr, SUM: tl.constexpr):
    """One head's columns of one row, [BLOCK]."""
    columns = tl.arange(0, BLOCK)
    return tl.load(x + (row * HEADS + head) * width + columns, mask=columns < width, other=0.0).to(SUM)


@triton.jit
def edge_logits(queries, keys, vector, FACTOR: tl.constexpr, KIND: tl.constexpr):
    """Of each edge, [E]; of queries and keys, [E, BLOCK_D], one may be a single row."""
    if KIND == GAT:
        logits = leaky(tl.sum(queries + keys, axis=1), FACTOR)
    elif KIND == GATV2:
        logits = tl.sum(leaky(queries + keys, FACTOR) * vector[None, :], axis=1)
    else:
        logits = tl.sum(queries * keys, axis=1) * FACTOR
    return logits


@triton.jit(do_not_specialize=["num_items"])
def finish(l, o, num_items, width, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr):
    items = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    columns = tl.arange(0, BLOCK_D)
    total = tl.load(l + items, mask=items < num_items, other=0.0)[:, None]
    mask = (items < num_items)[:, None] & (columns < width)[None, :]
    places = o + items[:, None] * width + columns[None, :]
    value = tl.load(places, mask=mask, other=0.0)
    tl.store(places, tl.where(total == 0, 0.0, value / tl.where(total == 0, 1.0, total)), mask=mask)


@triton.jit(do_not_specialize=_STEADY)
def absorb(
    indptr, indices, dst, src, values, att, m, l, o, part_m, part_l, part_o, piece_row, piece_begin, num_pieces,
    piece_edges, dst_ids, src_ids, key, threshold, width, value_width, HEADS: tl.constexpr, BLOCK_E: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, KEEP_SCALE: tl.constexpr, FACTOR: tl.constexpr, KIND: tl.constexpr,
    SUM: tl.constexpr,
):  # fmt: skip
    item, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    row, begin, end, is_piece, _ = item_of(item, indptr, piece_row, piece_begin, num_pieces, piece_edges)
    columns = tl.arange(0, BLOCK_V)
    inside = columns < value_width
    place = row * HEADS + head
    largest = tl.load(m + place, mask=item >= num_pieces, other=float("-inf"))
    total = tl.load(l + place, mask=item >= num_pieces, other=0.0)
    sums = tl.load(o + place * value_width + columns, mask=columns < tl.where(is_piece, 0, value_width), other=0.0)
    own = head_row(dst, row, head, width, HEADS, BLOCK_D, SUM)
    vector = own
    if KIND == GATV2:
        vector = head_row(att, 0, head, width, HEADS, BLOCK_D, SUM)
    if dst_ids is not None:
        own_hash = row_hash(tl.load(dst_ids + row), key)
    for first in range(begin, end, BLOCK_E):
        edges = first + tl.arange(0, BLOCK_E)
        there = edges < end
        sources = tl.load(indices + edges, mask=there, other=0).to(tl.int64)
        z = head_rows(values, sources, there, head, value_width, HEADS, BLOCK_V, SUM)
        keys = z
        if KIND != GATV2:
            keys = head_rows(src, sources, there, head, width, HEADS, BLOCK_D, SUM)
        logits = tl.where(there, edge_logits(own[None, :], keys, vector, FACTOR, KIND), float("-inf"))
        found = tl.maximum(largest, tl.max(logits, axis=0))
        shrink = tl.where(found == largest, 1.0, tl.exp(largest - found))
        share = tl.where(there, tl.exp(logits - found), 0.0)
        total = total * shrink + tl.sum(share, axis=0)
        if dst_ids is not None:
            hashes = edge_hash(own_hash, tl.load(src_ids + sources, mask=there, other=0))
            share = tl.where(keep(hashes, head, threshold), share * KEEP_SCALE, 0.0)
        sums = sums * shrink + tl.sum(share[:, None] * z, axis=0)
        largest = found
    if is_piece:
        if part_m is not None:
            own_place = item.to(tl.int64) * HEADS + head
            tl.store(part_m + own_place, largest)
            tl.store(part_l + own_place, total)
            tl.store(part_o + own_place * value_width + columns, sums, mask=inside)
    else:
        if end > begin:
            tl.store(m + place, largest)
            tl.store(l + place, total)
            tl.store(o + place * value_width + columns, sums, mask=inside)


@triton.jit
def merge(
    part_m, part_l, part_o, long_rows, first_piece, m, l, o, value_width, HEADS: tl.constexpr, BLOCK_V: tl.constexpr
):
    """Adds the states of a long row's pieces to its state, in their order."""
    hub, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    columns = tl.arange(0, BLOCK_V)
    inside = columns < value_width
    place = tl.load(long_rows + hub) * HEADS + head
    largest, total = tl.load(m + place), tl.load(l + place)
    sums = tl.load(o + place * value_width + columns, mask=inside, other=0.0)
    for piece in range(tl.load(first_piece + hub), tl.load(first_piece + hub + 1)):
        at = piece * HEADS + head
        other = tl.load(part_m + at)
        found = tl.maximum(largest, other)
        shrink = tl.where(found == largest, 1.0, tl.exp(largest - found))
        factor = tl.where(found == other, 1.0, tl.exp(other - found))
        total = total * shrink + tl.load(part_l + at) * factor
        sums = sums * shrink + tl.load(part_o + at * value_width + columns, mask=inside, other=0.0) * factor
        largest = found
    tl.store(m + place, largest)
    tl.store(l + place, total)
    tl.store(o + place * value_width + columns, sums, mask=inside)


@triton.jit(do_not_specialize=_STEADY)
def sources(
    indptr_t, indices_t, order_t, dst, src, values, att, m, l, delta, grad, d_logits, d_src, d_values, part_src,
    part_values, piece_row, piece_begin, num_pieces, piece_edges, dst_ids, src_ids, key, threshold, width, value_width,
    HEADS: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, KEEP_SCALE: tl.constexpr,
    FACTOR: tl.constexpr, KIND: tl.constexpr, SUM: tl.constexpr,
):  # fmt: skip
    """Gradients of a source's term or key, of its values, and of the sums that its edges' logits are made of."""
    item, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    row, begin, end, is_piece, _ = item_of(item, indptr_t, piece_row, piece_begin, num_pieces, piece_edges)
    z = head_row(values, row, head, value_width, HEADS, BLOCK_V, SUM)
    own = head_row(src, row, head, width, HEADS, BLOCK_D, SUM)
    vector = own
    if KIND == GATV2:
        vector = head_row(att, 0, head, width, HEADS, BLOCK_D, SUM)
    to_src = tl.zeros([BLOCK_D], dtype=SUM)
    to_values = tl.zeros([BLOCK_V], dtype=SUM)
    for first in range(begin, end, BLOCK_E):
        edges = first + tl.arange(0, BLOCK_E)
        there = edges < end
        rows = tl.load(indices_t + edges, mask=there, other=0).to(tl.int64)
        at = rows * HEADS + head
        queries = head_rows(dst, rows, there, head, width, HEADS, BLOCK_D, SUM)
        g = head_rows(grad, rows, there, head, value_width, HEADS, BLOCK_V, SUM)
        logits = edge_logits(queries, own[None, :], vector, FACTOR, KIND)
        share = tl.exp(logits - tl.load(m + at, mask=there, other=0.0)) / tl.load(l + at, mask=there, other=1.0)
        share = tl.where(there, share, 0.0)
        kept = share
        back = tl.sum(g * z[None, :], axis=1)
        if dst_ids is not None:
            hashes = edge_hash(row_hash(tl.load(dst_ids + rows, mask=there, other=0), key), tl.load(src_ids + row))
            kept_here = keep(hashes, head, threshold)
            kept = tl.where(kept_here, share * KEEP_SCALE, 0.0)
            back = tl.where(kept_here, back * KEEP_SCALE, 0.0)
        slant = share * (back - tl.load(delta + at, mask=there, other=0.0))
        if KIND == GAT:
            slant = tl.where(tl.sum(queries + own[None, :], axis=1) > 0, slant, slant * FACTOR)
            to_src += tl.sum(slant[:, None], axis=0)  # a term is a single column
        elif KIND == GATV2:
            steep = slant[:, None] * vector[None, :]
            to_src += tl.sum(tl.where(queries + own[None, :] > 0, steep, steep * FACTOR), axis=0)
        else:
            slant = slant * FACTOR
            to_src += tl.sum(slant[:, None] * queries, axis=0)
        to_values += tl.sum(kept[:, None] * g, axis=0)
        tl.store(d_logits + tl.load(order_t + edges, mask=there, other=0) * HEADS + head, slant, mask=there)
    if KIND == GATV2:
        to_src += to_values
    add_row(d_src, part_src, to_src, item, row, head, width, end > begin, is_piece, HEADS, BLOCK_D)
    if KIND != GATV2:
        add_row(d_values, part_values, to_values, item, row, head, value_width, end > begin, is_piece, HEADS, BLOCK_V)


@triton.jit
def add_row(d, partial, total, item, row, head, width, touched, is_piece, HEADS: tl.constexpr, BLOCK: tl.constexpr):
    """Adds to one head of a row, or writes what a piece summed up."""
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    if is_piece:
        if partial is not None:
            tl.store(partial + (item.to(tl.int64) * HEADS + head) * width + columns, total, mask=inside)
    else:
        places = d + (row * HEADS + head) * width + columns
        mask = columns < tl.where(touched, width, 0)
        tl.store(places, tl.load(places, mask=mask, other=0.0) + total, mask=mask)


@triton.jit(do_not_specialize=_STEADY)
def destinations(
    indptr, indices, dst, src, att, d_logits, d_dst, att_shares, partial, piece_row, piece_begin, num_pieces,
    piece_edges, num_items, num_programs, width, HEADS: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_D: tl.constexpr,
    FACTOR: tl.constexpr, KIND: tl.constexpr, SUM: tl.constexpr,
):  # fmt: skip
    """Gradients of queries (GATV2, DOT), and each program's share of that of GATV2's vector."""
    program, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    columns = tl.arange(0, BLOCK_D)
    to_att = tl.zeros([BLOCK_D], dtype=SUM)
    for turn in range(0, tl.cdiv(num_items - program, num_programs)):
        item = program + turn * num_programs
        row, begin, end, is_piece, _ = item_of(item, indptr, piece_row, piece_begin, num_pieces, piece_edges)
        own = head_row(dst, row, head, width, HEADS, BLOCK_D, SUM)
        total = tl.zeros([BLOCK_D], dtype=SUM)
        for first in range(begin, end, BLOCK_E):
            edges = first + tl.arange(0, BLOCK_E)
            there = edges < end
            cols = tl.load(indices + edges, mask=there, other=0).to(tl.int64)
            keys = head_rows(src, cols, there, head, width, HEADS, BLOCK_D, SUM)
            slant = tl.load(d_logits + edges * HEADS + head, mask=there, other=0.0)[:, None]
            if KIND == GATV2:
                raw = own[None, :] + keys
                to_att += tl.sum(slant * leaky(raw, FACTOR), axis=0)
                total += tl.sum(tl.where(raw > 0, slant, slant * FACTOR), axis=0)
            else:
                total += tl.sum(slant * keys, axis=0)
        if KIND == GATV2:
            total = total * head_row(att, 0, head, width, HEADS, BLOCK_D, SUM)
        add_row(d_dst, partial, total, item, row, head, width, end > begin, is_piece, HEADS, BLOCK_D)
    if KIND == GATV2:
        tl.store(att_shares + (program * HEADS + head) * width + columns, to_att, mask=columns < width)
