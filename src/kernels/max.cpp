// Running maxima over in-edges with the number of edges that attain them, and the gradient they share.
#include <cmath>

#include "chunks.h"
#include "kernels/simd.h"
#include "kernels/tables.h"

namespace weft {
namespace WEFT_ISA {
namespace {

template <class S>
struct Counts;  // int32 counts beside lanes of S
template <>
struct Counts<float> {
    typedef int32_t T;
};
template <>
struct Counts<double> {
    typedef int64_t T;
};

// A row of `out` and `count` stays in the first-level cache while its edges pass.
template <class X>
void absorb(const MaxArgs &a) {
    typedef Acc<X> S;
    typedef typename Lanes<S>::I I;
    typedef typename Lanes<S>::HI HI;
    typedef int32_t CU __attribute__((vector_size(sizeof(HI)), aligned(4), may_alias));
    constexpr int N = Lanes<S>::N;
    const int64_t width = a.width;
    const X *x = static_cast<const X *>(a.x);
    const S *weight = static_cast<const S *>(a.weight);
    const Ahead ahead(width * sizeof(X));
    const Chunks chunks(a.csr.indptr, a.csr.rows, a.csr.edges, 4096);
#pragma omp parallel for schedule(dynamic, 1) num_threads(a.threads) if (chunks.count > 1)
    for (int64_t chunk = 0; chunk < chunks.count; chunk++) {
        for (int64_t row = chunks.begin(chunk); row < chunks.begin(chunk + 1); row++) {
            S *out = static_cast<S *>(a.out) + row * width;
            int32_t *count = a.count + row * width;
            for (int64_t k = a.csr.indptr[row]; k < a.csr.indptr[row + 1]; k++) {
                ahead.at(k, a.csr.edges, [&](int64_t edge, auto fetch) WEFT_ASKS {
                    fetch(x + a.csr.indices[edge] * width, width * sizeof(X));
                });
                const X *source = x + a.csr.indices[k] * width;
                const S w = weight ? weight[k] : S(1);
                int64_t c = 0;
                for (; c + N <= width; c += N) {
                    Vec<S> v = load(source + c) * w, best = load(out + c);
                    HI seen = (HI)*reinterpret_cast<CU *>(count + c);
                    HI more = __builtin_convertvector((I)(v > best), HI), tied = __builtin_convertvector((I)(v == best), HI);
                    store(out + c, larger<S>(v, best));
                    *reinterpret_cast<CU *>(count + c) = (CU)((seen & ~more) - more - tied);
                }
                for (; c < width; c++) {
                    S v = widen(source[c]) * w;
                    if (v > out[c]) {
                        out[c] = v;
                        count[c] = 1;
                    } else if (v == out[c]) {
                        count[c]++;
                    }
                }
            }
        }
    }
}

template <class X>
void backward(const MaxBackwardArgs &a) {
    typedef Acc<X> S;
    constexpr int N = Lanes<S>::N;
    const int64_t width = a.width;
    const X *x = static_cast<const X *>(a.x);
    const S *weight = static_cast<const S *>(a.weight), *best = static_cast<const S *>(a.out),
            *share = static_cast<const S *>(a.grad_share);
    const Ahead ahead(2 * width * sizeof(S));
    const Chunks chunks(a.csr.indptr, a.csr.rows, a.csr.edges, 4096);
#pragma omp parallel for schedule(dynamic, 1) num_threads(a.threads) if (chunks.count > 1)
    for (int64_t chunk = 0; chunk < chunks.count; chunk++) {
        for (int64_t row = chunks.begin(chunk); row < chunks.begin(chunk + 1); row++) {
            const X *own = x + row * width;
            S *dx = static_cast<S *>(a.dx) + row * width;
            for (int64_t k = a.csr.indptr[row]; k < a.csr.indptr[row + 1]; k++) {
                ahead.at(k, a.csr.edges, [&](int64_t edge, auto fetch) WEFT_ASKS {
                    fetch(best + a.csr.indices[edge] * width, width * sizeof(S));
                    fetch(share + a.csr.indices[edge] * width, width * sizeof(S));
                });
                const int64_t target = a.csr.indices[k] * width;
                const S w = weight ? weight[k] : S(1);
                int64_t c = 0;
                for (; c + N <= width; c += N) {
                    Vec<S> v = load(own + c) * w, part = load(share + target + c) * w;
                    store(dx + c, load(dx + c) + select<S>(v == load(best + target + c), part, Vec<S>{}));
                }
                for (; c < width; c++)
                    if (widen(own[c]) * w == best[target + c]) dx[c] += share[target + c] * w;
            }
        }
    }
}

}  // namespace

void max_absorb(const MaxArgs &a) {
    if (a.dtype == kFloat64)
        absorb<double>(a);
    else if (a.dtype == kFloat32)
        absorb<float>(a);
    else
        absorb<bf16>(a);
}

void max_backward(const MaxBackwardArgs &a) {
    if (a.dtype == kFloat64)
        backward<double>(a);
    else if (a.dtype == kFloat32)
        backward<float>(a);
    else
        backward<bf16>(a);
}

}  // namespace WEFT_ISA
}  // namespace weft
