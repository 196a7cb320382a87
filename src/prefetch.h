// Rows that an index names are asked for before they are read, in two steps: from memory as far as the second cache,
// where many more can be under way at once than on the way into the first, and a few rows ahead from there.
#pragma once
#include <cstdint>

// Stands behind the arguments of what `Ahead::at` is given: GCC takes a call that does nothing but ask for a call that
// does nothing, unless it is inlined at once.
#define WEFT_ASKS __attribute__((always_inline))

namespace weft {
namespace {

template <int Locality>
struct Fetch {
    inline __attribute__((always_inline)) void operator()(const void *p, int64_t bytes) const {
        const char *c = static_cast<const char *>(p);
        __builtin_prefetch(c, 0, Locality);
        if (bytes <= 64) return;
        for (int64_t at = 64; at < bytes; at += 64) __builtin_prefetch(c + at, 0, Locality);
        __builtin_prefetch(c + bytes - 1, 0, Locality);
    }
};
typedef Fetch<2> Far;   // into the second cache
typedef Fetch<3> Near;  // into the first

// How many rows ahead: about 16 KiB on their way from memory. Short rows, which are many, are asked for once.
struct Ahead {
    static constexpr int64_t kShort = 128;
    int64_t far, near;
    explicit Ahead(int64_t row_bytes) : far(INT64_MAX / 2), near(32) {
        if (row_bytes < kShort) return;
        const int64_t rows = 16384 / row_bytes;
        far = rows < 8 ? 8 : rows > 64 ? 64 : rows;
        near = 4;
    }
    // Calls ask(which, fetch) for those of the rows up to `end` whose turn it is when row k is.
    template <class Ask>
    inline __attribute__((always_inline)) void at(int64_t k, int64_t end, Ask ask) const {
        if (k + far < end) ask(k + far, Far());
        if (k + near < end) ask(k + near, Near());
    }
};

}  // namespace
}  // namespace weft
