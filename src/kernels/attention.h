// What both kinds of attention share: a batch of coefficients, and rows summed with them.
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
