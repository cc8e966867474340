// Philox 4x32-10 and the distributions on top of it.
#include "scape/rng.hpp"

#include <cmath>
#include <numbers>

#include "scape/error.hpp"

namespace scape {

std::array<std::uint32_t, 4> philox(std::uint64_t seed, std::uint64_t stream, std::uint64_t counter) {
  std::array<std::uint32_t, 4> x{static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32),
                                 static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)};
  std::uint32_t key0 = static_cast<std::uint32_t>(seed);
  std::uint32_t key1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53} * x[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57} * x[2];
    x = {static_cast<std::uint32_t>(product1 >> 32) ^ x[1] ^ key0, static_cast<std::uint32_t>(product1),
         static_cast<std::uint32_t>(product0 >> 32) ^ x[3] ^ key1, static_cast<std::uint32_t>(product0)};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return x;
}

std::uint32_t Rng::next_u32() {
  if (used_ == 4) {
    words_ = philox(seed_, stream_, counter_++);
    used_ = 0;
  }
  return words_[static_cast<std::size_t>(used_++)];
}

float Rng::uniform() {
  return static_cast<float>(next_u32() >> 8) * 0x1.0p-24F;
}

float Rng::normal() {
  const float u = 1.0F - uniform();  // in (0, 1]
  const float angle = 2.0F * std::numbers::pi_v<float> * uniform();
  return std::sqrt(-2.0F * std::log(u)) * std::cos(angle);
}

std::uint64_t Rng::below(std::uint64_t bound) {
  require(bound > 0, ErrorKind::internal, "Rng::below: the bound must be positive");
  const std::uint64_t rejected = (0 - bound) % bound;  // 2^64 mod bound
  while (true) {
    const std::uint64_t high = next_u32();
    const std::uint64_t x = high << 32 | next_u32();
    if (x >= rejected) return x % bound;
  }
}

}  // namespace scape
