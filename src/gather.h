// Rows of any dtype, copied from wherever they lie, one after another. Bytes to move: each row read and written once;
// results too large for the caches are written past them, which saves reading what is overwritten.
#pragma once
#include <omp.h>

#include <cstdint>
#include <cstring>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "prefetch.h"

namespace weft {
namespace {

constexpr int64_t kPastCaches = int64_t(1) << 24;

inline void copy_row(char *to, const char *from, int64_t bytes, bool past_caches) {
#ifdef __SSE2__
    if (past_caches) {
        for (int64_t at = 0; at < bytes; at += 16)
            _mm_stream_si128(reinterpret_cast<__m128i *>(to + at),
                             _mm_loadu_si128(reinterpret_cast<const __m128i *>(from + at)));
        return;
    }
#endif
    std::memcpy(to, from, bytes);
}

// out[k] = the row at at_row(k).
template <class AtRow>
void gather_rows(AtRow at_row, int64_t count, int64_t row_bytes, char *out, int threads) {
    const Ahead ahead(row_bytes);
    const bool serial = count * row_bytes < 65536;
    const bool past_caches =
        count * row_bytes >= kPastCaches && row_bytes % 16 == 0 && reinterpret_cast<uintptr_t>(out) % 16 == 0;
#pragma omp parallel num_threads(serial ? 1 : threads)
    {
#pragma omp for schedule(static)
        for (int64_t k = 0; k < count; k++) {
            ahead.at(k, count, [&](int64_t row, auto fetch) WEFT_ASKS { fetch(at_row(row), row_bytes); });
            copy_row(out + k * row_bytes, at_row(k), row_bytes, past_caches);
        }
#ifdef __SSE2__
        if (past_caches) _mm_sfence();
#endif
    }
}

}  // namespace
}  // namespace weft
