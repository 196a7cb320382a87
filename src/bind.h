// How Python's integers become pointers: the functions of weft/kernels/native pass data_ptr() of tensors.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <cstdint>

namespace nb = nanobind;

namespace weft {

typedef std::uintptr_t Pointer;

template <class T>
T *as(Pointer address) {
    return reinterpret_cast<T *>(address);
}

void bind_csr(nb::module_ &);
void bind_out_of_core(nb::module_ &);
void bind_kernels(nb::module_ &);
void bind_sampling(nb::module_ &);
void bind_products(nb::module_ &);  // after bind_kernels, whose instruction set it takes

}  // namespace weft
