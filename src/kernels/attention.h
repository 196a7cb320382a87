// What all kinds of attention share: a batch of coefficients, their gradients, and rows summed with them.
#pragma once
#include "chunks.h"
#include "kernels/simd.h"

namespace weft {
namespace WEFT_ISA {
namespace {

constexpr int64_t kBatch = 64;  // edges whose coefficients are worked out together

// target[0..width) = target * keep + sum over k < n of coefficient[k * stride] * base[cols[k] * pitch + ...]
template <class X>
WEFT_INLINE void weighted_rows(const X *base, int64_t pitch, const int32_t *cols, int64_t n, const Acc<X> *coefficient,
                               int64_t stride, Acc<X> *target, int64_t width, Acc<X> keep) {
    typedef Acc<X> S;
    each_tile<S, 8>(width, [&](auto vectors, auto some, int64_t first, int64_t shift, int lanes) {
        constexpr int NV = decltype(vectors)::value, Some = decltype(some)::value;
        Vec<S> acc[NV];
#pragma GCC unroll 8
        for (int i = 0; i < NV; i++) acc[i] = load_at<NV, Some>(target + first, i, shift, lanes) * keep;
        for (int64_t k = 0; k < n; k++) {
            const X *source = base + cols[k] * pitch + first;
            const Vec<S> w = splat<S>(coefficient[k * stride]);
#pragma GCC unroll 8
            for (int i = 0; i < NV; i++) acc[i] += w * load_at<NV, Some>(source, i, shift, lanes);
        }
#pragma GCC unroll 8
        for (int i = 0; i < NV; i++) store_at<NV, Some>(target + first, i, shift, lanes, acc[i]);
    });
}

template <class X, class Y>
WEFT_INLINE Acc<X> dot_row(const X *a, const Y *b, int64_t width) {
    typedef Acc<X> S;
    constexpr int64_t N = Lanes<S>::N;
    Vec<S> even = {}, odd = {};
    int64_t c = 0;
    for (; c + 2 * N <= width; c += 2 * N) {
        even += load(a + c) * load(b + c);
        odd += load(a + c + N) * load(b + c + N);
    }
    if (c + N <= width) {
        even += load(a + c) * load(b + c);
        c += N;
    }
    S total = sum_lanes<S>(even + odd);
    for (; c < width; c++) total += widen(a[c]) * widen(b[c]);
    return total;
}

// The row in its accumulator type: itself, or widened into scratch.
template <class S>
WEFT_INLINE const S *wide_row(const S *row, int64_t, S *) {
    return row;
}
inline const float *wide_row(const bf16 *row, int64_t width, float *scratch) {
    int64_t c = 0;
    for (; c + Lanes<float>::N <= width; c += Lanes<float>::N) store(scratch + c, load(row + c));
    for (; c < width; c++) scratch[c] = widen(row[c]);
    return scratch;
}

struct DropState {
    bool on;
    uint32_t threshold;
    double scale;
    explicit DropState(const Drop &d) : on(d.p > 0), threshold(drop_threshold(d.p)), scale(1.0 / (1.0 - d.p)) {}
};

// Fold logits[n, H] of one destination into its m, l [H]; they become coefficients, `shrink` what o must be
// multiplied by. Dropout comes after l, because it acts on normalised coefficients.
template <int HH, class S>
WEFT_INLINE void fold_logits(S *logits, int64_t n, int64_t heads, S *m, S *l, S *shrink) {
    const int64_t H = HH ? HH : heads;
    constexpr S kLowest = -__builtin_inff();
    for (int64_t h = 0; h < H; h++) {
        S best = m[h];
        for (int64_t k = 0; k < n; k++) {
            const S e = logits[k * H + h];
            best = e > best ? e : best;
        }
        shrink[h] = m[h] == kLowest ? S(-10000) : m[h] - best;
        m[h] = best;
    }
    exp_negative_all(shrink, H);
    for (int64_t k = 0; k < n; k++)
        for (int64_t h = 0; h < H; h++) logits[k * H + h] -= m[h];
    exp_negative_all(logits, n * H);
    for (int64_t h = 0; h < H; h++) {
        S sum = 0;
        for (int64_t k = 0; k < n; k++) sum += logits[k * H + h];
        l[h] = l[h] * shrink[h] + sum;
    }
}

template <int HH, class S>
WEFT_INLINE void drop_coefficients(S *coefficients, const int32_t *cols, int64_t n, int64_t heads, const Drop &drop,
                                   const DropState &state, uint64_t row) {
    const int64_t H = HH ? HH : heads;
    for (int64_t k = 0; k < n; k++) {
        const uint64_t hash = edge_hash(row, drop.src_ids[cols[k]]);
        for (int64_t h = 0; h < H; h++)
            coefficients[k * H + h] *=
                keeps(hash, static_cast<uint32_t>(h), state.threshold) ? S(state.scale) : S(0);
    }
}

// Columns of one destination side by side, one cache line instead of many: m, 1/l, delta and, where logits have
// one, the destination's own term.
template <class S>
void pack_rows(const void *m, const void *l, const void *delta, const void *term, int64_t rows, int64_t heads,
               int threads, S *packed) {
    const S *largest = static_cast<const S *>(m), *sum = static_cast<const S *>(l),
            *d = static_cast<const S *>(delta), *own = static_cast<const S *>(term);
    const int64_t columns = own ? 4 : 3;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t row = 0; row < rows; row++)
        for (int64_t h = 0; h < heads; h++) {
            S *to = packed + row * columns * heads + h;
            to[0] = largest[row * heads + h];
            to[heads] = S(1) / sum[row * heads + h];
            to[2 * heads] = d[row * heads + h];
            if (own) to[3 * heads] = own[row * heads + h];
        }
}

// A batch of edges that leave one source: logits and grad . value go in, coefficients and d_logits come out.
template <class S>
struct LeavingEdges {
    static constexpr int64_t kMost = 32;  // their grad rows should stay in the second-level cache
    Scratch<S> share;                     // [kMost, heads]: logit - m; then the coefficient after dropout
    Scratch<S> dots;                      // [kMost, heads]: grad . value; then d_logit

    explicit LeavingEdges(int64_t heads)
        : share(kMost * heads), dots(kMost * heads), heads(heads), inverse(kMost * heads), delta(kMost * heads),
          mask(kMost * heads) {
        for (int64_t i = 0; i < kMost * heads + Lanes<S>::N - 1; i++) mask.data[i] = 1;
    }

    // Edge k, to the destination whose columns are packed; logit(h) and dot(h) are called for every head.
    template <int HH, class Logit, class Dot>
    WEFT_INLINE void put(int64_t k, const S *packed, Logit logit, Dot dot) {
        const int64_t H = HH ? HH : heads;
        for (int64_t h = 0; h < H; h++) {
            share.data[k * H + h] = logit(h) - packed[h];
            inverse.data[k * H + h] = packed[H + h];
            delta.data[k * H + h] = packed[2 * H + h];
        }
        for (int64_t h = 0; h < H; h++) dots.data[k * H + h] = dot(h);
    }
    template <int HH>
    WEFT_INLINE void drop(int64_t k, uint64_t hash, const DropState &state) {
        const int64_t H = HH ? HH : heads;
        for (int64_t h = 0; h < H; h++)
            mask.data[k * H + h] = keeps(hash, static_cast<uint32_t>(h), state.threshold) ? S(state.scale) : S(0);
    }
    // Of the first n edges; through(d, i) takes vector i of the d_logits on to what the logits were made of.
    template <int HH, class Through>
    WEFT_INLINE void solve(int64_t n, Through through) {
        const int64_t H = HH ? HH : heads;
        for (int64_t i = 0; i < n * H; i += Lanes<S>::N) {
            const Vec<S> p = exp_negative(load(share.data + i)) * load(inverse.data + i);
            const Vec<S> kept = p * load(mask.data + i);
            const Vec<S> d = kept * load(dots.data + i) - p * load(delta.data + i);
            store(share.data + i, kept);
            store(dots.data + i, through(d, i));
        }
    }

  private:
    int64_t heads;
    Scratch<S> inverse, delta, mask;
};

#define WEFT_BY_HEADS(call, X, a)          \
    switch ((a).heads) {                   \
        case 1: call<X, 1>(a); break;      \
        case 4: call<X, 4>(a); break;      \
        case 8: call<X, 8>(a); break;      \
        default: call<X, 0>(a);            \
    }
#define WEFT_BY_DTYPE_AND_HEADS(call, a)                       \
    if ((a).dtype == kFloat64) { call<double, 0>(a); }         \
    else if ((a).dtype == kFloat32) { WEFT_BY_HEADS(call, float, a) } \
    else { WEFT_BY_HEADS(call, bf16, a) }

}  // namespace
}  // namespace WEFT_ISA
}  // namespace weft
