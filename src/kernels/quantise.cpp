// Rows as small integers: gather, range, stochastic rounding and packing in one pass, and the way back.
//
// A row of a message is [lo: float32][step: bf16][ceil(width * bits / 8) bytes]. Its columns come in tiles of eight
// words: word j holds columns j, j + 8, ... of the tile, lowest bits first, so that packing is a shift and an or. What
// does not fill a tile of 32-bit words goes into tiles of eight bytes, and what does not fill one of those follows in
// the order of its columns. Bytes to move: width * 4 + the row of the message, per row.
//
// This file is compiled without contraction of products and sums, so that every instruction set, and plain torch,
// give the same bytes.
#include <omp.h>

#include <cmath>

#include "kernels/simd.h"
#include "kernels/tables.h"

namespace weft {
namespace WEFT_ISA {
namespace {

typedef float F8 __attribute__((vector_size(32)));
typedef float F8u __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t I8 __attribute__((vector_size(32)));
typedef uint32_t U8 __attribute__((vector_size(32)));
typedef uint32_t U8u __attribute__((vector_size(32), aligned(1), may_alias));
typedef uint8_t B8 __attribute__((vector_size(8)));
typedef uint8_t B8u __attribute__((vector_size(8), aligned(1), may_alias));

// Sixteen columns are packed at a time, in as many vectors as that takes.
typedef Vec<float> F;
typedef Lanes<float>::I I;
typedef Lanes<float>::H U;
constexpr int kLong = kLanes<float>, kParts = 16 / kLong;

constexpr int kHeader = 6;
constexpr int64_t kStreamBytes = 64 << 20;  // what is larger would not stay in any cache until it is read
constexpr float kSmallestStep = 7.888609052210118e-31f;  // 2^-100: its inverse is still far from overflow

WEFT_INLINE F8 load8(const float *p) { return *reinterpret_cast<const F8u *>(p); }
// By themselves, compilers take a mask and a blend for a minimum where masks have registers of their own, and go
// through memory for that of a vector's lanes.
#ifdef __AVX2__
WEFT_INLINE float least(__m256 v) {
    const __m128 four = _mm_min_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_min_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_min_ss(two, _mm_movehdup_ps(two)));
}
WEFT_INLINE float most(__m256 v) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
#endif
#ifdef WEFT_AVX512
WEFT_INLINE F less(F a, F b) { return _mm512_min_ps(a, b); }
WEFT_INLINE F more(F a, F b) { return _mm512_max_ps(a, b); }
WEFT_INLINE I nearest(F a) { return (I)_mm512_cvtps_epi32(a); }
WEFT_INLINE float least(F v) { return least(_mm256_min_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1))); }
WEFT_INLINE float most(F v) { return most(_mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1))); }
WEFT_INLINE bool any_negative(U v) { return _mm512_movepi32_mask((__m512i)v) != 0; }
#elif defined(WEFT_AVX2)
WEFT_INLINE F less(F a, F b) { return _mm256_min_ps(a, b); }
WEFT_INLINE F more(F a, F b) { return _mm256_max_ps(a, b); }
WEFT_INLINE I nearest(F a) { return (I)_mm256_cvtps_epi32(a); }
WEFT_INLINE bool any_negative(U v) { return _mm256_movemask_ps((__m256)v) != 0; }
#else
WEFT_INLINE F less(F a, F b) { return a < b ? a : b; }
WEFT_INLINE F more(F a, F b) { return a > b ? a : b; }
WEFT_INLINE I nearest(F a) {
    I whole;
    for (int i = 0; i < kLong; i++) whole[i] = a[i] == a[i] ? static_cast<int32_t>(lrintf(a[i])) : INT32_MIN;
    return whole;
}
WEFT_INLINE float least(F v) {
    float found = v[0];
    for (int i = 1; i < kLong; i++) found = v[i] < found ? v[i] : found;
    return found;
}
WEFT_INLINE float most(F v) {
    float found = v[0];
    for (int i = 1; i < kLong; i++) found = v[i] > found ? v[i] : found;
    return found;
}
WEFT_INLINE bool any_negative(U v) {
    uint32_t found = 0;
    for (int i = 0; i < kLong; i++) found |= v[i];
    return found >> 31;
}
#endif
#ifdef __AVX2__
WEFT_INLINE void stream8(float *p, F8 a) { _mm256_stream_ps(p, a); }
WEFT_INLINE void fence() { _mm_sfence(); }
#else
WEFT_INLINE void stream8(float *p, F8 a) { *reinterpret_cast<F8u *>(p) = a; }
WEFT_INLINE void fence() {}
#endif

// The next bf16 that is not smaller, as a float.
inline float round_up(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    bits = (bits + 0xFFFFu) & 0xFFFF0000u;
    memcpy(&value, &bits, 4);
    return value;
}

struct Range {
    float lo, span;  // span is not finite where a value is infinite; a NaN may go unseen
};

inline Range range_of(const float *x, int64_t width) {
    float lo = x[0], hi = x[0];
    int64_t c = 0;
    if (width >= kLong) {
        F low = load(x), high = low, low2 = low, high2 = low;
        for (; c + 2 * kLong <= width; c += 2 * kLong) {
            const F a = load(x + c), b = load(x + c + kLong);
            low = less(a, low);
            high = more(a, high);
            low2 = less(b, low2);
            high2 = more(b, high2);
        }
        for (; c + kLong <= width; c += kLong) {
            const F a = load(x + c);
            low = less(a, low);
            high = more(a, high);
        }
        lo = least(less(low, low2));
        hi = most(more(high, high2));
    }
    for (; c < width; c++) {
        lo = x[c] < lo ? x[c] : lo;
        hi = x[c] > hi ? x[c] : hi;
    }
    return {lo, hi - lo};
}

// 13 random bits for each of 32 columns come from 16 hashes: the lowest ones, then the highest ones. With 13, the
// largest value of a row and the largest draw stay below what comes after the largest integer: the three roundings on
// the way to (x - lo) * factor add at most 3 / 2^24, which is less than half of 2^-13 of a step even at 255 steps.
struct Draws {
    static constexpr int kBits = 13;
    static constexpr uint32_t kStride = 0x9E3779B9u;
    uint32_t low, high;
    U at;  // what the next hashes are of
    explicit Draws(uint64_t hash) : low(static_cast<uint32_t>(hash)), high(static_cast<uint32_t>(hash >> 32)) {
        U slots;
        for (uint32_t i = 0; i < kLong; i++) slots[i] = i * kStride;
        at = slots + low;
    }
    WEFT_INLINE U next() {
        const U hashes = column_hash<U>(at, U{} + high);
        at += kLong * kStride;
        return hashes;
    }
    template <class W>
    static WEFT_INLINE W half(W hashes, bool upper) {
        return upper ? hashes >> (32 - kBits) : hashes & ((1u << kBits) - 1);
    }
    WEFT_INLINE uint32_t one(int64_t column) const {
        const uint32_t slot = static_cast<uint32_t>(column / 32 * 16 + column % 16);
        return half(column_hash<uint32_t>(low + slot * kStride, high), column / 16 % 2);
    }
};

template <int Bits>
struct Quantiser {
    static constexpr int32_t kMost = (1 << Bits) - 1;
    static constexpr int kPoint = Draws::kBits;
    float lo, factor;  // factor: steps in units of 2^-kPoint
    Draws draws;
    U signs = {};  // of all lanes so far: a NaN becomes the smallest integer, everything else is positive
    bool nan = false;

    // A vector's integers, at a bit of its lanes.
    WEFT_INLINE U some(const float *x, U draw, int bit) {
        const U raised = (U)nearest((load(x) - lo) * factor) + draw;
        signs |= raised;
        return (bit > kPoint ? raised << (bit - kPoint) : raised >> (kPoint - bit)) &
               (static_cast<uint32_t>(kMost) << bit);
    }
    WEFT_INLINE uint32_t one(const float *x, int64_t column) {
        nan |= x[column] != x[column];
        return (static_cast<uint32_t>(lrintf((x[column] - lo) * factor)) + draws.one(column)) >> kPoint & kMost;
    }

    // The next columns of a row, from c on, as eight lanes, lowest bits first. Asks for the same ones of a later row on
    // the way: all at once would wait for each other.
    template <int Columns>
    WEFT_INLINE U8 lanes(const float *x, int64_t c, const float *later) {
        constexpr int kFound = kLong < 8 ? 8 / kLong : 1;
        U found[kFound] = {};
#pragma GCC unroll 16
        for (int turn = 0; turn < Columns / 32 * kParts; turn++) {
            const int part = turn % kParts;
            const U hashes = draws.next();
#pragma GCC unroll 2
            for (int upper = 0; upper < 2; upper++) {  // each hash serves two columns that lie 16 apart
                const int column = turn / kParts * 32 + 16 * upper + part * kLong;
                if (part == 0) __builtin_prefetch(later + c + column, 0, 2);
                found[part % kFound] |= some(x + c + column, Draws::half(hashes, upper), column / 8 * Bits);
            }
        }
        U8 lanes;
        if constexpr (kLong == 16) {
            U8 halves[2];
            memcpy(halves, found, sizeof(halves));
            lanes = halves[0] | halves[1] << Bits;
        } else {
            memcpy(&lanes, found, sizeof(lanes));
        }
        return lanes;
    }
};

// False where the row holds a NaN.
template <int Bits>
bool pack_row(const float *x, int64_t width, uint64_t hash, const Range &range, uint8_t *out, const float *later) {
    constexpr int kWords = 8 * 32 / Bits, kBytes = 8 * 8 / Bits;  // columns in a tile of words, of bytes
    float step = round_up(range.span / static_cast<float>((1 << Bits) - 1));
    if (step < kSmallestStep) step = range.span > 0 ? kSmallestStep : 0.0f;
    memcpy(out, &range.lo, 4);
    memcpy(out + 4, reinterpret_cast<const char *>(&step) + 2, 2);
    out += kHeader;
    Quantiser<Bits> quantiser{range.lo, step > 0 ? (1 << Draws::kBits) / step : 0.0f, Draws(hash)};
    int64_t c = 0;
    for (; c + kWords <= width; c += kWords) {
        *reinterpret_cast<U8u *>(out) = quantiser.template lanes<kWords>(x, c, later);
        out += 32;
    }
    if constexpr (kBytes >= 32)
        for (; c + kBytes <= width; c += kBytes) {
            *reinterpret_cast<B8u *>(out) = __builtin_convertvector(quantiser.template lanes<kBytes>(x, c, later), B8);
            out += 8;
        }
    else
        for (; c + kBytes <= width; c += kBytes)  // once in a row
            for (int byte = 0; byte < 8; byte++, out++) {
                *out = 0;
                for (int k = 0; k < 8 / Bits; k++) *out |= quantiser.one(x, c + 8 * k + byte) << (k * Bits);
            }
    for (int shift = 0; c < width; c++) {
        if (shift == 0) *out = 0;
        *out = static_cast<uint8_t>(*out | quantiser.one(x, c) << shift);
        shift += Bits;
        if (shift == 8) {
            shift = 0;
            out++;
        }
    }
    return !quantiser.nan && !any_negative(quantiser.signs);
}

// How rows arrive: written, added to what is there, or written past the caches, which need not fetch the old row then.
enum class Arrive { kWrite, kAdd, kStream };

template <int Bits, int Count, Arrive How>
WEFT_INLINE void spread(U8 lanes, float lo, float step, float *into) {
    constexpr uint32_t kMask = (1u << Bits) - 1;
#pragma GCC unroll 16
    for (int k = 0; k < Count; k++) {
        F8 v = __builtin_convertvector((I8)((lanes >> (k * Bits)) & kMask), F8) * step + lo;
        if (How == Arrive::kAdd) v += load8(into + 8 * k);
        if (How == Arrive::kStream)
            stream8(into + 8 * k, v);
        else
            *reinterpret_cast<F8u *>(into + 8 * k) = v;
    }
}

template <int Bits, Arrive How>
void unpack_row(const uint8_t *in, int64_t width, float *into) {
    constexpr int kWord = 32 / Bits, kByte = 8 / Bits;
    float lo, step = 0;
    memcpy(&lo, in, 4);
    memcpy(reinterpret_cast<char *>(&step) + 2, in + 4, 2);
    in += kHeader;
    int64_t c = 0;
    for (; c + 8 * kWord <= width; c += 8 * kWord) {
        spread<Bits, kWord, How>(*reinterpret_cast<const U8u *>(in), lo, step, into + c);
        in += 32;
    }
    for (; c + 8 * kByte <= width; c += 8 * kByte) {
        const U8 lanes = __builtin_convertvector(*reinterpret_cast<const B8u *>(in), U8);
        spread<Bits, kByte, How>(lanes, lo, step, into + c);
        in += 8;
    }
    for (int shift = 0; c < width; c++) {
        const float v = static_cast<float>((*in >> shift) & ((1u << Bits) - 1)) * step + lo;
        into[c] = How == Arrive::kAdd ? into[c] + v : v;
        shift += Bits;
        if (shift == 8) {
            shift = 0;
            in++;
        }
    }
}

template <Arrive How>
void unpack_rows(const UnpackArgs &a) {
    const Ahead ahead(a.width * 4);
#pragma omp parallel num_threads(threads_for(a.rows *a.width * 4, a.threads))
    {
#pragma omp for schedule(static) nowait
        for (int64_t k = 0; k < a.rows; k++) {
            if (How != Arrive::kStream && a.index)
                ahead.at(k, a.rows, [&](int64_t row, auto fetch) WEFT_ASKS {
                    fetch(a.into + a.index[row] * a.width, a.width * 4);
                });
            const uint8_t *in = a.message + a.offsets[k];
            float *into = a.into + (a.index ? a.index[k] : k) * a.width;
            if (a.bits[k] == 8)
                unpack_row<8, How>(in, a.width, into);
            else if (a.bits[k] == 4)
                unpack_row<4, How>(in, a.width, into);
            else
                unpack_row<2, How>(in, a.width, into);
        }
        if (How == Arrive::kStream) fence();
    }
}

}  // namespace

int64_t pack(const PackArgs &a) {
    int64_t bad = a.rows;
    const auto row = [&a](int64_t k) { return a.x + (a.index ? a.index[k] : k) * a.width; };
#pragma omp parallel reduction(min : bad) num_threads(threads_for(a.rows *a.width * 4, a.threads))
    {
        const int64_t workers = omp_get_num_threads(), worker = omp_get_thread_num();
        const int64_t first = a.rows * worker / workers, end = a.rows * (worker + 1) / workers;
        const Ahead ahead(a.width * 4);
        // The next row's range is looked for before this row is packed: what it takes to end that search, and the
        // divisions after it, go on meanwhile.
        Range next = first < end ? range_of(row(first), a.width) : Range{};
        for (int64_t k = first; k < end; k++) {
            const Range range = next;
            const float *later = row(k + ahead.far < end ? k + ahead.far : k);
            if (k + ahead.near < end) Near()(row(k + ahead.near), a.width * 4);
            if (k + 1 < end) next = range_of(row(k + 1), a.width);
            if (a.spans) a.spans[k] = range.span;
            uint8_t *out = a.out + a.offsets[k];
            const uint64_t hash = row_hash(a.key, a.ids[k]);
            bool sound;
            if (!std::isfinite(range.span))
                sound = false;
            else if (a.bits[k] == 8)
                sound = pack_row<8>(row(k), a.width, hash, range, out, later);
            else if (a.bits[k] == 4)
                sound = pack_row<4>(row(k), a.width, hash, range, out, later);
            else
                sound = pack_row<2>(row(k), a.width, hash, range, out, later);
            if (!sound && k < bad) bad = k;
        }
    }
    return bad == a.rows ? -1 : bad;
}

void unpack(const UnpackArgs &a) {
    const bool aligned = reinterpret_cast<uintptr_t>(a.into) % 32 == 0 && a.width % 8 == 0;
    if (a.add)
        unpack_rows<Arrive::kAdd>(a);
    else if (aligned && a.rows * a.width * 4 >= kStreamBytes)
        unpack_rows<Arrive::kStream>(a);
    else
        unpack_rows<Arrive::kWrite>(a);
}

}  // namespace WEFT_ISA
}  // namespace weft
