// One block of small floats (formats in scape/kernels.hpp) on the CPU: x [n] and its record.
#pragma once

#include <cstdint>

namespace scape::detail {

void encode_bf16(const float* x, std::int64_t n, std::uint8_t* record);
void decode_bf16(const std::uint8_t* record, std::int64_t n, float* x);
void encode_e5m2(const float* x, std::int64_t n, std::uint8_t* record);
void decode_e5m2(const std::uint8_t* record, std::int64_t n, float* x);

}  // namespace scape::detail
