// GATv2: logits att . leaky_relu(query[i] + key[j]), softmax over in-edges, weighted sum of key[j].
//
// Backward gathers three wide rows an edge, the least there is: key[j] by destination (which also gives the
// coefficients and d_logits, kept in E x 2H scratch), then query[i] and grad[i] by source.
#include "kernels/attention.h"
#include "kernels/tables.h"

namespace weft {
namespace WEFT_ISA {
namespace {

// att . leaky_relu(query + key) over one head, and grad . key beside it.
template <bool Grad, class X>
WEFT_INLINE Acc<X> logit(const Acc<X> *query, const X *key, const Acc<X> *att, const Acc<X> *grad, int64_t width,
                         Acc<X> slope, Acc<X> *product) {
    typedef Acc<X> S;
    constexpr int64_t N = Lanes<S>::N;
    Vec<S> sum = {}, both = {};
    const Vec<S> slopes = splat<S>(slope);
    int64_t c = 0;
    for (; c + N <= width; c += N) {
        const Vec<S> k = load(key + c);
        sum += load(att + c) * leaky<S>(load(query + c) + k, slopes);
        if (Grad) both += load(grad + c) * k;
    }
    S total = sum_lanes<S>(sum), dot = Grad ? sum_lanes<S>(both) : S(0);
    for (; c < width; c++) {
        const S k = widen(key[c]), v = query[c] + k;
        total += att[c] * (v > 0 ? v : v * slope);
        if (Grad) dot += grad[c] * k;
    }
    if (Grad) *product = dot;
    return total;
}

template <class X, int HH>
void absorb(const Gatv2Args &a) {
    typedef Acc<X> S;
    const int64_t H = HH ? HH : a.heads, D = a.width, pitch = H * D;
    const X *query = static_cast<const X *>(a.query), *key = static_cast<const X *>(a.key);
    const S *att = static_cast<const S *>(a.att);
    const S slope = S(a.slope);
    const DropState state(a.drop);
    const int64_t row_bytes = pitch * sizeof(X);
    const Ahead ahead(row_bytes);
    const Chunks chunks(a.csr.indptr, a.csr.rows, a.csr.edges, 4096);
#pragma omp parallel num_threads(a.threads) if (chunks.count > 1)
    {
        Scratch<S> logits(kBatch * H), shrink(H), wide(pitch);
#pragma omp for schedule(dynamic, 1)
        for (int64_t chunk = 0; chunk < chunks.count; chunk++) {
            for (int64_t row = chunks.begin(chunk); row < chunks.begin(chunk + 1); row++) {
                const S *q = wide_row(query + row * pitch, pitch, wide.data);
                S *m = static_cast<S *>(a.m) + row * H, *l = static_cast<S *>(a.l) + row * H,
                  *o = static_cast<S *>(a.o) + row * pitch;
                const uint64_t row_key = state.on ? row_hash(a.drop.key, a.drop.dst_ids[row]) : 0;
                for (int64_t begin = a.csr.indptr[row]; begin < a.csr.indptr[row + 1]; begin += kBatch) {
                    const int64_t left = a.csr.indptr[row + 1] - begin, n = left < kBatch ? left : kBatch;
                    const int32_t *cols = a.csr.indices + begin;
                    for (int64_t k = 0; k < n; k++) {
                        ahead.at(begin + k, a.csr.edges, [&](int64_t edge, auto fetch) WEFT_ASKS {
                            fetch(key + a.csr.indices[edge] * pitch, row_bytes);
                        });
                        const X *kj = key + cols[k] * pitch;
                        for (int64_t h = 0; h < H; h++)
                            logits.data[k * H + h] = logit<false, X>(q + h * D, kj + h * D, att + h * D, nullptr, D,
                                                                     slope, nullptr);
                    }
                    fold_logits<HH>(logits.data, n, H, m, l, shrink.data);
                    if (state.on) drop_coefficients<HH>(logits.data, cols, n, H, a.drop, state, row_key);
                    for (int64_t h = 0; h < H; h++)
                        weighted_rows(key + h * D, pitch, cols, n, logits.data + h, H, o + h * D, D, shrink.data[h]);
                }
            }
        }
    }
}

// d_query[i] and d_att of a batch, one head: sums over k of d[k] leaky'(q + k_j) and of d[k] leaky(q + k_j).
template <class X>
WEFT_INLINE void query_gradient(const X *key, int64_t pitch, const int32_t *cols, int64_t n, const Acc<X> *d,
                                int64_t stride, const Acc<X> *q, const Acc<X> *att, int64_t width, Acc<X> slope,
                                Acc<X> *d_query, Acc<X> *d_att) {
    typedef Acc<X> S;
    each_tile<S, 4>(width, [&](auto vectors, auto some, int64_t first, int64_t shift, int lanes) {
        constexpr int NV = decltype(vectors)::value, Some = decltype(some)::value;
        Vec<S> slopes_sum[NV] = {}, active_sum[NV] = {}, own[NV];
#pragma GCC unroll 4
        for (int i = 0; i < NV; i++) own[i] = load_at<NV, Some>(q + first, i, shift, lanes);
        for (int64_t k = 0; k < n; k++) {
            const X *source = key + cols[k] * pitch + first;
            const Vec<S> dk = splat<S>(d[k * stride]), dk_slope = dk * slope;
#pragma GCC unroll 4
            for (int i = 0; i < NV; i++) {
                const Vec<S> v = own[i] + load_at<NV, Some>(source, i, shift, lanes);
                const Vec<S> factor = select<S>(v > 0, dk, dk_slope);
                slopes_sum[i] += factor;
                active_sum[i] += factor * v;
            }
        }
#pragma GCC unroll 4
        for (int i = 0; i < NV; i++) {
            slopes_sum[i] = load_at<NV, Some>(d_query + first, i, shift, lanes) +
                            slopes_sum[i] * load_at<NV, Some>(att + first, i, shift, lanes);
            active_sum[i] += load_at<NV, Some>(d_att + first, i, shift, lanes);
        }
#pragma GCC unroll 4
        for (int i = 0; i < NV; i++) {
            store_at<NV, Some>(d_query + first, i, shift, lanes, slopes_sum[i]);
            store_at<NV, Some>(d_att + first, i, shift, lanes, active_sum[i]);
        }
    });
}

// d_key[j] of a batch, one head: sum over k of p[k] g_i + att d[k] leaky'(q_i + k_j).
template <class X>
WEFT_INLINE void key_gradient(const X *query, const Acc<X> *grad, int64_t pitch, const int32_t *rows, int64_t n,
                              const Acc<X> *p, const Acc<X> *d, int64_t stride, const Acc<X> *own_key,
                              const Acc<X> *att, int64_t width, Acc<X> slope, Acc<X> *d_key) {
    typedef Acc<X> S;
    each_tile<S, 4>(width, [&](auto vectors, auto some, int64_t first, int64_t shift, int lanes) {
        constexpr int NV = decltype(vectors)::value, Some = decltype(some)::value;
        Vec<S> value_sum[NV] = {}, slopes_sum[NV] = {}, own[NV];
#pragma GCC unroll 4
        for (int i = 0; i < NV; i++) own[i] = load_at<NV, Some>(own_key + first, i, shift, lanes);
        for (int64_t k = 0; k < n; k++) {
            const int64_t at = rows[k] * pitch + first;
            const Vec<S> pk = splat<S>(p[k * stride]), dk = splat<S>(d[k * stride]), dk_slope = dk * slope;
#pragma GCC unroll 4
            for (int i = 0; i < NV; i++) {
                const Vec<S> v = own[i] + load_at<NV, Some>(query + at, i, shift, lanes);
                value_sum[i] += pk * load_at<NV, Some>(grad + at, i, shift, lanes);
                slopes_sum[i] += select<S>(v > 0, dk, dk_slope);
            }
        }
#pragma GCC unroll 4
        for (int i = 0; i < NV; i++)
            value_sum[i] += load_at<NV, Some>(d_key + first, i, shift, lanes) +
                            slopes_sum[i] * load_at<NV, Some>(att + first, i, shift, lanes);
#pragma GCC unroll 4
        for (int i = 0; i < NV; i++) store_at<NV, Some>(d_key + first, i, shift, lanes, value_sum[i]);
    });
}

template <class X, int HH>
void backward(const Gatv2BackwardArgs &a) {
    typedef Acc<X> S;
    constexpr int64_t N = Lanes<S>::N, kEdges = 32, kMostChunks = 256;
    const int64_t H = HH ? HH : a.heads, D = a.width, pitch = H * D;
    const X *query = static_cast<const X *>(a.query), *key = static_cast<const X *>(a.key);
    const S *att = static_cast<const S *>(a.att), *grad = static_cast<const S *>(a.grad);
    S *scratch = static_cast<S *>(a.scratch);
    const S slope = S(a.slope);
    const DropState state(a.drop);
    const int64_t key_bytes = pitch * sizeof(X), grad_bytes = pitch * sizeof(S);
    const Ahead ahead(key_bytes);
    const Chunks chunks(a.csr.indptr, a.csr.rows, a.csr.edges, 4096, kMostChunks);
    Scratch<S> d_att_parts(chunks.count * pitch);
#pragma omp parallel num_threads(a.threads) if (chunks.count > 1)
    {
        Scratch<S> share(kEdges * H), dots(kEdges * H), inverse(H), wide(pitch);
#pragma omp for schedule(dynamic, 1)
        for (int64_t chunk = 0; chunk < chunks.count; chunk++) {
            S *d_att = d_att_parts.data + chunk * pitch;
            memset(d_att, 0, pitch * sizeof(S));
            for (int64_t row = chunks.begin(chunk); row < chunks.begin(chunk + 1); row++) {
                if (a.csr.indptr[row] == a.csr.indptr[row + 1]) continue;
                const S *q = wide_row(query + row * pitch, pitch, wide.data), *g = grad + row * pitch;
                const S *m = static_cast<const S *>(a.m) + row * H, *l = static_cast<const S *>(a.l) + row * H,
                        *delta = static_cast<const S *>(a.delta) + row * H;
                S *d_query = static_cast<S *>(a.d_query) + row * pitch;
                const uint64_t row_key = state.on ? row_hash(a.drop.key, a.drop.dst_ids[row]) : 0;
                for (int64_t h = 0; h < H; h++) inverse.data[h] = S(1) / l[h];
                for (int64_t begin = a.csr.indptr[row]; begin < a.csr.indptr[row + 1]; begin += kEdges) {
                    const int64_t left = a.csr.indptr[row + 1] - begin, n = left < kEdges ? left : kEdges;
                    const int32_t *cols = a.csr.indices + begin;
                    for (int64_t k = 0; k < n; k++) {
                        ahead.at(begin + k, a.csr.edges, [&](int64_t edge, auto fetch) WEFT_ASKS {
                            fetch(key + a.csr.indices[edge] * pitch, key_bytes);
                        });
                        const X *kj = key + cols[k] * pitch;
                        for (int64_t h = 0; h < H; h++)
                            share.data[k * H + h] = logit<true, X>(q + h * D, kj + h * D, att + h * D, g + h * D, D,
                                                                   slope, &dots.data[k * H + h]) -
                                                    m[h];
                    }
                    exp_negative_all(share.data, n * H);
                    for (int64_t k = 0; k < n; k++) {
                        const uint64_t hash = state.on ? edge_hash(row_key, a.drop.src_ids[cols[k]]) : 0;
                        S *to = scratch + (begin + k) * 2 * H;
                        for (int64_t h = 0; h < H; h++) {
                            const S p = share.data[k * H + h] * inverse.data[h];
                            const S kept = !state.on ? p
                                           : keeps(hash, static_cast<uint32_t>(h), state.threshold)
                                               ? p * S(state.scale)
                                               : S(0);
                            const S d = kept * dots.data[k * H + h] - p * delta[h];
                            to[h] = kept;
                            to[H + h] = d;
                            dots.data[k * H + h] = d;
                        }
                    }
                    for (int64_t h = 0; h < H; h++)
                        query_gradient(key + h * D, pitch, cols, n, dots.data + h, H, q + h * D, att + h * D, D, slope,
                                       d_query + h * D, d_att + h * D);
                }
            }
        }
    }
    S *d_att = static_cast<S *>(a.d_att);  // chunk by chunk: the same for every number of threads
    for (int64_t chunk = 0; chunk < chunks.count; chunk++)
        for (int64_t c = 0; c < pitch; c++) d_att[c] += d_att_parts.data[chunk * pitch + c];

    const Transposed &t = a.transposed;
    const Chunks back(t.indptr, t.rows, a.csr.edges, 4096);
#pragma omp parallel num_threads(a.threads) if (back.count > 1)
    {
        Scratch<S> local(kEdges * 2 * H), wide(pitch);
#pragma omp for schedule(dynamic, 1)
        for (int64_t chunk = 0; chunk < back.count; chunk++) {
            for (int64_t source = back.begin(chunk); source < back.begin(chunk + 1); source++) {
                if (t.indptr[source] == t.indptr[source + 1]) continue;
                const S *own = wide_row(key + source * pitch, pitch, wide.data);
                S *d_key = static_cast<S *>(a.d_key) + source * pitch;
                for (int64_t begin = t.indptr[source]; begin < t.indptr[source + 1]; begin += kEdges) {
                    const int64_t left = t.indptr[source + 1] - begin, n = left < kEdges ? left : kEdges;
                    const int32_t *rows = t.indices + begin;
                    for (int64_t k = 0; k < n; k++) {
                        ahead.at(begin + k, a.csr.edges, [&](int64_t edge, auto fetch) WEFT_ASKS {
                            fetch(query + t.indices[edge] * pitch, key_bytes);
                            fetch(grad + t.indices[edge] * pitch, grad_bytes);
                            fetch(scratch + t.order[edge] * 2 * H, 2 * H * sizeof(S));
                        });
                        const S *from = scratch + t.order[begin + k] * 2 * H;
                        for (int64_t h = 0; h < 2 * H; h++) local.data[k * 2 * H + h] = from[h];
                    }
                    for (int64_t h = 0; h < H; h++)
                        key_gradient(query + h * D, grad + h * D, pitch, rows, n, local.data + h, local.data + H + h,
                                     2 * H, own + h * D, att + h * D, D, slope, d_key + h * D);
                }
            }
        }
    }
}

}  // namespace

void gatv2_absorb(const Gatv2Args &a) { WEFT_BY_DTYPE_AND_HEADS(absorb, a) }
void gatv2_backward(const Gatv2BackwardArgs &a) { WEFT_BY_DTYPE_AND_HEADS(backward, a) }

}  // namespace WEFT_ISA
}  // namespace weft
