// Products that skip zeros. After relu and dropout of one half, three quarters of a row are zero, and so is its
// gradient: the rows become short lists (offset, value), and a panel of the right operand, narrow enough for the
// first-level cache, is walked by these lists. Sums run in ascending order of the skipped dimension.
#include <omp.h>

#include <cstring>
#include <vector>

#include "kernels/simd.h"
#include "products.h"

namespace weft {
namespace WEFT_ISA {
namespace {

constexpr int64_t kPanel = 32;  // columns: 256 rows of a panel are 32 KiB
constexpr int kLane = Lanes<float>::N;
constexpr int kVectors = kPanel / kLane;
#if WEFT_VECTOR_BYTES == 64
constexpr int kUnroll = 4;
#elif WEFT_VECTOR_BYTES == 32
constexpr int kUnroll = 3;
#else
constexpr int kUnroll = 1;
#endif
constexpr int64_t kProductRows = 128;  // rows of lists made before the panels pass over them
constexpr int64_t kReduceRows = 256;
constexpr int64_t kRoom = 16;          // a list may be written one vector beyond its end

#if defined(__AVX2__) && !defined(__AVX512F__)
struct Packing {
    __m256i lanes[256];
    Packing() {
        for (int mask = 0; mask < 256; mask++) {
            int32_t order[8] = {}, n = 0;
            for (int bit = 0; bit < 8; bit++)
                if (mask >> bit & 1) order[n++] = bit;
            std::memcpy(&lanes[mask], order, 32);
        }
    }
};
const Packing &packing() {
    static const Packing table;
    return table;
}
#endif

// The non-zeros of row[0..n): byte offsets into a panel and values, padded with zeros to a multiple of kUnroll.
WEFT_INLINE int64_t make_list(const float *row, int64_t n, int32_t *offsets, float *values) {
    constexpr int kBytes = kPanel * sizeof(float);
    int64_t count = 0, k = 0;
#if defined(__AVX512F__)
    const __m512i step = _mm512_set1_epi32(16 * kBytes);
    __m512i at = _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                    _mm512_set1_epi32(kBytes));
    for (; k + 16 <= n; k += 16) {
        __m512 v = _mm512_loadu_ps(row + k);
        __mmask16 mask = _mm512_cmp_ps_mask(v, _mm512_setzero_ps(), _CMP_NEQ_UQ);
        _mm512_storeu_ps(values + count, _mm512_maskz_compress_ps(mask, v));
        _mm512_storeu_si512(offsets + count, _mm512_maskz_compress_epi32(mask, at));
        count += __builtin_popcount(mask);
        at = _mm512_add_epi32(at, step);
    }
#elif defined(__AVX2__)
    const __m256i *lanes = packing().lanes;
    for (; k + 8 <= n; k += 8) {
        __m256 v = _mm256_loadu_ps(row + k);
        int mask = _mm256_movemask_ps(_mm256_cmp_ps(v, _mm256_setzero_ps(), _CMP_NEQ_UQ));
        __m256i order = lanes[mask];
        _mm256_storeu_ps(values + count, _mm256_permutevar8x32_ps(v, order));
        static_assert(kBytes == 1 << 7, "the shift below multiplies by the bytes of a panel row");
        __m256i at = _mm256_slli_epi32(_mm256_add_epi32(order, _mm256_set1_epi32(static_cast<int>(k))), 7);
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(offsets + count), at);
        count += __builtin_popcount(static_cast<unsigned>(mask));
    }
#endif
    for (; k < n; k++) {
        offsets[count] = static_cast<int32_t>(k) * kBytes;
        values[count] = row[k];
        count += row[k] != 0;
    }
    for (; count % kUnroll; count++) {
        offsets[count] = 0;
        values[count] = 0;
    }
    return count;
}

// out[0..kPanel) (+)= the listed rows of a panel. `width` < kPanel in a last, narrower panel.
WEFT_INLINE void walk(const int32_t *offsets, const float *values, int64_t count, const float *panel, float *out,
                      int64_t width, bool add) {
    Vec<float> sums[kUnroll][kVectors] = {};
    for (int64_t t = 0; t < count; t += kUnroll) {
#pragma GCC unroll 8
        for (int u = 0; u < kUnroll; u++) {
            const float *row =
                reinterpret_cast<const float *>(reinterpret_cast<const char *>(panel) + offsets[t + u]);
            const Vec<float> value = splat<float>(values[t + u]);
#pragma GCC unroll 8
            for (int j = 0; j < kVectors; j++)
                sums[u][j] += value * *reinterpret_cast<const Vec<float> *>(row + j * kLane);
        }
    }
#pragma GCC unroll 8
    for (int u = 1; u < kUnroll; u++)
#pragma GCC unroll 8
        for (int j = 0; j < kVectors; j++) sums[0][j] += sums[u][j];
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; j++) {
        const int64_t left = width - j * kLane;
        if (left >= kLane) {
            store(out + j * kLane, add ? sums[0][j] + load(out + j * kLane) : sums[0][j]);
        } else if (left > 0) {
            const int n = static_cast<int>(left);
            store_some(out + j * kLane, add ? sums[0][j] + load_some(out + j * kLane, n) : sums[0][j], n);
        }
    }
}

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// columns[c][0..rows) = block[0..rows)[c] for eight columns.
WEFT_INLINE void transpose_strip(const float *block, int64_t rows, int64_t stride, int64_t columns, float *strip) {
    int64_t r = 0;
#ifdef __AVX2__
    if (columns == 8) {
        for (; r + 8 <= rows; r += 8) {
            const float *p = block + r * stride;
            __m256 a0 = _mm256_loadu_ps(p), a1 = _mm256_loadu_ps(p + stride), a2 = _mm256_loadu_ps(p + 2 * stride),
                   a3 = _mm256_loadu_ps(p + 3 * stride), a4 = _mm256_loadu_ps(p + 4 * stride),
                   a5 = _mm256_loadu_ps(p + 5 * stride), a6 = _mm256_loadu_ps(p + 6 * stride),
                   a7 = _mm256_loadu_ps(p + 7 * stride);
            __m256 b0 = _mm256_unpacklo_ps(a0, a1), b1 = _mm256_unpackhi_ps(a0, a1),
                   b2 = _mm256_unpacklo_ps(a2, a3), b3 = _mm256_unpackhi_ps(a2, a3),
                   b4 = _mm256_unpacklo_ps(a4, a5), b5 = _mm256_unpackhi_ps(a4, a5),
                   b6 = _mm256_unpacklo_ps(a6, a7), b7 = _mm256_unpackhi_ps(a6, a7);
            __m256 c0 = _mm256_shuffle_ps(b0, b2, 0x44), c1 = _mm256_shuffle_ps(b0, b2, 0xEE),
                   c2 = _mm256_shuffle_ps(b1, b3, 0x44), c3 = _mm256_shuffle_ps(b1, b3, 0xEE),
                   c4 = _mm256_shuffle_ps(b4, b6, 0x44), c5 = _mm256_shuffle_ps(b4, b6, 0xEE),
                   c6 = _mm256_shuffle_ps(b5, b7, 0x44), c7 = _mm256_shuffle_ps(b5, b7, 0xEE);
            float *q = strip + r;
            _mm256_storeu_ps(q, _mm256_permute2f128_ps(c0, c4, 0x20));
            _mm256_storeu_ps(q + kReduceRows, _mm256_permute2f128_ps(c1, c5, 0x20));
            _mm256_storeu_ps(q + 2 * kReduceRows, _mm256_permute2f128_ps(c2, c6, 0x20));
            _mm256_storeu_ps(q + 3 * kReduceRows, _mm256_permute2f128_ps(c3, c7, 0x20));
            _mm256_storeu_ps(q + 4 * kReduceRows, _mm256_permute2f128_ps(c0, c4, 0x31));
            _mm256_storeu_ps(q + 5 * kReduceRows, _mm256_permute2f128_ps(c1, c5, 0x31));
            _mm256_storeu_ps(q + 6 * kReduceRows, _mm256_permute2f128_ps(c2, c6, 0x31));
            _mm256_storeu_ps(q + 7 * kReduceRows, _mm256_permute2f128_ps(c3, c7, 0x31));
        }
    }
#endif
    for (; r < rows; r++)
        for (int64_t c = 0; c < columns; c++) strip[c * kReduceRows + r] = block[r * stride + c];
}

// The non-zeros of each of `depth` columns of a block of rows.
WEFT_INLINE void list_columns(const float *left, int64_t rows, int64_t depth, int64_t stride, float *strip,
                              int32_t *offsets, float *values, int64_t *counts) {
    constexpr int64_t room = kReduceRows + kRoom;
    for (int64_t k = 0; k < depth; k += 8) {
        const int64_t columns = least(depth - k, 8);
        transpose_strip(left + k, rows, stride, columns, strip);
        for (int64_t c = 0; c < columns; c++)
            counts[k + c] =
                make_list(strip + c * kReduceRows, rows, offsets + (k + c) * room, values + (k + c) * room);
    }
}

// A list on its way to where lists are kept.
WEFT_INLINE void keep_list(const ListArgs &a, int64_t list, const int32_t *offsets, const float *values,
                           int64_t count) {
    if (a.offsets == nullptr) {
        a.starts[list + 1] = count;
        return;
    }
    std::memcpy(a.offsets + a.starts[list], offsets, static_cast<size_t>(count) * sizeof(int32_t));
    std::memcpy(a.values + a.starts[list], values, static_cast<size_t>(count) * sizeof(float));
}

}  // namespace

int64_t num_lists(int64_t rows, int64_t depth, bool by_column) {
    return by_column ? ceil_div(rows, kReduceRows) * depth : rows;
}

void list_nonzeros(const ListArgs &a) {
    if (!a.by_column) {
        Scratch<int32_t> offsets(a.depth + kRoom);
        Scratch<float> values(a.depth + kRoom);
        for (int64_t r = 0; r < a.rows; r++) {
            const int64_t count = make_list(a.left + r * a.left_stride, a.depth, offsets.data, values.data);
            keep_list(a, r, offsets.data, values.data, count);
        }
        return;
    }
    constexpr int64_t room = kReduceRows + kRoom;
    Scratch<int32_t> offsets(a.depth * room);
    Scratch<float> values(a.depth * room), strip(8 * kReduceRows);
    std::vector<int64_t> counts(static_cast<size_t>(a.depth));
    for (int64_t first = 0; first < a.rows; first += kReduceRows) {
        list_columns(a.left + first * a.left_stride, least(a.rows - first, kReduceRows), a.depth, a.left_stride,
                     strip.data, offsets.data, values.data, counts.data());
        for (int64_t k = 0; k < a.depth; k++)
            keep_list(a, first / kReduceRows * a.depth + k, offsets.data + k * room, values.data + k * room,
                      counts[static_cast<size_t>(k)]);
    }
}

void skip_product(const SkipProductArgs &a, const Lists *lists) {
    const int64_t panels = ceil_div(a.width, kPanel), room = a.depth + kRoom;
    Scratch<float> packed(panels * a.depth * kPanel);
    for (int64_t p = 0; p < panels; p++)
        for (int64_t k = 0; k < a.depth; k++) {
            float *to = packed.data + (p * a.depth + k) * kPanel;
            const float *from = a.right + k * a.right_stride + p * kPanel * a.right_step;
            const int64_t width = least(a.width - p * kPanel, kPanel);
            for (int64_t j = 0; j < kPanel; j++) to[j] = j < width ? from[j * a.right_step] : 0.0f;
        }
    const int64_t blocks = ceil_div(a.rows, kProductRows);
#pragma omp parallel num_threads(a.threads) if (blocks > 1)
    {
        Scratch<int32_t> offsets(lists ? 0 : kProductRows * room);
        Scratch<float> values(lists ? 0 : kProductRows * room);
        const int32_t *offsets_of[kProductRows];
        const float *values_of[kProductRows];
        int64_t counts[kProductRows];
#pragma omp for schedule(dynamic, 4)
        for (int64_t block = 0; block < blocks; block++) {
            const int64_t first = block * kProductRows, rows = least(a.rows - first, kProductRows);
            for (int64_t r = 0; r < rows; r++) {
                if (lists) {
                    const int64_t start = lists->starts[first + r];
                    offsets_of[r] = lists->offsets + start, values_of[r] = lists->values + start;
                    counts[r] = lists->starts[first + r + 1] - start;
                } else {
                    offsets_of[r] = offsets.data + r * room, values_of[r] = values.data + r * room;
                    counts[r] = make_list(a.left + (first + r) * a.left_stride, a.depth, offsets.data + r * room,
                                          values.data + r * room);
                }
            }
            for (int64_t p = 0; p < panels; p++) {
                const int64_t width = least(a.width - p * kPanel, kPanel);
                const float *panel = packed.data + p * a.depth * kPanel;
                float *out = a.out + first * a.out_stride + p * kPanel;
                if (width == kPanel && !a.accumulate)
                    for (int64_t r = 0; r < rows; r++)
                        walk(offsets_of[r], values_of[r], counts[r], panel, out + r * a.out_stride, kPanel, false);
                else
                    for (int64_t r = 0; r < rows; r++)
                        walk(offsets_of[r], values_of[r], counts[r], panel, out + r * a.out_stride, width,
                             a.accumulate);
            }
        }
    }
}

void skip_reduce(const SkipReduceArgs &a, const Lists *lists) {
    // Rows are cut into slabs whose number does not depend on the threads, so that neither do the sums; not into many
    // where there are few rows, as each slab has sums to clear and to add up.
    constexpr int64_t kSlabs = 16, kSlabRows = 1024, room = kReduceRows + kRoom;
    const int64_t panels = ceil_div(a.width, kPanel), size = a.depth * panels * kPanel;
    const int64_t blocks = ceil_div(a.rows, kReduceRows), slabs = least(ceil_div(a.rows, kSlabRows), kSlabs);
    std::vector<float> sums(static_cast<size_t>(slabs * size));
#pragma omp parallel num_threads(a.threads) if (slabs > 1)
    {
        Scratch<int32_t> offsets(lists ? 0 : a.depth * room);
        Scratch<float> values(lists ? 0 : a.depth * room), strip(8 * kReduceRows), panel(kReduceRows * kPanel);
        std::vector<int64_t> counts(static_cast<size_t>(a.depth));
#pragma omp for schedule(static, 1)
        for (int64_t slab = 0; slab < slabs; slab++) {
            float *mine = sums.data() + slab * size;
            for (int64_t block = blocks * slab / slabs; block < blocks * (slab + 1) / slabs; block++) {
                const int64_t first = block * kReduceRows, rows = least(a.rows - first, kReduceRows);
                const float *left = a.left + first * a.left_stride, *right = a.right + first * a.right_stride;
                const int64_t *starts = lists ? lists->starts + block * a.depth : nullptr;
                if (!lists)
                    list_columns(left, rows, a.depth, a.left_stride, strip.data, offsets.data, values.data,
                                 counts.data());
                // Lines of the next block's left rows to fetch while a panel is walked.
                const int64_t next_rows = least(a.rows - first - rows, kReduceRows);
                const float *next = left + rows * a.left_stride;
                const int64_t lines = ceil_div(a.depth, 16), share = ceil_div(lines, panels);
                for (int64_t p = 0; p < panels; p++) {
                    const int64_t width = least(a.width - p * kPanel, kPanel);
                    for (int64_t r = 0; r < rows; r++) {
                        const float *from = right + r * a.right_stride + p * kPanel;
                        float *to = panel.data + r * kPanel;
                        if (width == kPanel)
                            for (int j = 0; j < kVectors; j++) store(to + j * kLane, load(from + j * kLane));
                        else
                            for (int64_t j = 0; j < kPanel; j++) to[j] = j < width ? from[j] : 0.0f;
                    }
                    const float *beside = right + (p + 1) * kPanel;  // the next panel of the same rows
                    const bool more = p + 1 < panels;
                    if (lists) {  // many are empty
                        for (int64_t k = 0; k < a.depth; k++)
                            if (starts[k + 1] > starts[k])
                                walk(lists->offsets + starts[k], lists->values + starts[k], starts[k + 1] - starts[k],
                                     panel.data, mine + (p * a.depth + k) * kPanel, kPanel, true);
                        continue;
                    }
                    for (int64_t k = 0; k < a.depth; k++) {
                        if (more && k < rows) {
                            __builtin_prefetch(beside + k * a.right_stride, 0, 2);
                            __builtin_prefetch(beside + k * a.right_stride + 16, 0, 2);
                        }
                        if (k < next_rows)
                            for (int64_t line = p * share; line < least((p + 1) * share, lines); line++)
                                __builtin_prefetch(next + k * a.left_stride + line * 16, 0, 2);
                        walk(offsets.data + k * room, values.data + k * room, counts[k], panel.data,
                             mine + (p * a.depth + k) * kPanel, kPanel, true);
                    }
                }
            }
        }
#pragma omp for schedule(static)
        for (int64_t k = 0; k < a.depth; k++)
            for (int64_t j = 0; j < a.width; j++) {
                float sum = 0;
                for (int64_t slab = 0; slab < slabs; slab++)
                    sum += sums[slab * size + (j / kPanel * a.depth + k) * kPanel + j % kPanel];
                a.out[k * a.width + j] = sum;
            }
    }
}

}  // namespace WEFT_ISA
}  // namespace weft
