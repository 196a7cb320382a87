// What the kernels take and offer. Every instruction set fills one table of these; dispatch.cpp picks one.
// All pointers are trusted: shapes, dtypes and index bounds were checked by the functions of weft/kernels.
#pragma once
#include <cstdint>

namespace weft {

enum Dtype : int { kFloat32 = 0, kFloat64 = 1, kBfloat16 = 2 };

struct Csr {
    const int64_t *indptr;
    const int32_t *indices;
    int64_t rows;
    int64_t edges;
};

struct Transposed {
    const int64_t *indptr;
    const int32_t *indices;
    const int64_t *order;  // forward position of every transposed edge
    int64_t rows;
};

// Counter-based dropout of attention coefficients; p == 0 means none.
struct Drop {
    double p;
    uint64_t key;
    const int64_t *dst_ids;
    const int64_t *src_ids;
};

struct SpmmArgs {
    Csr csr;
    const void *x;
    int x_dtype;
    int64_t width;
    const void *weight, *row_scale, *col_scale;  // may be null
    void *out;
    int out_dtype;
    bool accumulate;
    int threads;
};

struct MaxArgs {
    Csr csr;
    const void *x;
    int dtype;
    int64_t width;
    const void *weight;  // may be null
    void *out;
    int32_t *count;
    int threads;
};

struct MaxBackwardArgs {
    Csr csr;  // transposed: a row for every source
    const void *x;
    int dtype;
    int64_t width;
    const void *weight;  // may be null
    const void *out, *grad_share;
    void *dx;
    int threads;
};

struct GatArgs {
    Csr csr;
    const void *dst_term, *src_term, *values;
    int dtype;
    int64_t heads, width;
    double slope;
    void *m, *l, *o;
    Drop drop;
    int threads;
};

struct GatBackwardArgs {
    Csr csr;
    Transposed transposed;
    const void *dst_term, *src_term, *values;
    int dtype;
    int64_t heads, width;
    double slope;
    const void *m, *l, *delta, *grad;
    void *d_dst, *d_src, *d_values;
    void *per_row;   // [N, 4 * heads] scratch
    void *d_logits;  // [E, heads] scratch
    Drop drop;
    int threads;
};

struct Gatv2Args {
    Csr csr;
    const void *query, *key;
    int dtype;
    const void *att;
    int64_t heads, width;
    double slope;
    void *m, *l, *o;
    Drop drop;
    int threads;
};

struct Gatv2BackwardArgs {
    Csr csr;
    Transposed transposed;
    const void *query, *key;
    int dtype;
    const void *att;
    int64_t heads, width;
    double slope;
    const void *m, *l, *delta, *grad;
    void *d_query, *d_key, *d_att;
    void *scratch;  // [E, 2 * heads]
    Drop drop;
    int threads;
};

struct DotArgs {
    Csr csr;
    const void *query, *key, *values;
    int dtype;
    int64_t heads, width, value_width;  // columns a head, of query and key, and of values
    double scale;
    void *m, *l, *o;
    Drop drop;
    int threads;
};

struct DotBackwardArgs {
    Csr csr;
    Transposed transposed;
    const void *query, *key, *values;
    int dtype;
    int64_t heads, width, value_width;
    double scale;
    const void *m, *l, *delta, *grad;
    void *d_query, *d_key, *d_values;
    void *per_row;   // [N, 3 * heads] scratch
    void *d_logits;  // [E, heads] scratch
    Drop drop;
    int threads;
};

struct ScatterArgs {
    void *out;
    int64_t out_rows, width;
    const void *index;
    bool wide_index;
    int64_t count;
    const void *rows;
    int rows_dtype;  // bf16 rows go into a float32 out
    int threads;
};

enum Activation { kLinear, kRelu, kElu, kEluBackward };

struct ElementwiseArgs {
    const void *x;
    int dtype;
    int64_t rows, width;
    const void *bias;        // may be null
    const int64_t *row_ids;  // may be null if p == 0
    double p;
    uint64_t key;
    Activation activation;
    const void *result;  // of the forward pass, for kEluBackward: x is then the gradient
    void *out;
    int threads;
};

struct ReluBackwardArgs {
    const void *grad, *out;
    int dtype;
    int64_t count;
    double p;
    void *into;
    int threads;
};

struct HeadDotArgs {
    const void *z;
    int dtype;
    int64_t rows, heads, width;
    const void *att;
    void *out;  // [rows, heads]
    int threads;
};

struct HeadDotBackwardArgs {
    const void *z;
    int dtype;
    int64_t rows, heads, width;
    const void *att, *grad;
    void *d_z, *d_att;  // may be null
    int threads;
};

struct PackArgs {
    const float *x;
    int64_t width;
    const int64_t *index;  // rows of x to take; null: all, in order
    int64_t rows;
    const uint8_t *bits;     // [rows] 2, 4 or 8
    const int64_t *offsets;  // [rows] where each begins in the message
    const int64_t *ids;      // [rows] global ids, which key the rounding
    uint64_t key;
    uint8_t *out;
    float *spans;  // [rows] largest minus smallest; may be null
    int threads;
};

struct UnpackArgs {
    const uint8_t *message;
    int64_t width, rows;
    const uint8_t *bits;
    const int64_t *offsets;
    const int64_t *index;  // rows of `into` to write, each at most once; null: all, in order
    float *into;
    bool add;
    int threads;
};

struct Kernels {
    const char *name;
    void (*spmm)(const SpmmArgs &);
    void (*max_absorb)(const MaxArgs &);
    void (*max_backward)(const MaxBackwardArgs &);
    void (*gat_absorb)(const GatArgs &);
    void (*attend_finish)(const void *l, void *o, int dtype, int64_t rows, int64_t heads, int64_t width, int threads);
    void (*gat_backward)(const GatBackwardArgs &);
    void (*gatv2_absorb)(const Gatv2Args &);
    void (*gatv2_backward)(const Gatv2BackwardArgs &);
    void (*dot_absorb)(const DotArgs &);
    void (*dot_backward)(const DotBackwardArgs &);
    void (*scatter_add)(const ScatterArgs &);
    void (*elementwise)(const ElementwiseArgs &);
    void (*relu_backward)(const ReluBackwardArgs &);
    void (*head_dot)(const HeadDotArgs &);
    void (*head_dot_backward)(const HeadDotBackwardArgs &);
    int64_t (*pack)(const PackArgs &);  // the first row that is not finite, or -1
    void (*unpack)(const UnpackArgs &);
};

namespace plain {
const Kernels &kernels();
}
namespace avx2 {
const Kernels &kernels();
}
namespace avx512 {
const Kernels &kernels();
}

}  // namespace weft
