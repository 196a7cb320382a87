// Dot attention: logits scale * query[i] . key[j], softmax over in-edges, weighted sum of values[j].
//
// Forward gathers a key row and a value row an edge, E * H * (D + Dv) values once, and writes no coefficient.
// Backward gathers three wide rows an edge, E * H * (2 D + Dv), the least there is without atomic additions. It walks
// the transposed edges, where query[i] and grad[i] are gathered while key[j], values[j] and both of their gradients
// stay in cache; then the edges by destination, where key[j] is gathered for d_query[i]. E * H d_logits pass from the
// first walk to the second through scratch. Destinations first would gather values[j] too.
#include "kernels/attention.h"
#include "kernels/tables.h"

namespace weft {
namespace WEFT_ISA {
namespace {

template <class X, int HH>
void absorb(const DotArgs &a) {
    typedef Acc<X> S;
    const int64_t H = HH ? HH : a.heads, D = a.width, Dv = a.value_width, pitch = H * D, value_pitch = H * Dv;
    const X *query = static_cast<const X *>(a.query), *key = static_cast<const X *>(a.key),
            *values = static_cast<const X *>(a.values);
    const S scale = S(a.scale);
    const DropState state(a.drop);
    const int64_t key_bytes = pitch * sizeof(X), value_bytes = value_pitch * sizeof(X);
    const Ahead ahead(key_bytes + value_bytes);
    const Chunks chunks(a.csr.indptr, a.csr.rows, a.csr.edges, 4096);
#pragma omp parallel num_threads(a.threads) if (chunks.count > 1)
    {
        Scratch<S> logits(kBatch * H), shrink(H), wide(pitch);
#pragma omp for schedule(dynamic, 1)
        for (int64_t chunk = 0; chunk < chunks.count; chunk++) {
            for (int64_t row = chunks.begin(chunk); row < chunks.begin(chunk + 1); row++) {
                if (a.csr.indptr[row] == a.csr.indptr[row + 1]) continue;
                const S *q = wide_row(query + row * pitch, pitch, wide.data);
                S *m = static_cast<S *>(a.m) + row * H, *l = static_cast<S *>(a.l) + row * H,
                  *o = static_cast<S *>(a.o) + row * value_pitch;
                const uint64_t row_key = state.on ? row_hash(a.drop.key, a.drop.dst_ids[row]) : 0;
                for (int64_t begin = a.csr.indptr[row]; begin < a.csr.indptr[row + 1]; begin += kBatch) {
                    const int64_t left = a.csr.indptr[row + 1] - begin, n = left < kBatch ? left : kBatch;
                    const int32_t *cols = a.csr.indices + begin;
                    for (int64_t k = 0; k < n; k++) {
                        ahead.at(begin + k, a.csr.edges, [&](int64_t edge, auto fetch) WEFT_ASKS {
                            fetch(key + a.csr.indices[edge] * pitch, key_bytes);
                            fetch(values + a.csr.indices[edge] * value_pitch, value_bytes);
                        });
                        const X *kj = key + cols[k] * pitch;
                        for (int64_t h = 0; h < H; h++)
                            logits.data[k * H + h] = scale * dot_row(kj + h * D, q + h * D, D);
                    }
                    fold_logits<HH>(logits.data, n, H, m, l, shrink.data);
                    if (state.on) drop_coefficients<HH>(logits.data, cols, n, H, a.drop, state, row_key);
                    for (int64_t h = 0; h < H; h++)
                        weighted_rows(values + h * Dv, value_pitch, cols, n, logits.data + h, H, o + h * Dv, Dv,
                                      shrink.data[h]);
                }
            }
        }
    }
}

// d_key and d_values, and scale * d_logit of every edge in forward order.
template <class X, int HH>
void backward_sources(const DotBackwardArgs &a) {
    typedef Acc<X> S;
    constexpr int64_t kEdges = LeavingEdges<S>::kMost;
    const int64_t H = HH ? HH : a.heads, D = a.width, Dv = a.value_width, pitch = H * D, value_pitch = H * Dv;
    const X *query = static_cast<const X *>(a.query), *key = static_cast<const X *>(a.key),
            *values = static_cast<const X *>(a.values);
    const S *grad = static_cast<const S *>(a.grad), *per_row = static_cast<const S *>(a.per_row);
    S *d_logits = static_cast<S *>(a.d_logits);
    const S scale = S(a.scale);
    const DropState state(a.drop);
    const Transposed &t = a.transposed;
    const int64_t query_bytes = pitch * sizeof(X), grad_bytes = value_pitch * sizeof(S);
    const Ahead ahead(query_bytes + grad_bytes);
    const Chunks chunks(t.indptr, t.rows, a.csr.edges, 4096);
#pragma omp parallel num_threads(a.threads) if (chunks.count > 1)
    {
        LeavingEdges<S> edges(H);
        Scratch<S> wide_key(pitch), wide_value(value_pitch);
#pragma omp for schedule(dynamic, 1)
        for (int64_t chunk = 0; chunk < chunks.count; chunk++) {
            for (int64_t source = chunks.begin(chunk); source < chunks.begin(chunk + 1); source++) {
                if (t.indptr[source] == t.indptr[source + 1]) continue;
                const S *own = wide_row(key + source * pitch, pitch, wide_key.data),
                        *z = wide_row(values + source * value_pitch, value_pitch, wide_value.data);
                S *d_key = static_cast<S *>(a.d_key) + source * pitch,
                  *d_values = static_cast<S *>(a.d_values) + source * value_pitch;
                for (int64_t begin = t.indptr[source]; begin < t.indptr[source + 1]; begin += kEdges) {
                    const int64_t left = t.indptr[source + 1] - begin, n = left < kEdges ? left : kEdges;
                    const int32_t *rows = t.indices + begin;
                    for (int64_t k = 0; k < n; k++) {
                        ahead.at(begin + k, a.csr.edges, [&](int64_t edge, auto fetch) WEFT_ASKS {
                            fetch(query + t.indices[edge] * pitch, query_bytes);
                            fetch(grad + t.indices[edge] * value_pitch, grad_bytes);
                            fetch(per_row + t.indices[edge] * 3 * H, 3 * H * sizeof(S));
                            fetch(d_logits + t.order[edge] * H, H * sizeof(S));
                        });
                        const X *q = query + rows[k] * pitch;
                        const S *g = grad + rows[k] * value_pitch;
                        edges.template put<HH>(
                            k, per_row + rows[k] * 3 * H,
                            [&](int64_t h) { return scale * dot_row(q + h * D, own + h * D, D); },
                            [&](int64_t h) { return dot_row(g + h * Dv, z + h * Dv, Dv); });
                        if (state.on) {
                            const uint64_t row_key = row_hash(a.drop.key, a.drop.dst_ids[rows[k]]);
                            edges.template drop<HH>(k, edge_hash(row_key, a.drop.src_ids[source]), state);
                        }
                    }
                    edges.template solve<HH>(n, [&](Vec<S> d, int64_t) { return d * scale; });
                    for (int64_t k = 0; k < n; k++) {
                        S *to = d_logits + t.order[begin + k] * H;
                        for (int64_t h = 0; h < H; h++) to[h] = edges.dots.data[k * H + h];
                    }
                    for (int64_t h = 0; h < H; h++) {
                        weighted_rows(query + h * D, pitch, rows, n, edges.dots.data + h, H, d_key + h * D, D, S(1));
                        weighted_rows(grad + h * Dv, value_pitch, rows, n, edges.share.data + h, H, d_values + h * Dv,
                                      Dv, S(1));
                    }
                }
            }
        }
    }
}

// d_query, from the d_logits that backward_sources left.
template <class X, int HH>
void backward_destinations(const DotBackwardArgs &a) {
    typedef Acc<X> S;
    constexpr int64_t kEdges = 16;  // while these are summed the next are on their way
    const int64_t H = HH ? HH : a.heads, D = a.width, pitch = H * D, key_bytes = pitch * sizeof(X);
    const X *key = static_cast<const X *>(a.key);
    const S *d_logits = static_cast<const S *>(a.d_logits);
    const Chunks chunks(a.csr.indptr, a.csr.rows, a.csr.edges, 4096);
#pragma omp parallel for schedule(dynamic, 1) num_threads(a.threads) if (chunks.count > 1)
    for (int64_t chunk = 0; chunk < chunks.count; chunk++)
        for (int64_t row = chunks.begin(chunk); row < chunks.begin(chunk + 1); row++) {
            S *d_query = static_cast<S *>(a.d_query) + row * pitch;
            for (int64_t begin = a.csr.indptr[row]; begin < a.csr.indptr[row + 1]; begin += kEdges) {
                const int64_t left = a.csr.indptr[row + 1] - begin, n = left < kEdges ? left : kEdges;
                const int32_t *cols = a.csr.indices + begin;
                for (int64_t k = n; k < 2 * n && begin + k < a.csr.edges; k++) Far()(key + cols[k] * pitch, key_bytes);
                for (int64_t h = 0; h < H; h++)
                    weighted_rows(key + h * D, pitch, cols, n, d_logits + begin * H + h, H, d_query + h * D, D, S(1));
            }
        }
}

template <class X, int HH>
void backward(const DotBackwardArgs &a) {
    pack_rows(a.m, a.l, a.delta, nullptr, a.csr.rows, a.heads, a.threads, static_cast<Acc<X> *>(a.per_row));
    backward_sources<X, HH>(a);
    backward_destinations<X, HH>(a);
}

}  // namespace

void dot_absorb(const DotArgs &a) { WEFT_BY_DTYPE_AND_HEADS(absorb, a) }
void dot_backward(const DotBackwardArgs &a) { WEFT_BY_DTYPE_AND_HEADS(backward, a) }

}  // namespace WEFT_ISA
}  // namespace weft
