// Binds the products that skip zeros; the instruction set is the one that the other kernels run on.
#include "products.h"

#include <cstring>
#include <string>

#include <nanobind/stl/string.h>

#include "bind.h"

namespace weft {
namespace {

struct Products {
    void (*product)(const SkipProductArgs &, const Lists *);
    void (*reduce)(const SkipReduceArgs &, const Lists *);
    void (*list)(const ListArgs &);
    int64_t (*num_lists)(int64_t, int64_t, bool);
};

Products products_of(const char *isa) {
#ifdef WEFT_X86
    if (std::strcmp(isa, "avx512") == 0) return {avx512::skip_product, avx512::skip_reduce, avx512::list_nonzeros, avx512::num_lists};
    if (std::strcmp(isa, "avx2") == 0) return {avx2::skip_product, avx2::skip_reduce, avx2::list_nonzeros, avx2::num_lists};
#endif
    (void)isa;
    return {plain::skip_product, plain::skip_reduce, plain::list_nonzeros, plain::num_lists};
}

Products products = products_of("plain");  // until the module is bound

typedef std::tuple<Pointer, Pointer, Pointer> ListPointers;  // starts, offsets, values

Lists lists_of(const ListPointers &lists) {
    return {as<const int64_t>(std::get<0>(lists)), as<const int32_t>(std::get<1>(lists)),
            as<const float>(std::get<2>(lists))};
}

// Share of non-zeros in `sampled` rows spread evenly.
double density(const float *x, int64_t rows, int64_t width, int64_t stride, int64_t sampled) {
    if (sampled > rows) sampled = rows;
    if (sampled == 0 || width == 0) return 1.0;
    int64_t filled = 0;
    for (int64_t i = 0; i < sampled; i++) {
        const float *row = x + rows * i / sampled * stride;
        for (int64_t c = 0; c < width; c++) filled += row[c] != 0.0f;
    }
    return static_cast<double>(filled) / static_cast<double>(sampled * width);
}

}  // namespace

void bind_products(nb::module_ &module) {
    products = products_of(nb::cast<std::string>(module.attr("isa")).c_str());
    const auto unlocked = nb::call_guard<nb::gil_scoped_release>();
    module.def(
        "density",
        [](Pointer x, int64_t rows, int64_t width, int64_t stride, int64_t sampled) {
            return density(as<const float>(x), rows, width, stride, sampled);
        },
        unlocked);
    module.def(
        "skip_product",
        [](Pointer left, int64_t rows, int64_t depth, int64_t left_stride, Pointer right, int64_t width,
           int64_t right_stride, int64_t right_step, Pointer out, int64_t out_stride, bool accumulate, int threads,
           std::optional<ListPointers> listed) {
            const Lists lists = listed ? lists_of(*listed) : Lists{};
            products.product({as<const float>(left), rows, depth, left_stride, as<const float>(right), width,
                              right_stride, right_step, as<float>(out), out_stride, accumulate, threads},
                             listed ? &lists : nullptr);
        },
        unlocked);
    module.def(
        "skip_reduce",
        [](Pointer left, int64_t rows, int64_t depth, int64_t left_stride, Pointer right, int64_t width,
           int64_t right_stride, Pointer out, int threads, std::optional<ListPointers> listed) {
            const Lists lists = listed ? lists_of(*listed) : Lists{};
            products.reduce({as<const float>(left), rows, depth, left_stride, as<const float>(right), width,
                             right_stride, as<float>(out), threads},
                            listed ? &lists : nullptr);
        },
        unlocked);
    module.def("num_lists", [](int64_t rows, int64_t depth, bool by_column) {
        return products.num_lists(rows, depth, by_column);
    });
    module.def(
        "list_nonzeros",
        [](Pointer left, int64_t rows, int64_t depth, int64_t left_stride, bool by_column, Pointer starts,
           Pointer offsets, Pointer values) {
            products.list({as<const float>(left), rows, depth, left_stride, by_column, as<int64_t>(starts),
                           as<int32_t>(offsets), as<float>(values)});
        },
        unlocked);
}

}  // namespace weft
