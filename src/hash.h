// Counter-based randomness: see weft/kernels/hash.py. Internal linkage, as everything that two instruction sets
// compile.
#pragma once
#include <cstdint>

namespace weft {
namespace {

inline uint64_t splitmix64(uint64_t v) {
    v += 0x9E3779B97F4A7C15ull;
    v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9ull;
    v = (v ^ (v >> 27)) * 0x94D049BB133111EBull;
    return v ^ (v >> 31);
}

}  // namespace
}  // namespace weft
