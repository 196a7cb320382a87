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

namespace plain {
void skip_product(const SkipProductArgs &);
void skip_reduce(const SkipReduceArgs &);
}  // namespace plain
namespace avx2 {
void skip_product(const SkipProductArgs &);
void skip_reduce(const SkipReduceArgs &);
}  // namespace avx2
namespace avx512 {
void skip_product(const SkipProductArgs &);
void skip_reduce(const SkipReduceArgs &);
}  // namespace avx512

}  // namespace weft
