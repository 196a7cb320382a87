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
typedef int64_t I4 __attribute__((vector_size(32)));
typedef uint32_t U8 __attribute__((vector_size(32)));
typedef uint32_t U8u __attribute__((vector_size(32), aligned(1), may_alias));
typedef uint8_t B8 __attribute__((vector_size(8)));
typedef uint8_t B8u __attribute__((vector_size(8), aligned(1), may_alias));

constexpr int kHeader = 6;
// Rows between the one that is packed and those that are asked for: the far one comes from memory as far as the second
// cache, line by line between the columns (all at once would wait for each other), the near one from there.
constexpr int kFar = 16, kNear = 3;
constexpr int64_t kStreamBytes = 64 << 20;  // what is larger would not stay in any cache until it is read
constexpr float kSmallestStep = 7.888609052210118e-31f;  // 2^-100: its inverse is still far from overflow

WEFT_INLINE F8 load8(const float *p) { return *reinterpret_cast<const F8u *>(p); }
#ifdef __AVX__  // by themselves, compilers take a mask and a blend where masks have registers of their own
WEFT_INLINE F8 less8(F8 a, F8 b) { return _mm256_min_ps(a, b); }
WEFT_INLINE F8 more8(F8 a, F8 b) { return _mm256_max_ps(a, b); }
WEFT_INLINE I8 nearest8(F8 a) { return (I8)_mm256_cvtps_epi32(a); }
WEFT_INLINE void stream8(float *p, F8 a) { _mm256_stream_ps(p, a); }
WEFT_INLINE void fence() { _mm_sfence(); }
#else
WEFT_INLINE F8 less8(F8 a, F8 b) { return a < b ? a : b; }
WEFT_INLINE F8 more8(F8 a, F8 b) { return a > b ? a : b; }
WEFT_INLINE I8 nearest8(F8 a) {
    I8 r;
    for (int i = 0; i < 8; i++) r[i] = static_cast<int32_t>(lrintf(a[i]));
    return r;
}
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
    float lo, span;
    bool finite;
};

// The least (or most) of eight lanes, by halves.
template <class Before>
WEFT_INLINE float among(F8 v, Before before) {
    float parts[8];
    memcpy(parts, &v, sizeof(v));
    for (int step = 4; step > 0; step /= 2)
        for (int i = 0; i < step; i++) parts[i] = before(parts[i + step], parts[i]) ? parts[i + step] : parts[i];
    return parts[0];
}

inline Range range_of(const float *x, int64_t width) {
    float lo = x[0], hi = x[0];
    bool nan = false;
    int64_t c = 0;
    if (width >= 8) {
        F8 low = load8(x), high = low, low2 = low, high2 = low, sum = {}, sum2 = {};
        for (; c + 16 <= width; c += 16) {
            const F8 a = load8(x + c), b = load8(x + c + 8);
            low = less8(a, low);
            high = more8(a, high);
            sum += a;
            low2 = less8(b, low2);
            high2 = more8(b, high2);
            sum2 += b;
        }
        for (; c + 8 <= width; c += 8) {
            const F8 a = load8(x + c);
            low = less8(a, low);
            high = more8(a, high);
            sum += a;
        }
        lo = among(less8(low, low2), [](float a, float b) { return a < b; });
        hi = among(more8(high, high2), [](float a, float b) { return a > b; });
        // A sum that holds a NaN is one. Sums of huge numbers may overflow, too: then it takes a closer look.
        const F8 apart = (sum + sum2) - (sum + sum2);
        const I8 odd = apart != 0.0f;
        const I4 some = (I4)odd;
        if (some[0] | some[1] | some[2] | some[3])
            for (int64_t at = 0; at < c; at++) nan |= x[at] != x[at];
    }
    for (; c < width; c++) {
        lo = x[c] < lo ? x[c] : lo;
        hi = x[c] > hi ? x[c] : hi;
        nan |= x[c] != x[c];
    }
    const float span = hi - lo;  // not finite where one of them is not
    return {lo, span, !nan && span - span == 0.0f};
}

// 16 random bits for each of 16 columns come from 8 hashes: the lower halves, then the upper ones.
struct Draws {
    uint32_t low, high;
    U8 at;  // what the next 8 hashes are of
    explicit Draws(uint64_t hash) : low(static_cast<uint32_t>(hash)), high(static_cast<uint32_t>(hash >> 32)) {
        const U8 slots = {0, 1, 2, 3, 4, 5, 6, 7};
        at = slots * 0x9E3779B9u + low;
    }
    WEFT_INLINE U8 next_sixteen() {
        const U8 bits = column_hash<U8>(at, U8{} + high);
        at += 8 * 0x9E3779B9u;
        return bits;
    }
    WEFT_INLINE uint32_t one(int64_t column) const {
        const uint32_t slot = static_cast<uint32_t>(column / 16 * 8 + column % 8);
        const uint32_t bits = column_hash<uint32_t>(low + slot * 0x9E3779B9u, high);
        return column / 8 % 2 ? bits >> 16 : bits & 0xFFFFu;
    }
};

template <int Bits>
struct Quantiser {
    static constexpr int32_t kMost = (1 << Bits) - 1;
    static constexpr float kTop = kMost * 65536.0f;
    float lo, factor;  // factor: steps in units of 2^-16
    Draws draws;

    // Cut off at the top before the draw is added, which then leads no further: a float's minimum is one instruction.
    // Their integers lie at `bit` of the lanes.
    template <int Bit>
    WEFT_INLINE U8 eight(const float *x, U8 draw) const {
        const U8 raised = (U8)nearest8(less8((load8(x) - lo) * factor, F8{} + kTop)) + draw;
        return (Bit > 16 ? raised << (Bit - 16) : raised >> (16 - Bit)) & (static_cast<uint32_t>(kMost) << Bit);
    }
    WEFT_INLINE uint32_t one(const float *x, int64_t column) const {
        const uint32_t q = (static_cast<uint32_t>(lrintf((x[column] - lo) * factor)) + draws.one(column)) >> 16;
        return q > kMost ? kMost : q;
    }
};

// Columns [8 First, 8 Last) from x on as eight lanes, lowest bits first.
template <int Bits, int First, int Last>
WEFT_INLINE U8 lanes_of(Quantiser<Bits> &quantiser, const float *x, const float *later) {
    if constexpr (First == Last) {
        return U8{};
    } else {
        const U8 draws = quantiser.draws.next_sixteen();
        __builtin_prefetch(later + 8 * First, 0, 2);
        return quantiser.template eight<First * Bits>(x + 8 * First, draws & 0xFFFFu) |
               quantiser.template eight<(First + 1) * Bits>(x + 8 * First + 8, draws >> 16) |
               lanes_of<Bits, First + 2, Last>(quantiser, x, later);
    }
}

template <int Bits>
void pack_row(const float *x, int64_t width, uint64_t hash, const Range &range, uint8_t *out, const float *later) {
    constexpr int kLong = 32 / Bits, kShort = 8 / Bits;  // vectors of eight columns in a tile of words, of bytes
    float step = round_up(range.span / ((1 << Bits) - 1));
    if (step < kSmallestStep) step = range.span > 0 ? kSmallestStep : 0.0f;
    memcpy(out, &range.lo, 4);
    memcpy(out + 4, reinterpret_cast<const char *>(&step) + 2, 2);
    out += kHeader;
    Quantiser<Bits> quantiser{range.lo, step > 0 ? 65536.0f / step : 0.0f, Draws(hash)};
    int64_t c = 0;
    for (; c + 8 * kLong <= width; c += 8 * kLong) {
        const U8 lanes = lanes_of<Bits, 0, kLong>(quantiser, x + c, later + c);
        *reinterpret_cast<U8u *>(out) = lanes;
        out += 32;
    }
    U8 draws = {};
    for (; c + 8 * kShort <= width; c += 8 * kShort) {
        U8 lanes = {};
        if constexpr (Bits == 8) {
            const bool first = c % 16 == 0;
            if (first) draws = quantiser.draws.next_sixteen();
            lanes = quantiser.template eight<0>(x + c, first ? draws & 0xFFFFu : draws >> 16);
        } else {
            lanes = lanes_of<Bits, 0, kShort>(quantiser, x + c, later + c);
        }
        *reinterpret_cast<B8u *>(out) = __builtin_convertvector(lanes, B8);
        out += 8;
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
    constexpr int kLong = 32 / Bits, kShort = 8 / Bits;
    float lo, step = 0;
    memcpy(&lo, in, 4);
    memcpy(reinterpret_cast<char *>(&step) + 2, in + 4, 2);
    in += kHeader;
    int64_t c = 0;
    for (; c + 8 * kLong <= width; c += 8 * kLong) {
        spread<Bits, kLong, How>(*reinterpret_cast<const U8u *>(in), lo, step, into + c);
        in += 32;
    }
    for (; c + 8 * kShort <= width; c += 8 * kShort) {
        const U8 lanes = __builtin_convertvector(*reinterpret_cast<const B8u *>(in), U8);
        spread<Bits, kShort, How>(lanes, lo, step, into + c);
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
#pragma omp parallel num_threads(threads_for(a.rows *a.width * 4, a.threads))
    {
#pragma omp for schedule(static) nowait
        for (int64_t k = 0; k < a.rows; k++) {
            if (How != Arrive::kStream && a.index && k + 4 < a.rows) {
                const char *next = reinterpret_cast<const char *>(a.into + a.index[k + 4] * a.width);
                for (int64_t at = 0; at < a.width * 4; at += 64) __builtin_prefetch(next + at, 1);
            }
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
        // The next row's range is looked for before this row is packed: what it takes to end that search, and the
        // divisions after it, go on meanwhile.
        Range next = first < end ? range_of(row(first), a.width) : Range{};
        for (int64_t k = first; k < end; k++) {
            const Range range = next;
            const float *later = row(k + kFar < end ? k + kFar : k);
            if (k + kNear < end) prefetch_bytes(row(k + kNear), a.width * 4);
            if (k + 1 < end) next = range_of(row(k + 1), a.width);
            if (!range.finite) {
                if (k < bad) bad = k;
                continue;
            }
            if (a.spans) a.spans[k] = range.span;
            uint8_t *out = a.out + a.offsets[k];
            const uint64_t hash = row_hash(a.key, a.ids[k]);
            if (a.bits[k] == 8)
                pack_row<8>(row(k), a.width, hash, range, out, later);
            else if (a.bits[k] == 4)
                pack_row<4>(row(k), a.width, hash, range, out, later);
            else
                pack_row<2>(row(k), a.width, hash, range, out, later);
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
