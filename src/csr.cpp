// Building and transposing CSR: count, place, sort each row. Placing in parallel scrambles a row, and sorting by
// (key, position) puts it right again, so the result does not depend on the number of threads.
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "bind.h"
#include "chunks.h"
#include "gather.h"

namespace weft {
namespace {

constexpr int64_t kPackable = int64_t(1) << 32;

int threads_for(int64_t edges, int threads) { return edges < 16384 ? 1 : threads; }

// indptr[v + 1] = edges of v, then summed.
template <class Index>
void count_rows(const Index *index, int64_t edges, int64_t rows, int64_t *indptr, int threads) {
    std::fill(indptr, indptr + rows + 1, 0);
    if (threads == 1) {
        for (int64_t k = 0; k < edges; k++) indptr[index[k] + 1]++;
    } else {
#pragma omp parallel for schedule(static) num_threads(threads)
        for (int64_t k = 0; k < edges; k++)
            reinterpret_cast<std::atomic<int64_t> *>(indptr + index[k] + 1)->fetch_add(1, std::memory_order_relaxed);
    }
    for (int64_t v = 0; v < rows; v++) indptr[v + 1] += indptr[v];
}

int64_t take(std::vector<int64_t> &cursor, int64_t row, bool serial) {
    if (serial) return cursor[row]++;
    return reinterpret_cast<std::atomic<int64_t> *>(&cursor[row])->fetch_add(1, std::memory_order_relaxed);
}

template <class Index>
void build(const Index *src, const Index *dst, int64_t edges, int64_t num_dst, int64_t *indptr, int32_t *indices,
           int64_t *order, int threads) {
    if (edges >= kPackable) throw std::invalid_argument("a CSR of 2^32 or more edges must be built in parts");
    threads = threads_for(edges, threads);
    count_rows(dst, edges, num_dst, indptr, threads);
    std::vector<int64_t> cursor(indptr, indptr + num_dst);
    uint64_t *keys = reinterpret_cast<uint64_t *>(order);  // (source, position), sorted in place, then unpacked
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t k = 0; k < edges; k++)
        keys[take(cursor, dst[k], threads == 1)] = static_cast<uint64_t>(src[k]) << 32 | static_cast<uint64_t>(k);
    const Chunks chunks(indptr, num_dst, edges, 16384);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t chunk = 0; chunk < chunks.count; chunk++)
        for (int64_t row = chunks.begin(chunk); row < chunks.begin(chunk + 1); row++) {
            std::sort(keys + indptr[row], keys + indptr[row + 1]);
            for (int64_t k = indptr[row]; k < indptr[row + 1]; k++) {
                const uint64_t key = keys[k];
                indices[k] = static_cast<int32_t>(key >> 32);
                order[k] = static_cast<int64_t>(key & 0xFFFFFFFFu);
            }
        }
}

void transpose(const int64_t *indptr, const int32_t *indices, int64_t rows, int64_t columns, int64_t edges,
               int64_t *indptr_t, int32_t *indices_t, int64_t *order, int threads) {
    if (edges >= kPackable) throw std::invalid_argument("a CSR of 2^32 or more edges must be built in parts");
    threads = threads_for(edges, threads);
    count_rows(indices, edges, columns, indptr_t, threads);
    std::vector<int64_t> cursor(indptr_t, indptr_t + columns);
    if (threads == 1) {  // walking the rows in order leaves every column sorted
        for (int64_t row = 0; row < rows; row++)
            for (int64_t k = indptr[row]; k < indptr[row + 1]; k++) {
                const int64_t at = cursor[indices[k]]++;
                indices_t[at] = static_cast<int32_t>(row);
                order[at] = k;
            }
        return;
    }
    uint64_t *keys = reinterpret_cast<uint64_t *>(order);  // (position, row)
    const Chunks chunks(indptr, rows, edges, 16384);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t chunk = 0; chunk < chunks.count; chunk++)
        for (int64_t row = chunks.begin(chunk); row < chunks.begin(chunk + 1); row++)
            for (int64_t k = indptr[row]; k < indptr[row + 1]; k++)
                keys[take(cursor, indices[k], false)] = static_cast<uint64_t>(k) << 32 | static_cast<uint64_t>(row);
    const Chunks back(indptr_t, columns, edges, 16384);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t chunk = 0; chunk < back.count; chunk++)
        for (int64_t column = back.begin(chunk); column < back.begin(chunk + 1); column++) {
            std::sort(keys + indptr_t[column], keys + indptr_t[column + 1]);
            for (int64_t k = indptr_t[column]; k < indptr_t[column + 1]; k++) {
                const uint64_t key = keys[k];
                indices_t[k] = static_cast<int32_t>(key & 0xFFFFFFFFu);
                order[k] = static_cast<int64_t>(key >> 32);
            }
        }
}

template <class Index>
std::tuple<int64_t, int64_t> extremes_of(const Index *index, int64_t count, int threads) {
    Index low = index[0], high = index[0];
#pragma omp parallel for simd schedule(static) reduction(min : low) reduction(max : high) num_threads(threads) if (count > 65536)
    for (int64_t k = 0; k < count; k++) {
        low = index[k] < low ? index[k] : low;
        high = index[k] > high ? index[k] : high;
    }
    return {low, high};
}

template <class Index>
void gather_by(const char *x, const Index *index, int64_t count, int64_t row_bytes, char *out, int threads) {
    gather_rows([=](int64_t k) { return x + static_cast<int64_t>(index[k]) * row_bytes; }, count, row_bytes, out,
                threads);
}

}  // namespace

void bind_csr(nb::module_ &module) {
    const auto unlocked = nb::call_guard<nb::gil_scoped_release>();
    module.def(
        "build_csr",
        [](Pointer src, Pointer dst, bool wide, int64_t edges, int64_t, int64_t num_dst, Pointer indptr,
           Pointer indices, Pointer order, int threads) {
            if (wide)
                build(as<const int64_t>(src), as<const int64_t>(dst), edges, num_dst, as<int64_t>(indptr),
                      as<int32_t>(indices), as<int64_t>(order), threads);
            else
                build(as<const int32_t>(src), as<const int32_t>(dst), edges, num_dst, as<int64_t>(indptr),
                      as<int32_t>(indices), as<int64_t>(order), threads);
        },
        unlocked);
    module.def(
        "transpose_csr",
        [](Pointer indptr, Pointer indices, int64_t rows, int64_t columns, int64_t edges, Pointer indptr_t,
           Pointer indices_t, Pointer order, int threads) {
            transpose(as<const int64_t>(indptr), as<const int32_t>(indices), rows, columns, edges,
                      as<int64_t>(indptr_t), as<int32_t>(indices_t), as<int64_t>(order), threads);
        },
        unlocked);
    module.def(
        "extremes",
        [](Pointer index, int64_t count, bool wide, int threads) {
            return wide ? extremes_of(as<const int64_t>(index), count, threads)
                        : extremes_of(as<const int32_t>(index), count, threads);
        },
        unlocked);
    module.def(
        "gather",
        [](Pointer x, Pointer index, bool wide, int64_t count, int64_t row_bytes, Pointer out, int threads) {
            if (wide)
                gather_by(as<const char>(x), as<const int64_t>(index), count, row_bytes, as<char>(out), threads);
            else
                gather_by(as<const char>(x), as<const int32_t>(index), count, row_bytes, as<char>(out), threads);
        },
        unlocked);
}

}  // namespace weft
