// GAT: logits leaky_relu(dst_term[i] + src_term[j]), softmax over in-edges, weighted sum of values[j].
//
// Forward moves E * H * D values once (gathered rows) and writes no coefficient. Backward walks the transposed
// edges, so that only grad rows are gathered (E * H * D, once) while values[j] and d_values[j] stay in cache; the
// d_logits it finds are wanted by destination too, so E * H of them pass through scratch in forward order: 1 / D
// of the bytes that gathering the values a second time would cost.
#include "kernels/attention.h"
#include "kernels/tables.h"

namespace weft {
namespace WEFT_ISA {
namespace {

template <class S>
WEFT_INLINE S leaky_one(S v, S slope) {
    return v > 0 ? v : v * slope;
}

template <class X, int HH>
void absorb(const GatArgs &a) {
    typedef Acc<X> S;
    const int64_t H = HH ? HH : a.heads, D = a.width, pitch = H * D;
    const S *dst_term = static_cast<const S *>(a.dst_term), *src_term = static_cast<const S *>(a.src_term);
    const X *values = static_cast<const X *>(a.values);
    const S slope = S(a.slope);
    const DropState state(a.drop);
    const int64_t row_bytes = pitch * sizeof(X);
    const Ahead ahead(row_bytes);
    const Chunks chunks(a.csr.indptr, a.csr.rows, a.csr.edges, 4096);
#pragma omp parallel num_threads(a.threads) if (chunks.count > 1)
    {
        Scratch<S> logits(kBatch * H), shrink(H);
#pragma omp for schedule(dynamic, 1)
        for (int64_t chunk = 0; chunk < chunks.count; chunk++) {
            for (int64_t row = chunks.begin(chunk); row < chunks.begin(chunk + 1); row++) {
                const S *dst = dst_term + row * H;
                S *m = static_cast<S *>(a.m) + row * H, *l = static_cast<S *>(a.l) + row * H,
                  *o = static_cast<S *>(a.o) + row * pitch;
                const uint64_t row_key = state.on ? row_hash(a.drop.key, a.drop.dst_ids[row]) : 0;
                for (int64_t begin = a.csr.indptr[row]; begin < a.csr.indptr[row + 1]; begin += kBatch) {
                    const int64_t left = a.csr.indptr[row + 1] - begin, n = left < kBatch ? left : kBatch;
                    const int32_t *cols = a.csr.indices + begin;
                    for (int64_t k = 0; k < n; k++) {
                        ahead.at(begin + k, a.csr.edges, [&](int64_t edge, auto fetch) WEFT_ASKS {
                            fetch(values + a.csr.indices[edge] * pitch, row_bytes);
                        });
                        const S *src = src_term + cols[k] * H;
                        for (int64_t h = 0; h < H; h++) logits.data[k * H + h] = leaky_one(dst[h] + src[h], slope);
                    }
                    fold_logits<HH>(logits.data, n, H, m, l, shrink.data);
                    if (state.on) drop_coefficients<HH>(logits.data, cols, n, H, a.drop, state, row_key);
                    for (int64_t h = 0; h < H; h++)
                        weighted_rows(values + h * D, pitch, cols, n, logits.data + h, H, o + h * D, D,
                                      shrink.data[h]);
                }
            }
        }
    }
}

template <class X, int HH>
void backward(const GatBackwardArgs &a) {
    typedef Acc<X> S;
    typedef typename Lanes<S>::I I;
    constexpr int64_t kEdges = LeavingEdges<S>::kMost;
    const int64_t H = HH ? HH : a.heads, D = a.width, pitch = H * D;
    pack_rows(a.m, a.l, a.delta, a.dst_term, a.csr.rows, H, a.threads, static_cast<S *>(a.per_row));
    const S *src_term = static_cast<const S *>(a.src_term), *grad = static_cast<const S *>(a.grad),
            *per_row = static_cast<const S *>(a.per_row);
    const X *values = static_cast<const X *>(a.values);
    S *d_logits = static_cast<S *>(a.d_logits);
    const S slope = S(a.slope);
    const DropState state(a.drop);
    const Transposed &t = a.transposed;
    const int64_t row_bytes = pitch * sizeof(S);
    const Ahead ahead(row_bytes);
    const Chunks chunks(t.indptr, t.rows, a.csr.edges, 4096);
#pragma omp parallel num_threads(a.threads) if (chunks.count > 1)
    {
        LeavingEdges<S> edges(H);
        Scratch<S> raw(kEdges * H), wide(pitch);
#pragma omp for schedule(dynamic, 1)
        for (int64_t chunk = 0; chunk < chunks.count; chunk++) {
            for (int64_t source = chunks.begin(chunk); source < chunks.begin(chunk + 1); source++) {
                if (t.indptr[source] == t.indptr[source + 1]) continue;
                const S *z = wide_row(values + source * pitch, pitch, wide.data), *src = src_term + source * H;
                S *d_src = static_cast<S *>(a.d_src) + source * H,
                  *d_values = static_cast<S *>(a.d_values) + source * pitch;
                for (int64_t begin = t.indptr[source]; begin < t.indptr[source + 1]; begin += kEdges) {
                    const int64_t left = t.indptr[source + 1] - begin, n = left < kEdges ? left : kEdges;
                    const int32_t *rows = t.indices + begin;
                    for (int64_t k = 0; k < n; k++) {
                        ahead.at(begin + k, a.csr.edges, [&](int64_t edge, auto fetch) WEFT_ASKS {
                            fetch(grad + t.indices[edge] * pitch, row_bytes);
                            fetch(per_row + t.indices[edge] * 4 * H, 4 * H * sizeof(S));
                            fetch(d_logits + t.order[edge] * H, H * sizeof(S));
                        });
                        const S *g = grad + rows[k] * pitch, *packed = per_row + rows[k] * 4 * H;
                        edges.template put<HH>(
                            k, packed,
                            [&](int64_t h) {
                                const S r = packed[3 * H + h] + src[h];
                                raw.data[k * H + h] = r;
                                return leaky_one(r, slope);
                            },
                            [&](int64_t h) { return dot_row(g + h * D, z + h * D, D); });
                        if (state.on) {
                            const uint64_t row_key = row_hash(a.drop.key, a.drop.dst_ids[rows[k]]);
                            edges.template drop<HH>(k, edge_hash(row_key, a.drop.src_ids[source]), state);
                        }
                    }
                    edges.template solve<HH>(n, [&](Vec<S> d, int64_t i) {
                        return select<S>((I)(load(raw.data + i) > 0), d, d * slope);
                    });
                    for (int64_t k = 0; k < n; k++) {
                        S *to = d_logits + t.order[begin + k] * H;
                        for (int64_t h = 0; h < H; h++) {
                            const S d = edges.dots.data[k * H + h];
                            to[h] = d;
                            d_src[h] += d;
                        }
                    }
                    for (int64_t h = 0; h < H; h++)
                        weighted_rows(grad + h * D, pitch, rows, n, edges.share.data + h, H, d_values + h * D, D,
                                      S(1));
                }
            }
        }
    }
    const Chunks forward(a.csr.indptr, a.csr.rows, a.csr.edges, 16384);
#pragma omp parallel for schedule(dynamic, 1) num_threads(a.threads) if (forward.count > 1)
    for (int64_t chunk = 0; chunk < forward.count; chunk++)
        for (int64_t row = forward.begin(chunk); row < forward.begin(chunk + 1); row++) {
            S *d_dst = static_cast<S *>(a.d_dst) + row * H;
            for (int64_t k = a.csr.indptr[row]; k < a.csr.indptr[row + 1]; k++)
                for (int64_t h = 0; h < H; h++) d_dst[h] += d_logits[k * H + h];
        }
}

template <class S>
void finish(const S *l, S *o, int64_t rows, int64_t heads, int64_t width, int threads) {
    constexpr int64_t N = Lanes<S>::N;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t i = 0; i < rows * heads; i++) {
        const S factor = l[i] == 0 ? S(0) : S(1) / l[i];
        S *to = o + i * width;
        int64_t c = 0;
        for (; c + N <= width; c += N) store(to + c, load(to + c) * factor);
        for (; c < width; c++) to[c] *= factor;
    }
}

}  // namespace

void gat_absorb(const GatArgs &a) { WEFT_BY_DTYPE_AND_HEADS(absorb, a) }
void gat_backward(const GatBackwardArgs &a) { WEFT_BY_DTYPE_AND_HEADS(backward, a) }

void attend_finish(const void *l, void *o, int dtype, int64_t rows, int64_t heads, int64_t width, int threads) {
    if (dtype == kFloat64)
        finish(static_cast<const double *>(l), static_cast<double *>(o), rows, heads, width, threads);
    else
        finish(static_cast<const float *>(l), static_cast<float *>(o), rows, heads, width, threads);
}

}  // namespace WEFT_ISA
}  // namespace weft
