// The kernels of one instruction set, across its files.
#pragma once
#include "kernels.h"

namespace weft {
namespace WEFT_ISA {

void spmm(const SpmmArgs &);
void max_absorb(const MaxArgs &);
void max_backward(const MaxBackwardArgs &);
void gat_absorb(const GatArgs &);
void attend_finish(const void *l, void *o, int dtype, int64_t rows, int64_t heads, int64_t width, int threads);
void gat_backward(const GatBackwardArgs &);
void gatv2_absorb(const Gatv2Args &);
void gatv2_backward(const Gatv2BackwardArgs &);
void dot_absorb(const DotArgs &);
void dot_backward(const DotBackwardArgs &);
void scatter_add(const ScatterArgs &);
void elementwise(const ElementwiseArgs &);
void relu_backward(const ReluBackwardArgs &);
void head_dot(const HeadDotArgs &);
void head_dot_backward(const HeadDotBackwardArgs &);
int64_t pack(const PackArgs &);
void unpack(const UnpackArgs &);

}  // namespace WEFT_ISA
}  // namespace weft
