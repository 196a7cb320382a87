// One pass over rows: bias, relu, dropout keyed by (key, global id, column), and what autograd around them needs.
#include <omp.h>

#include "kernels/simd.h"
#include "kernels/tables.h"

namespace weft {
namespace WEFT_ISA {
namespace {

// elu(v), NaN staying what it is.
template <class S>
WEFT_INLINE Vec<S> elu(Vec<S> v) {
    const Vec<S> one = splat<S>(1);
    return select<S>(v < 0, exp_negative(select<S>(v < 0, v, Vec<S>{})) - one, v);
}

template <class X, bool Bias, Activation A, bool Dropout>
void rows(const ElementwiseArgs &a) {
    typedef Acc<X> S;
    typedef typename Lanes<S>::I I;
    typedef typename Lanes<S>::H H;
    typedef typename Lanes<S>::HI HI;
    constexpr int N = Lanes<S>::N;
    const int64_t width = a.width;
    const X *x = static_cast<const X *>(a.x);
    X *out = static_cast<X *>(a.out);
    const S *bias = static_cast<const S *>(a.bias);
    const X *result = static_cast<const X *>(a.result);
    const uint32_t threshold = drop_threshold(a.p);
    const S scale = S(1.0 / (1.0 - a.p)), kept = S(1.0 - a.p);
    H steps;
    for (int i = 0; i < N; i++) steps[i] = static_cast<uint32_t>(i) * 0x9E3779B9u;
#pragma omp parallel for schedule(static) num_threads(threads_for(a.rows * width * sizeof(X), a.threads))
    for (int64_t row = 0; row < a.rows; row++) {
        const X *from = x + row * width;
        X *to = out + row * width;
        const uint64_t hash = Dropout ? row_hash(a.key, a.row_ids[row]) : 0;
        const uint32_t low = static_cast<uint32_t>(hash), high = static_cast<uint32_t>(hash >> 32);
        int64_t c = 0;
        for (; c + N <= width; c += N) {
            Vec<S> v = load(from + c);
            if (Bias) v += load(bias + c);
            if (A == kRelu) v = select<S>(v < 0, Vec<S>{}, v);  // keeps NaN, so that it is noticed
            if (A == kElu) v = elu<S>(v);
            if (A == kEluBackward) {
                const Vec<S> y = load(result + row * width + c);
                v = select<S>(y < 0, v * (y * kept + splat<S>(1)), v);
            }
            if (Dropout) {
                H bits = column_hash<H>(steps + (low + static_cast<uint32_t>(c) * 0x9E3779B9u), H{} + high);
                I keep = __builtin_convertvector((HI)(bits >= threshold), I);
                v = (Vec<S>)(keep & (I)(v * scale));
            }
            store(to + c, v);
        }
        for (; c < width; c++) {
            S v = widen(from[c]);
            if (Bias) v += bias[c];
            if (A == kRelu && v < 0) v = 0;
            if (A == kElu && v < 0) v = elu<S>(splat<S>(v))[0];
            if (A == kEluBackward) {
                const S y = widen(result[row * width + c]);
                if (y < 0) v *= y * kept + 1;
            }
            if (Dropout) v = keeps(hash, static_cast<uint32_t>(c), threshold) ? v * scale : S(0);
            narrow(v, to + c);
        }
    }
}

template <class X, Activation A>
void rows_with(const ElementwiseArgs &a) {
    const bool dropout = a.p > 0;
    if (a.bias)
        dropout ? rows<X, true, A, true>(a) : rows<X, true, A, false>(a);
    else
        dropout ? rows<X, false, A, true>(a) : rows<X, false, A, false>(a);
}

template <class X>
void rows_of(const ElementwiseArgs &a) {
    switch (a.activation) {
        case kLinear:
            return rows_with<X, kLinear>(a);
        case kRelu:
            return rows_with<X, kRelu>(a);
        case kElu:
            return rows_with<X, kElu>(a);
        case kEluBackward:
            return rows_with<X, kEluBackward>(a);
    }
}

template <class X>
void backward(const ReluBackwardArgs &a) {
    typedef Acc<X> S;
    constexpr int64_t N = Lanes<S>::N, kBlock = 4096;
    const X *grad = static_cast<const X *>(a.grad), *out = static_cast<const X *>(a.out);
    X *into = static_cast<X *>(a.into);
    const S scale = S(1.0 / (1.0 - a.p));
#pragma omp parallel for schedule(static) num_threads(threads_for(a.count * sizeof(X), a.threads))
    for (int64_t block = 0; block < a.count; block += kBlock) {
        const int64_t end = block + kBlock < a.count ? block + kBlock : a.count;
        int64_t i = block;
        for (; i + N <= end; i += N)
            store(into + i, select<S>(load(out + i) > 0, load(grad + i) * scale, Vec<S>{}));
        for (; i < end; i++) narrow(widen(out[i]) > 0 ? widen(grad[i]) * scale : S(0), into + i);
    }
}

template <class X>
void dot(const HeadDotArgs &a) {
    typedef Acc<X> S;
    constexpr int64_t N = Lanes<S>::N;
    const X *z = static_cast<const X *>(a.z);
    const S *att = static_cast<const S *>(a.att);
    S *out = static_cast<S *>(a.out);
    const int64_t width = a.width, heads = a.heads;
#pragma omp parallel for schedule(static) num_threads(threads_for(a.rows * heads * width * sizeof(X), a.threads))
    for (int64_t row = 0; row < a.rows; row++) {
        for (int64_t h = 0; h < heads; h++) {
            const X *zh = z + (row * heads + h) * width;
            const S *ah = att + h * width;
            Vec<S> acc = {};
            int64_t c = 0;
            for (; c + N <= width; c += N) acc += load(zh + c) * load(ah + c);
            S total = sum_lanes<S>(acc);
            for (; c < width; c++) total += widen(zh[c]) * ah[c];
            out[row * heads + h] = total;
        }
    }
}

// d_att is summed over fixed blocks of rows, then over the blocks: the same for every number of threads.
template <class X>
void dot_backward(const HeadDotBackwardArgs &a) {
    typedef Acc<X> S;
    constexpr int64_t N = Lanes<S>::N, kMostBlocks = 256;
    const X *z = static_cast<const X *>(a.z);
    const S *att = static_cast<const S *>(a.att), *grad = static_cast<const S *>(a.grad);
    S *d_z = static_cast<S *>(a.d_z), *d_att = static_cast<S *>(a.d_att);
    const int64_t width = a.width, heads = a.heads, columns = heads * width;
    int64_t blocks = a.rows / 512 + 1;
    if (blocks > kMostBlocks) blocks = kMostBlocks;
    Scratch<S> partial(d_att ? blocks * columns : 1);
#pragma omp parallel for schedule(static) num_threads(threads_for(a.rows * columns * sizeof(X), a.threads))
    for (int64_t block = 0; block < blocks; block++) {
        S *sum = partial.data + block * columns;
        if (d_att) memset(sum, 0, columns * sizeof(S));
        for (int64_t row = a.rows * block / blocks; row < a.rows * (block + 1) / blocks; row++) {
            for (int64_t h = 0; h < heads; h++) {
                const S g = grad[row * heads + h];
                const X *zh = z + row * columns + h * width;
                S *dh = d_z ? d_z + row * columns + h * width : nullptr;
                int64_t c = 0;
                for (; c + N <= width; c += N) {
                    if (dh) store(dh + c, load(dh + c) + g * load(att + h * width + c));
                    if (d_att) store(sum + h * width + c, load(sum + h * width + c) + g * load(zh + c));
                }
                for (; c < width; c++) {
                    if (dh) dh[c] += g * att[h * width + c];
                    if (d_att) sum[h * width + c] += g * widen(zh[c]);
                }
            }
        }
    }
    if (d_att)
        for (int64_t block = 0; block < blocks; block++)
            for (int64_t c = 0; c < columns; c++) d_att[c] += partial.data[block * columns + c];
}

// Every thread owns a range of output rows and reads the whole index: no conflicts, and the order of k is kept.
template <class X, class Index>
void scatter(const ScatterArgs &a) {
    typedef Acc<X> S;
    constexpr int64_t N = Lanes<S>::N;
    const Index *index = static_cast<const Index *>(a.index);
    const X *rows = static_cast<const X *>(a.rows);
    S *out = static_cast<S *>(a.out);
    const int64_t width = a.width;
#pragma omp parallel num_threads(threads_for(a.count * width * sizeof(X), a.threads))
    {
        const int64_t parts = omp_get_num_threads(), part = omp_get_thread_num();
        const int64_t low = a.out_rows * part / parts, high = a.out_rows * (part + 1) / parts;
        const Ahead ahead(width * sizeof(S));
        for (int64_t k = 0; k < a.count; k++) {
            const int64_t row = index[k];
            if (row < low || row >= high) continue;
            ahead.at(k, a.count, [&](int64_t later, auto fetch) WEFT_ASKS {
                if (index[later] >= low && index[later] < high) fetch(out + index[later] * width, width * sizeof(S));
            });
            const X *from = rows + k * width;
            S *to = out + row * width;
            int64_t c = 0;
            for (; c + N <= width; c += N) store(to + c, load(to + c) + load(from + c));
            for (; c < width; c++) to[c] += widen(from[c]);
        }
    }
}

template <class X>
void scatter_of(const ScatterArgs &a) {
    a.wide_index ? scatter<X, int64_t>(a) : scatter<X, int32_t>(a);
}

}  // namespace

#define WEFT_BY_DTYPE(dtype, call)             \
    if ((dtype) == kFloat64) call<double>(a);  \
    else if ((dtype) == kFloat32) call<float>(a); \
    else call<bf16>(a);

void elementwise(const ElementwiseArgs &a) { WEFT_BY_DTYPE(a.dtype, rows_of) }
void relu_backward(const ReluBackwardArgs &a) { WEFT_BY_DTYPE(a.dtype, backward) }
void head_dot(const HeadDotArgs &a) { WEFT_BY_DTYPE(a.dtype, dot) }
void head_dot_backward(const HeadDotBackwardArgs &a) { WEFT_BY_DTYPE(a.dtype, dot_backward) }
void scatter_add(const ScatterArgs &a) { if (a.width > 0) { WEFT_BY_DTYPE(a.rows_dtype, scatter_of) } }

}  // namespace WEFT_ISA
}  // namespace weft
