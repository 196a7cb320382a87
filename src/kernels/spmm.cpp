// out[i] (+)= row_scale[i] * sum over in-edges of weight * col_scale[j] * x[j].
//
// A row's sum stays in registers, one tile of columns at a time, or, where that would be many passes over the edges,
// in the first cache, several edges at a time; the rows of upcoming edges are prefetched (the edge list says which).
// Bytes to move: E * width * sizeof(x) + N * width * sizeof(out) + 4 E (+ 4 E weights).
#include <cstdlib>

#include "chunks.h"
#include "kernels/simd.h"
#include "kernels/tables.h"

namespace weft {
namespace WEFT_ISA {
namespace {

#ifdef __AVX512F__
constexpr int kMostVectors = 16;  // accumulators of a tile; the rest of the registers hold weights and addresses
#else
constexpr int kMostVectors = 12;
#endif
constexpr int kMostTiles = 3;  // passes over a row's edges before it counts as wide

template <class X, class Out>
struct Task {
    typedef Acc<X> S;
    const int32_t *indices;
    const S *coefficient;  // per edge, or null
    const X *x;
    Out *out;
    int64_t width, edges;
    Ahead ahead;
    bool accumulate;
};

// Columns [first, first + NV * N) of one output row; the last vector starts at `last`, so that odd widths need no
// tail: it overlaps the vector before it and computes the same sums there.
template <int NV, bool Weighted, bool Fetches, class X, class Out>
void tile(const Task<X, Out> &t, int64_t row, int64_t begin, int64_t end, int64_t first, int64_t last, Acc<X> scale) {
    typedef Acc<X> S;
    constexpr int N = Lanes<S>::N;
    Vec<S> acc[NV] = {};
    const X *base = t.x + first;
    const int64_t shift = last - first, row_bytes = t.width * sizeof(X);
    for (int64_t k = begin; k < end; k++) {
        if (Fetches)
            t.ahead.at(k, t.edges, [&](int64_t edge, auto fetch) WEFT_ASKS {
                fetch(t.x + t.indices[edge] * t.width, row_bytes);
            });
        const X *source = base + t.indices[k] * t.width;
        if (Weighted) {
            Vec<S> w = splat<S>(t.coefficient[k]);
#pragma GCC unroll 16
            for (int i = 0; i < NV - 1; i++) acc[i] += w * load(source + i * N);
            acc[NV - 1] += w * load(source + shift);
        } else {
#pragma GCC unroll 16
            for (int i = 0; i < NV - 1; i++) acc[i] += load(source + i * N);
            acc[NV - 1] += load(source + shift);
        }
    }
    Out *target = t.out + row * t.width + first;
#pragma GCC unroll 16
    for (int i = 0; i < NV; i++) acc[i] *= scale;
    if (t.accumulate) {  // read all before writing any: the last two vectors may overlap
#pragma GCC unroll 16
        for (int i = 0; i < NV - 1; i++) acc[i] += load(target + i * N);
        acc[NV - 1] += load(target + shift);
    }
#pragma GCC unroll 16
    for (int i = 0; i < NV - 1; i++) store(target + i * N, acc[i]);
    store(target + shift, acc[NV - 1]);
}

// Edges that a wide row adds at once: so often is its sum read and written less.
constexpr int kAtOnce = 4;

// sum (+)= the rows of `Count` edges from k on; the same columns of the edges that come next are fetched on the way.
template <int Count, bool Weighted, class X, class Out>
void add_rows(const Task<X, Out> &t, int64_t k, bool first, Acc<X> *sum) {
    typedef Acc<X> S;
    constexpr int N = Lanes<S>::N, kLine = 64 / sizeof(X);
    const X *source[Count], *next[Count], *later[Count];
    Vec<S> w[Count];
    for (int i = 0; i < Count; i++) {
        source[i] = t.x + t.indices[k + i] * t.width;
        const int64_t near = k + i + kAtOnce, far = k + i + t.ahead.far;
        next[i] = near < t.edges ? t.x + t.indices[near] * t.width : source[i];
        later[i] = far < t.edges ? t.x + t.indices[far] * t.width : source[i];
        if (Weighted) w[i] = splat<S>(t.coefficient[k + i]);
    }
    const auto add = [&](int64_t column) {
        Vec<S> acc = first ? Vec<S>{} : load(sum + column);
#pragma GCC unroll 4
        for (int i = 0; i < Count; i++) {
            Vec<S> v = load(source[i] + column);
            acc += Weighted ? w[i] * v : v;
        }
        return acc;
    };
    // The last vector overlaps the one before it: taken before that one is written.
    const int64_t last = t.width - N;
    const Vec<S> tail = add(last);
    for (int64_t column = 0; column < last; column += kLine) {
#pragma GCC unroll 4
        for (int i = 0; i < Count; i++) {
            __builtin_prefetch(next[i] + column, 0, 3);
            __builtin_prefetch(later[i] + column, 0, 2);
        }
        const int64_t end = column + kLine < last ? column + kLine : last;
        for (int64_t c = column; c < end; c += N) store(sum + c, add(c));
    }
    store(sum + last, tail);
}

// Rows of many tiles.
template <bool Weighted, class X, class Out>
void wide_row(const Task<X, Out> &t, int64_t row, int64_t begin, int64_t end, Acc<X> scale, Acc<X> *sum) {
    typedef Acc<X> S;
    constexpr int N = Lanes<S>::N;
    int64_t k = begin;
    for (; k + kAtOnce <= end; k += kAtOnce) add_rows<kAtOnce, Weighted>(t, k, k == begin, sum);
    switch (end - k) {
        case 3:
            add_rows<3, Weighted>(t, k, k == begin, sum);
            break;
        case 2:
            add_rows<2, Weighted>(t, k, k == begin, sum);
            break;
        case 1:
            add_rows<1, Weighted>(t, k, k == begin, sum);
            break;
    }
    Out *target = t.out + row * t.width;
    const auto total = [&](int64_t column) {
        Vec<S> v = load(sum + column) * scale;
        return t.accumulate ? v + load(target + column) : v;
    };
    const int64_t last = t.width - N;
    const Vec<S> tail = total(last);
    for (int64_t column = 0; column < last; column += N) store(target + column, total(column));
    store(target + last, tail);
}

// Rows narrower than a vector.
template <bool Weighted, class X, class Out>
void narrow_row(const Task<X, Out> &t, int64_t row, int64_t begin, int64_t end, Acc<X> scale) {
    typedef Acc<X> S;
    const int n = static_cast<int>(t.width);
    Vec<S> acc = {};
    for (int64_t k = begin; k < end; k++) {
        const int64_t next = k + t.ahead.near;
        if (next < t.edges) __builtin_prefetch(t.x + t.indices[next] * t.width);
        Vec<S> v = load_some(t.x + t.indices[k] * t.width, n);
        acc += Weighted ? v * t.coefficient[k] : v;
    }
    acc *= scale;
    Out *target = t.out + row * t.width;
    if (t.accumulate) acc += load_some(target, n);
    store_some(target, acc, n);
}

template <class X, class Out>
using TileFunction = void (*)(const Task<X, Out> &, int64_t, int64_t, int64_t, int64_t, int64_t, Acc<X>);

template <bool Weighted, bool Fetches, class X, class Out>
TileFunction<X, Out> tile_of(int vectors) {
    switch (vectors) {
#define WEFT_CASE(NV) \
    case NV:          \
        return tile<NV, Weighted, Fetches, X, Out>;
        WEFT_CASE(1)
        WEFT_CASE(2)
        WEFT_CASE(3)
        WEFT_CASE(4)
        WEFT_CASE(5)
        WEFT_CASE(6)
        WEFT_CASE(7)
        WEFT_CASE(8)
        WEFT_CASE(9)
        WEFT_CASE(10)
        WEFT_CASE(11)
        WEFT_CASE(12)
#ifdef __AVX512F__
        WEFT_CASE(13)
        WEFT_CASE(14)
        WEFT_CASE(15)
        WEFT_CASE(16)
#endif
#undef WEFT_CASE
    }
    __builtin_unreachable();
}

template <bool Weighted, class X, class Out>
void run(const SpmmArgs &a) {
    typedef Acc<X> S;
    constexpr int N = Lanes<S>::N;
    const S *weight = static_cast<const S *>(a.weight), *row_scale = static_cast<const S *>(a.row_scale),
            *col_scale = static_cast<const S *>(a.col_scale);
    const int64_t width = a.width;
    const int64_t vectors = (width + N - 1) / N, tiles = (vectors + kMostVectors - 1) / kMostVectors;
    const Ahead ahead(width * sizeof(X));
    const bool wide = tiles > kMostTiles;
    const Chunks chunks(a.csr.indptr, a.csr.rows, a.csr.edges, 8192);
    const int64_t *indptr = a.csr.indptr;

#pragma omp parallel num_threads(a.threads) if (chunks.count > 1)
    {
        int64_t room = 0;
        S *product = nullptr;  // weight * col_scale of a chunk's edges
        Scratch<S> sum(wide ? width : 0);
#pragma omp for schedule(dynamic, 1)
        for (int64_t chunk = 0; chunk < chunks.count; chunk++) {
            const int64_t first_row = chunks.begin(chunk), last_row = chunks.begin(chunk + 1);
            const int64_t edge0 = indptr[first_row], edge1 = indptr[last_row];
            Task<X, Out> t{a.csr.indices, weight, static_cast<const X *>(a.x), static_cast<Out *>(a.out),
                           width,         a.csr.edges, ahead, a.accumulate};
            if (col_scale) {
                if (edge1 - edge0 > room) {
                    room = edge1 - edge0;
                    free(product);
                    product = static_cast<S *>(malloc(room * sizeof(S)));
                }
                for (int64_t k = edge0; k < edge1; k++) {
                    S s = col_scale[a.csr.indices[k]];
                    product[k - edge0] = weight ? s * weight[k] : s;
                }
                t.coefficient = product - edge0;
            }
            for (int64_t row = first_row; row < last_row; row++) {
                const int64_t begin = indptr[row], end = indptr[row + 1];
                const S scale = row_scale ? row_scale[row] : S(1);
                if (begin == end) {
                    if (!a.accumulate) memset(t.out + row * width, 0, width * sizeof(Out));
                    continue;
                }
                if (width < N) {
                    narrow_row<Weighted>(t, row, begin, end, scale);
                    continue;
                }
                if (wide) {
                    wide_row<Weighted>(t, row, begin, end, scale, sum.data);
                    continue;
                }
                for (int64_t i = 0; i < tiles; i++) {
                    const int64_t v0 = vectors * i / tiles, v1 = vectors * (i + 1) / tiles;
                    const int64_t last = v1 == vectors ? width - N : (v1 - 1) * N;
                    TileFunction<X, Out> f = i == 0 ? tile_of<Weighted, true, X, Out>(static_cast<int>(v1 - v0))
                                                    : tile_of<Weighted, false, X, Out>(static_cast<int>(v1 - v0));
                    f(t, row, begin, end, v0 * N, last, scale);
                }
            }
        }
        free(product);
    }
}

template <class X, class Out>
void weighted_or_not(const SpmmArgs &a) {
    if (a.width == 0) return;
    if (a.weight || a.col_scale)
        run<true, X, Out>(a);
    else
        run<false, X, Out>(a);
}

}  // namespace

void spmm(const SpmmArgs &a) {
    if (a.x_dtype == kFloat64)
        weighted_or_not<double, double>(a);
    else if (a.x_dtype == kFloat32)
        weighted_or_not<float, float>(a);
    else if (a.out_dtype == kBfloat16)
        weighted_or_not<bf16, bf16>(a);
    else
        weighted_or_not<bf16, float>(a);
}

}  // namespace WEFT_ISA
}  // namespace weft
