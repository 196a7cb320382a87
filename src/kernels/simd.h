// Vectors of WEFT_VECTOR_BYTES by compiler extension: one source, compiled for each instruction set.
// Everything has internal linkage, so that the linker never mixes code of two instruction sets.
#pragma once
#include <cstdint>
#include <cstring>

#include "hash.h"
#include "kernels.h"
#include "prefetch.h"
// Intrinsics only where the compiler's own vectors fall short of one instruction.
#if defined(__AVX512F__) && WEFT_VECTOR_BYTES == 64
#define WEFT_AVX512
#elif defined(__AVX2__) && WEFT_VECTOR_BYTES == 32
#define WEFT_AVX2
#endif
#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace weft {
namespace WEFT_ISA {
namespace {

struct bf16 {
    uint16_t bits;
};

template <class S>
constexpr int kLanes = WEFT_VECTOR_BYTES / sizeof(S);

template <class S>
struct Lanes;
template <>
struct Lanes<float> {
    static constexpr int N = kLanes<float>;
    typedef float V __attribute__((vector_size(WEFT_VECTOR_BYTES)));
    typedef float U __attribute__((vector_size(WEFT_VECTOR_BYTES), aligned(4), may_alias));
    typedef int32_t I __attribute__((vector_size(WEFT_VECTOR_BYTES)));  // also what a comparison gives
    typedef uint32_t H __attribute__((vector_size(N * 4)));             // one hash for every lane
    typedef int32_t HI __attribute__((vector_size(N * 4)));
    typedef uint16_t B __attribute__((vector_size(N * 2), aligned(2), may_alias));
};
template <>
struct Lanes<double> {
    static constexpr int N = kLanes<double>;
    typedef double V __attribute__((vector_size(WEFT_VECTOR_BYTES)));
    typedef double U __attribute__((vector_size(WEFT_VECTOR_BYTES), aligned(8), may_alias));
    typedef int64_t I __attribute__((vector_size(WEFT_VECTOR_BYTES)));
    typedef uint32_t H __attribute__((vector_size(N * 4)));
    typedef int32_t HI __attribute__((vector_size(N * 4)));
};

template <class S>
using Vec = typename Lanes<S>::V;

// What rows of X are summed in.
template <class X>
struct AccumulatorOf {
    typedef X type;
};
template <>
struct AccumulatorOf<bf16> {
    typedef float type;
};
template <class X>
using Acc = typename AccumulatorOf<X>::type;

#define WEFT_INLINE inline __attribute__((always_inline))

template <class S>
WEFT_INLINE Vec<S> splat(S value) {
    return Vec<S>{} + value;
}

WEFT_INLINE Vec<float> load(const float *p) { return *reinterpret_cast<const Lanes<float>::U *>(p); }
WEFT_INLINE Vec<double> load(const double *p) { return *reinterpret_cast<const Lanes<double>::U *>(p); }
WEFT_INLINE Vec<float> load(const bf16 *p) {
    Lanes<float>::B raw = *reinterpret_cast<const Lanes<float>::B *>(p);
    typedef uint32_t W __attribute__((vector_size(WEFT_VECTOR_BYTES)));
    return (Vec<float>)(__builtin_convertvector(raw, W) << 16);
}

WEFT_INLINE void store(float *p, Vec<float> v) { *reinterpret_cast<Lanes<float>::U *>(p) = v; }
WEFT_INLINE void store(double *p, Vec<double> v) { *reinterpret_cast<Lanes<double>::U *>(p) = v; }
WEFT_INLINE void store(bf16 *p, Vec<float> v) {
    typedef uint32_t W __attribute__((vector_size(WEFT_VECTOR_BYTES)));
    W bits = (W)v;
    W rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;  // to nearest, ties to even
    W quiet = (bits >> 16) | 0x40u;
    W chosen = (W)(v == v) & rounded | ~(W)(v == v) & quiet;
    typedef uint16_t P __attribute__((vector_size(Lanes<float>::N * 2)));
    *reinterpret_cast<Lanes<float>::B *>(p) = (Lanes<float>::B)__builtin_convertvector(chosen, P);
}

WEFT_INLINE float widen(float v) { return v; }
WEFT_INLINE double widen(double v) { return v; }
WEFT_INLINE float widen(bf16 v) {
    uint32_t bits = static_cast<uint32_t>(v.bits) << 16;
    float result;
    std::memcpy(&result, &bits, 4);
    return result;
}
WEFT_INLINE void narrow(float v, float *p) { *p = v; }
WEFT_INLINE void narrow(double v, double *p) { *p = v; }
WEFT_INLINE void narrow(float v, bf16 *p) {
    uint32_t bits;
    std::memcpy(&bits, &v, 4);
    p->bits = static_cast<uint16_t>(v == v ? (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16 : (bits >> 16) | 0x40u);
}

// The first n < N lanes; the others are 0 and not touched in memory.
template <class X>
WEFT_INLINE Vec<Acc<X>> load_some(const X *p, int n) {
    Vec<Acc<X>> v = {};
    for (int i = 0; i < n; i++) v[i] = widen(p[i]);
    return v;
}
#ifdef WEFT_AVX512
WEFT_INLINE Vec<float> load_some(const float *p, int n) {
    return (Vec<float>)_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p);
}
WEFT_INLINE Vec<double> load_some(const double *p, int n) {
    return (Vec<double>)_mm512_maskz_loadu_pd(static_cast<__mmask8>((1u << n) - 1), p);
}
#elif defined(WEFT_AVX2)
WEFT_INLINE Vec<float> load_some(const float *p, int n) {
    __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    return (Vec<float>)_mm256_maskload_ps(p, mask);
}
WEFT_INLINE Vec<double> load_some(const double *p, int n) {
    __m256i mask = _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3));
    return (Vec<double>)_mm256_maskload_pd(p, mask);
}
#endif
template <class X>
WEFT_INLINE void store_some(X *p, Vec<Acc<X>> v, int n) {
    for (int i = 0; i < n; i++) narrow(v[i], p + i);
}

template <class S>
WEFT_INLINE S sum_lanes(Vec<S> v) {
    // Halves, then halves again: the compiler turns these into shuffles.
    S parts[Lanes<S>::N];
    std::memcpy(parts, &v, sizeof(v));
    for (int step = Lanes<S>::N / 2; step > 0; step /= 2)
        for (int i = 0; i < step; i++) parts[i] += parts[i + step];
    return parts[0];
}
#ifdef WEFT_AVX2
WEFT_INLINE float sum_lanes(__m128 v) {
    v = _mm_add_ps(v, _mm_movehl_ps(v, v));
    return _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)));
}
#endif
#ifdef WEFT_AVX512
template <>
WEFT_INLINE float sum_lanes<float>(Vec<float> v) {
    return _mm512_reduce_add_ps((__m512)v);
}
#elif defined(WEFT_AVX2)
template <>
WEFT_INLINE float sum_lanes<float>(Vec<float> v) {
    return sum_lanes(_mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1)));
}
#endif

template <class S>
WEFT_INLINE Vec<S> select(typename Lanes<S>::I mask, Vec<S> yes, Vec<S> no) {
    return mask ? yes : no;
}
// a > b ? a : b, in one instruction where there is one.
template <class S>
WEFT_INLINE Vec<S> larger(Vec<S> a, Vec<S> b) {
    return a > b ? a : b;
}
#ifdef WEFT_AVX512
template <>
WEFT_INLINE Vec<float> larger<float>(Vec<float> a, Vec<float> b) {
    return (Vec<float>)_mm512_max_ps((__m512)a, (__m512)b);
}
#elif defined(WEFT_AVX2)
template <>
WEFT_INLINE Vec<float> larger<float>(Vec<float> a, Vec<float> b) {
    return (Vec<float>)_mm256_max_ps((__m256)a, (__m256)b);
}
#endif
// leaky_relu: v > 0 ? v : slope * v
template <class S>
WEFT_INLINE Vec<S> leaky(Vec<S> v, Vec<S> slope) {
    return select<S>(v > 0, v, v * slope);
}

// exp(v) for v <= 0 (0 below the normal range), to about one unit in the last place.
WEFT_INLINE Vec<float> exp_negative(Vec<float> v) {
    typedef Lanes<float>::I I;
    I dead = v <= -87.0f;  // NaN is not, so it comes through
    v = select<float>(dead, Vec<float>{}, v);
    const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    Vec<float> n = (v * 1.44269504088896341f + magic) - magic;
    Vec<float> r = v - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    Vec<float> p = splat<float>(1.0f / 5040);
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    I scale = (__builtin_convertvector(n, I) + 127) << 23;
    return (Vec<float>)((I)(p * (Vec<float>)scale) & ~dead);
}
WEFT_INLINE Vec<double> exp_negative(Vec<double> v) {
    typedef Lanes<double>::I I;
    I dead = v <= -708.0;
    v = select<double>(dead, Vec<double>{}, v);
    const double magic = 6755399441055744.0;  // 1.5 * 2^52
    Vec<double> shifted = v * 1.4426950408889634074 + magic;
    Vec<double> n = shifted - magic;
    Vec<double> r = v - n * 6.93145751953125e-1;
    r = r - n * 1.42860682030941723212e-6;
    Vec<double> p = splat<double>(1.0 / 6227020800.0);
    const double inverse[] = {1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
                              1.0 / 720,       1.0 / 120,      1.0 / 24,      1.0 / 6,      0.5,         1.0,
                              1.0};
#pragma GCC unroll 13
    for (int i = 0; i < 13; i++) p = p * r + inverse[i];
    I scale = ((I)shifted - (I)splat<double>(magic) + 1023) << 52;
    return (Vec<double>)((I)(p * (Vec<double>)scale) & ~dead);
}

// values[0..n) = exp(values), in place; the array has room for a whole last vector.
template <class S>
WEFT_INLINE void exp_negative_all(S *values, int64_t n) {
    for (int64_t i = 0; i < n; i += Lanes<S>::N) store(values + i, exp_negative(load(values + i)));
}

// ---- counter-based randomness: see weft/kernels/hash.py -----------------------------------------------

WEFT_INLINE uint64_t row_hash(uint64_t key, int64_t id) {
    return splitmix64(key + static_cast<uint64_t>(id) * 0x9E3779B97F4A7C15ull);
}
WEFT_INLINE uint64_t edge_hash(uint64_t row, int64_t source_id) {
    return splitmix64(row + static_cast<uint64_t>(source_id) * 0xC2B2AE3D27D4EB4Full);
}
template <class U>
WEFT_INLINE U column_hash(U v, U b) {
    v ^= v >> 16;
    v *= 0x85EBCA6Bu;
    v ^= v >> 13;
    v *= 0xC2B2AE35u;
    v ^= v >> 16;
    return v ^ b;
}
WEFT_INLINE bool keeps(uint64_t hash, uint32_t column, uint32_t threshold) {
    uint32_t a = static_cast<uint32_t>(hash), b = static_cast<uint32_t>(hash >> 32);
    return column_hash<uint32_t>(a + column * 0x9E3779B9u, b) >= threshold;
}
WEFT_INLINE uint32_t drop_threshold(double p) { return static_cast<uint32_t>(p * 4294967296.0); }

// ---- columns -----------------------------------------------------------------------------------------------

// Cut `width` columns into tiles of at most Most vectors and call f(vectors, some, first, shift, n) for each.
// `first` is the tile's first column. The last vector starts `shift` columns after it: at odd widths it overlaps
// the one before and computes the same, so that no tail is needed (read all before writing any). Widths below one
// vector are one vector of `n` lanes (some is true).
template <int N_>
struct Int {
    static constexpr int value = N_;
};

template <class S, int Most, class F>
WEFT_INLINE void each_tile(int64_t width, F f) {
    static_assert(Most == 4 || Most == 8, "cases below");
    constexpr int64_t N = Lanes<S>::N;
    if (width < N) {
        f(Int<1>{}, Int<1>{}, int64_t(0), int64_t(0), static_cast<int>(width));
        return;
    }
    const int64_t vectors = (width + N - 1) / N, tiles = (vectors + Most - 1) / Most;
    for (int64_t i = 0; i < tiles; i++) {
        const int64_t v0 = vectors * i / tiles, v1 = vectors * (i + 1) / tiles;
        const int64_t first = v0 * N, shift = (v1 == vectors ? width - N : (v1 - 1) * N) - first;
        switch (v1 - v0) {
            case 1: f(Int<1>{}, Int<0>{}, first, shift, 0); break;
            case 2: f(Int<2>{}, Int<0>{}, first, shift, 0); break;
            case 3: f(Int<3>{}, Int<0>{}, first, shift, 0); break;
            case 4: f(Int<4>{}, Int<0>{}, first, shift, 0); break;
            case 5: if constexpr (Most >= 8) f(Int<5>{}, Int<0>{}, first, shift, 0); break;
            case 6: if constexpr (Most >= 8) f(Int<6>{}, Int<0>{}, first, shift, 0); break;
            case 7: if constexpr (Most >= 8) f(Int<7>{}, Int<0>{}, first, shift, 0); break;
            case 8: if constexpr (Most >= 8) f(Int<8>{}, Int<0>{}, first, shift, 0); break;
        }
    }
}

// Vector i of a tile.
template <int NV, int Some, class X>
WEFT_INLINE Vec<Acc<X>> load_at(const X *p, int i, int64_t shift, int n) {
    constexpr int N = Lanes<Acc<X>>::N;
    if (Some) return load_some(p, n);
    return load(i == NV - 1 ? p + shift : p + i * N);
}
template <int NV, int Some, class X>
WEFT_INLINE void store_at(X *p, int i, int64_t shift, int n, Vec<Acc<X>> v) {
    constexpr int N = Lanes<Acc<X>>::N;
    if (Some)
        store_some(p, v, n);
    else
        store(i == NV - 1 ? p + shift : p + i * N, v);
}

// ---- memory ------------------------------------------------------------------------------------------------

// Enough rows for a thread to be worth waking.
inline int threads_for(int64_t bytes, int threads) {
    const int64_t worth = bytes / (64 * 1024) + 1;
    return worth < threads ? static_cast<int>(worth) : threads;
}

// Scratch of one thread, aligned to a cache line.
template <class S>
struct Scratch {
    S *data;
    explicit Scratch(int64_t count)
        : data(static_cast<S *>(__builtin_malloc((count + kLanes<S>) * sizeof(S) + 64))), raw(data) {
        data = reinterpret_cast<S *>((reinterpret_cast<uintptr_t>(data) + 63) & ~uintptr_t(63));
    }
    ~Scratch() { __builtin_free(raw); }
    Scratch(const Scratch &) = delete;
    Scratch &operator=(const Scratch &) = delete;

  private:
    S *raw;
};

}  // namespace
}  // namespace WEFT_ISA
}  // namespace weft
