// bfloat16: the upper half of a float (8 bits of exponent, 7 of mantissa), for the factors of matrix products; sums, weights and
// gradients stay fp32 (mixed precision: Micikevicius et al., arXiv 1710.03740; bfloat16: Kalamkar et al., arXiv 1905.12322).
#pragma once

#include <cstdint>

#include "scape/buffer.hpp"
#include "scape/stream.hpp"

namespace scape::ops {

struct Bf16 {
  std::uint16_t bits;
};

/// Each element rounded to the nearest bfloat16, ties to even; NaN stays NaN.
void narrow(Span<Bf16> to, Span<const float> from, const Stream& stream);

/// Whether there are matrix products of bfloat16 on this device: with oneDNN 2.6 on x86, from AVX-512 on. They take half the time
/// of fp32 products if the processor has bfloat16 instructions, and three times as long where oneDNN has to emulate them.
[[nodiscard]] bool bf16_products(Device device);

}  // namespace scape::ops
