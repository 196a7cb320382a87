#include "bind.h"

void bind_partition(nb::module_ &);
extern const char *const weft_source_hash;  // of the file that cmake/source_hash.cmake writes

NB_MODULE(_native, module) {
    module.attr("source_hash") = weft_source_hash;
    weft::bind_csr(module);
    weft::bind_out_of_core(module);
    weft::bind_kernels(module);
    weft::bind_products(module);
    weft::bind_sampling(module);
    bind_partition(module);
}
