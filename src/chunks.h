// Work in pieces of about equal cost, whose borders do not depend on the number of threads.
#pragma once
#include <cstdint>

namespace weft {
namespace {

// First row whose edges plus rows before it reach `cost`.
inline int64_t row_at(const int64_t *indptr, int64_t rows, int64_t cost) {
    int64_t low = 0, high = rows;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (indptr[middle] + middle < cost)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct Chunks {
    const int64_t *indptr;
    int64_t rows;
    int64_t cost;   // edges + rows
    int64_t count;

    Chunks(const int64_t *indptr, int64_t rows, int64_t edges, int64_t cost_a_chunk, int64_t most = INT64_MAX)
        : indptr(indptr), rows(rows), cost(edges + rows) {
        count = (cost + cost_a_chunk - 1) / cost_a_chunk;
        if (count > most) count = most;
        if (count < 1) count = 1;
    }
    int64_t begin(int64_t chunk) const {
        if (chunk <= 0) return 0;
        if (chunk >= count) return rows;
        return row_at(indptr, rows, static_cast<int64_t>(static_cast<__int128>(cost) * chunk / count));
    }
};

}  // namespace
}  // namespace weft
