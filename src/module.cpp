#include "bind.h"

#ifdef WEFT_PARTITION
void bind_partition(nb::module_ &);
#endif

NB_MODULE(_native, module) {
    module.attr("version") = "0.1.0";
    module.attr("interface") = 9;  // raised with INTERFACE in weft/kernels/native.py
    weft::bind_csr(module);
    weft::bind_external(module);
    weft::bind_kernels(module);
    weft::bind_products(module);
    weft::bind_sampling(module);
#ifdef WEFT_PARTITION
    bind_partition(module);
#endif
}
