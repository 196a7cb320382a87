#include "kernels/tables.h"

#define WEFT_STRING_OF(name) #name
#define WEFT_STRING(name) WEFT_STRING_OF(name)

namespace weft {
namespace WEFT_ISA {

const Kernels &kernels() {
    static const Kernels table = {
        WEFT_STRING(WEFT_ISA), spmm,           max_absorb, max_backward, gat_absorb,  attend_finish, gat_backward,
        gatv2_absorb,          gatv2_backward, dot_absorb, dot_backward, scatter_add, elementwise,   relu_backward,
        head_dot,              head_dot_backward, pack,      unpack,
    };
    return table;
}

}  // namespace WEFT_ISA
}  // namespace weft
