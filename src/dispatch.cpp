// Chooses the widest instruction set that this processor has, and gives its kernels to Python.
#include <cstdlib>
#include <cstring>

#include "bind.h"
#include "kernels.h"

namespace weft {
namespace {

// WEFT_ISA=plain|avx2 takes a narrower one, for tests.
const Kernels &best_kernels() {
#ifdef WEFT_X86
    const char *wanted = std::getenv("WEFT_ISA");
    const bool any = wanted == nullptr;
    __builtin_cpu_init();
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                          __builtin_cpu_supports("bmi2");
    const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (has_avx512 && (any || std::strcmp(wanted, "avx512") == 0)) return avx512::kernels();
    if (has_avx2 && (any || std::strcmp(wanted, "plain") != 0)) return avx2::kernels();
#endif
    return plain::kernels();
}

const Kernels &kernels() {
    static const Kernels &chosen = best_kernels();
    return chosen;
}

typedef std::tuple<Pointer, Pointer, int64_t, int64_t> CsrTuple;            // indptr, indices, rows, edges
typedef std::tuple<Pointer, Pointer, Pointer, int64_t> TransposedTuple;     // indptr, indices, order, rows
typedef std::optional<std::tuple<double, uint64_t, Pointer, Pointer>> DropTuple;  // p, key, dst ids, src ids

Csr csr_of(const CsrTuple &t) {
    return {as<const int64_t>(std::get<0>(t)), as<const int32_t>(std::get<1>(t)), std::get<2>(t), std::get<3>(t)};
}
Transposed transposed_of(const TransposedTuple &t) {
    return {as<const int64_t>(std::get<0>(t)), as<const int32_t>(std::get<1>(t)), as<const int64_t>(std::get<2>(t)),
            std::get<3>(t)};
}
Drop drop_of(const DropTuple &t) {
    if (!t) return {0.0, 0, nullptr, nullptr};
    return {std::get<0>(*t), std::get<1>(*t), as<const int64_t>(std::get<2>(*t)), as<const int64_t>(std::get<3>(*t))};
}

void bind_rows(nb::module_ &module) {
    const auto unlocked = nb::call_guard<nb::gil_scoped_release>();
    module.def(
        "spmm",
        [](Pointer indptr, Pointer indices, int64_t rows, int64_t edges, Pointer x, int x_dtype, int64_t width,
           Pointer weight, Pointer row_scale, Pointer col_scale, Pointer out, int out_dtype, bool accumulate,
           int threads) {
            kernels().spmm({{as<const int64_t>(indptr), as<const int32_t>(indices), rows, edges}, as<void>(x), x_dtype,
                            width, as<void>(weight), as<void>(row_scale), as<void>(col_scale), as<void>(out),
                            out_dtype, accumulate, threads});
        },
        unlocked);
    module.def(
        "max_absorb",
        [](Pointer indptr, Pointer indices, int64_t rows, int64_t edges, Pointer x, int dtype, int64_t width,
           Pointer weight, Pointer out, Pointer count, int threads) {
            kernels().max_absorb({{as<const int64_t>(indptr), as<const int32_t>(indices), rows, edges}, as<void>(x),
                                  dtype, width, as<void>(weight), as<void>(out), as<int32_t>(count), threads});
        },
        unlocked);
    module.def(
        "max_backward",
        [](Pointer indptr, Pointer indices, int64_t rows, int64_t edges, Pointer x, int dtype, int64_t width,
           Pointer weight, Pointer out, Pointer grad_share, Pointer dx, int threads) {
            kernels().max_backward({{as<const int64_t>(indptr), as<const int32_t>(indices), rows, edges}, as<void>(x),
                                    dtype, width, as<void>(weight), as<void>(out), as<void>(grad_share), as<void>(dx),
                                    threads});
        },
        unlocked);
    module.def(
        "scatter_add",
        [](Pointer out, int64_t out_rows, int64_t width, Pointer index, bool wide, int64_t count, Pointer rows,
           int dtype, int threads) {
            kernels().scatter_add(
                {as<void>(out), out_rows, width, as<void>(index), wide, count, as<void>(rows), dtype, threads});
        },
        unlocked);
}

void bind_attention(nb::module_ &module) {
    const auto unlocked = nb::call_guard<nb::gil_scoped_release>();
    typedef std::tuple<Pointer, Pointer, Pointer, int, int64_t, int64_t, double> GatTuple;
    typedef std::tuple<Pointer, Pointer, int, Pointer, int64_t, int64_t, double> Gatv2Tuple;
    typedef std::tuple<Pointer, Pointer, Pointer, int, int64_t, int64_t, int64_t, double> DotTuple;
    typedef std::tuple<Pointer, Pointer, Pointer> Three;
    typedef std::tuple<Pointer, Pointer, Pointer, Pointer> Four;
    module.def(
        "gat_absorb",
        [](CsrTuple csr, GatTuple in, Three state, DropTuple drop, int threads) {
            auto [dst, src, values, dtype, heads, width, slope] = in;
            auto [m, l, o] = state;
            kernels().gat_absorb({csr_of(csr), as<void>(dst), as<void>(src), as<void>(values), dtype, heads, width,
                                  slope, as<void>(m), as<void>(l), as<void>(o), drop_of(drop), threads});
        },
        nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), unlocked);
    module.def(
        "attend_finish",
        [](Pointer l, Pointer o, int dtype, int64_t rows, int64_t heads, int64_t width, int threads) {
            kernels().attend_finish(as<void>(l), as<void>(o), dtype, rows, heads, width, threads);
        },
        unlocked);
    module.def(
        "gat_backward",
        [](CsrTuple csr, TransposedTuple transposed, GatTuple in, Four state, Three gradients,
           std::tuple<Pointer, Pointer> scratch, DropTuple drop, int threads) {
            auto [dst, src, values, dtype, heads, width, slope] = in;
            auto [m, l, delta, grad] = state;
            auto [d_dst, d_src, d_values] = gradients;
            auto [per_row, d_logits] = scratch;
            kernels().gat_backward({csr_of(csr), transposed_of(transposed), as<void>(dst), as<void>(src),
                                    as<void>(values), dtype, heads, width, slope, as<void>(m), as<void>(l),
                                    as<void>(delta), as<void>(grad), as<void>(d_dst), as<void>(d_src),
                                    as<void>(d_values), as<void>(per_row), as<void>(d_logits), drop_of(drop),
                                    threads});
        },
        nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), unlocked);
    module.def(
        "gatv2_absorb",
        [](CsrTuple csr, Gatv2Tuple in, Three state, DropTuple drop, int threads) {
            auto [query, key, dtype, att, heads, width, slope] = in;
            auto [m, l, o] = state;
            kernels().gatv2_absorb({csr_of(csr), as<void>(query), as<void>(key), dtype, as<void>(att), heads, width,
                                    slope, as<void>(m), as<void>(l), as<void>(o), drop_of(drop), threads});
        },
        nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), unlocked);
    module.def(
        "gatv2_backward",
        [](CsrTuple csr, TransposedTuple transposed, Gatv2Tuple in, Four state, Three gradients, Pointer scratch,
           DropTuple drop, int threads) {
            auto [query, key, dtype, att, heads, width, slope] = in;
            auto [m, l, delta, grad] = state;
            auto [d_query, d_key, d_att] = gradients;
            kernels().gatv2_backward({csr_of(csr), transposed_of(transposed), as<void>(query), as<void>(key), dtype,
                                      as<void>(att), heads, width, slope, as<void>(m), as<void>(l), as<void>(delta),
                                      as<void>(grad), as<void>(d_query), as<void>(d_key), as<void>(d_att),
                                      as<void>(scratch), drop_of(drop), threads});
        },
        nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), unlocked);
    module.def(
        "dot_absorb",
        [](CsrTuple csr, DotTuple in, Three state, DropTuple drop, int threads) {
            auto [query, key, values, dtype, heads, width, value_width, scale] = in;
            auto [m, l, o] = state;
            kernels().dot_absorb({csr_of(csr), as<void>(query), as<void>(key), as<void>(values), dtype, heads, width,
                                  value_width, scale, as<void>(m), as<void>(l), as<void>(o), drop_of(drop), threads});
        },
        nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), unlocked);
    module.def(
        "dot_backward",
        [](CsrTuple csr, TransposedTuple transposed, DotTuple in, Four state, Three gradients,
           std::tuple<Pointer, Pointer> scratch, DropTuple drop, int threads) {
            auto [query, key, values, dtype, heads, width, value_width, scale] = in;
            auto [m, l, delta, grad] = state;
            auto [d_query, d_key, d_values] = gradients;
            auto [per_row, d_logits] = scratch;
            kernels().dot_backward({csr_of(csr), transposed_of(transposed), as<void>(query), as<void>(key),
                                    as<void>(values), dtype, heads, width, value_width, scale, as<void>(m),
                                    as<void>(l), as<void>(delta), as<void>(grad), as<void>(d_query), as<void>(d_key),
                                    as<void>(d_values), as<void>(per_row), as<void>(d_logits), drop_of(drop),
                                    threads});
        },
        nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), unlocked);
}

void bind_elementwise(nb::module_ &module) {
    const auto unlocked = nb::call_guard<nb::gil_scoped_release>();
    module.def(
        "dropout_rows",
        [](Pointer x, int dtype, int64_t rows, int64_t width, Pointer row_ids, double p, uint64_t key, Pointer out,
           int threads) {
            kernels().elementwise({as<void>(x), dtype, rows, width, nullptr, as<const int64_t>(row_ids), p, key,
                                   kLinear, nullptr, as<void>(out), threads});
        },
        unlocked);
    module.def(
        "bias_relu_dropout",
        [](Pointer x, int dtype, int64_t rows, int64_t width, Pointer bias, Pointer row_ids, double p, uint64_t key,
           int threads) {
            kernels().elementwise({as<void>(x), dtype, rows, width, as<void>(bias), as<const int64_t>(row_ids), p, key,
                                   kRelu, nullptr, as<void>(x), threads});
        },
        unlocked);
    module.def(
        "bias_elu_dropout",
        [](Pointer x, int dtype, int64_t rows, int64_t width, Pointer bias, Pointer row_ids, double p, uint64_t key,
           Pointer out, int threads) {
            kernels().elementwise({as<void>(x), dtype, rows, width, as<void>(bias), as<const int64_t>(row_ids), p, key,
                                   kElu, nullptr, as<void>(out), threads});
        },
        unlocked);
    module.def(
        "elu_dropout_backward",
        [](Pointer grad, Pointer result, int dtype, int64_t rows, int64_t width, Pointer row_ids, double p,
           uint64_t key, Pointer into, int threads) {
            kernels().elementwise({as<void>(grad), dtype, rows, width, nullptr, as<const int64_t>(row_ids), p, key,
                                   kEluBackward, as<void>(result), as<void>(into), threads});
        },
        unlocked);
    module.def(
        "relu_dropout_backward",
        [](Pointer grad, Pointer out, int dtype, int64_t count, double p, Pointer into, int threads) {
            kernels().relu_backward({as<void>(grad), as<void>(out), dtype, count, p, as<void>(into), threads});
        },
        unlocked);
    module.def(
        "head_dot",
        [](Pointer z, int dtype, int64_t rows, int64_t heads, int64_t width, Pointer att, Pointer out, int threads) {
            kernels().head_dot({as<void>(z), dtype, rows, heads, width, as<void>(att), as<void>(out), threads});
        },
        unlocked);
    module.def(
        "head_dot_backward",
        [](Pointer z, int dtype, int64_t rows, int64_t heads, int64_t width, Pointer att, Pointer grad, Pointer d_z,
           Pointer d_att, int threads) {
            kernels().head_dot_backward({as<void>(z), dtype, rows, heads, width, as<void>(att), as<void>(grad),
                                         as<void>(d_z), as<void>(d_att), threads});
        },
        unlocked);
}

void bind_quantise(nb::module_ &module) {
    const auto unlocked = nb::call_guard<nb::gil_scoped_release>();
    module.def(
        "pack",
        [](Pointer x, int64_t width, Pointer index, int64_t rows, Pointer bits, Pointer offsets, Pointer ids,
           uint64_t key, Pointer out, Pointer spans, int threads) {
            return kernels().pack({as<const float>(x), width, as<const int64_t>(index), rows, as<const uint8_t>(bits),
                                   as<const int64_t>(offsets), as<const int64_t>(ids), key, as<uint8_t>(out),
                                   as<float>(spans), threads});
        },
        unlocked);
    module.def(
        "unpack",
        [](Pointer message, int64_t width, int64_t rows, Pointer bits, Pointer offsets, Pointer index, Pointer into,
           bool add, int threads) {
            kernels().unpack({as<const uint8_t>(message), width, rows, as<const uint8_t>(bits),
                              as<const int64_t>(offsets), as<const int64_t>(index), as<float>(into), add, threads});
        },
        unlocked);
}

}  // namespace

void bind_kernels(nb::module_ &module) {
    module.attr("isa") = kernels().name;
    bind_rows(module);
    bind_attention(module);
    bind_elementwise(module);
    bind_quantise(module);
}

}  // namespace weft
