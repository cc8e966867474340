// bfloat16 on the CPU.
#include "ops/bf16.hpp"

#include <bit>

#include "ops/cpu/gemm.hpp"
#include "ops/cpu/loops.hpp"

namespace scape::ops {

void narrow(Span<Bf16> to, Span<const float> from, const Stream& stream) {
  stream.enqueue([to = to.host().data(), from = from.host().data(), count = from.size()] {
    for_elements(count, [=](std::int64_t i) {
      const auto bits = std::bit_cast<std::uint32_t>(from[i]);
      const std::uint32_t rounded = bits + 0x7FFF + (bits >> 16 & 1);
      const bool nan = (bits & 0x7FFFFFFF) > 0x7F800000;
      to[i].bits = static_cast<std::uint16_t>((nan ? bits | 0x400000 : rounded) >> 16);
    });
  });
}

bool bf16_products(Device) {
  return gemm_is_available<Bf16>();
}

}  // namespace scape::ops
