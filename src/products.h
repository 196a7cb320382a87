// Matrix products that skip the zeros of their left operand (rows after relu and dropout, and their gradients).
#pragma once
#include <cstdint>

namespace weft {

// out[rows, width] = left[rows, depth] @ right[depth, width]. Strides are in elements.
struct SkipProductArgs {
    const float *left;
    int64_t rows, depth, left_stride;
    const float *right;  // element (k, j) at k * right_stride + j * right_step
    int64_t width, right_stride, right_step;
    float *out;
    int64_t out_stride;
    bool accumulate;
    int threads;
};

// out[depth, width] = left[rows, depth]^T @ right[rows, width].
struct SkipReduceArgs {
    const float *left;
    int64_t rows, depth, left_stride;
    const float *right;
    int64_t width, right_stride;
    float *out;  // contiguous
    int threads;
};

// The non-zeros of rows that never change, listed once: list k is [starts[k], starts[k + 1]) of offsets and values. For
// `skip_product` there is a list of each row; for `skip_reduce`, of each column of each block of rows.
struct Lists {
    const int64_t *starts;
    const int32_t *offsets;
    const float *values;
};

// Makes them of left [rows, depth]; with `offsets` null it only counts: starts[k + 1] is then the length of list k.
struct ListArgs {
    const float *left;
    int64_t rows, depth, left_stride;
    bool by_column;  // for `skip_reduce`
    int64_t *starts;
    int32_t *offsets;
    float *values;
};

// Of `lists` null they are made as they are needed; else `left` is not looked at. Either way sums have the same bits.
#define WEFT_PRODUCTS(isa)                                          \
    namespace isa {                                                 \
    void skip_product(const SkipProductArgs &, const Lists *lists); \
    void skip_reduce(const SkipReduceArgs &, const Lists *lists);   \
    void list_nonzeros(const ListArgs &);                           \
    int64_t num_lists(int64_t rows, int64_t depth, bool by_column); \
    }
WEFT_PRODUCTS(plain)
WEFT_PRODUCTS(avx2)
WEFT_PRODUCTS(avx512)
#undef WEFT_PRODUCTS

}  // namespace weft
