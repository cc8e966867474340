// Counter-based random numbers (Philox 4x32-10; Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
// A value depends on (seed, stream, counter) only: no state to save, the same numbers for any number of threads or ranks.
#pragma once

#include <array>
#include <cstdint>

namespace scape {

/// Four independent 32-bit words for (seed, stream, counter).
[[nodiscard]] std::array<std::uint32_t, 4> philox(std::uint64_t seed, std::uint64_t stream, std::uint64_t counter);

/// A sequence of numbers: the words of philox(seed, stream, 0), philox(seed, stream, 1), …
class Rng {
 public:
  explicit Rng(std::uint64_t seed, std::uint64_t stream = 0) : seed_(seed), stream_(stream) {}

  [[nodiscard]] std::uint32_t next_u32();
  /// Uniform in [0, 1), 24 random bits.
  [[nodiscard]] float uniform();
  /// Standard normal (Box–Muller).
  [[nodiscard]] float normal();
  /// Uniform in [0, bound), without modulo bias. `bound` must be positive.
  [[nodiscard]] std::uint64_t below(std::uint64_t bound);

 private:
  std::uint64_t seed_;
  std::uint64_t stream_;
  std::uint64_t counter_ = 0;
  std::array<std::uint32_t, 4> words_{};
  int used_ = 4;
};

}  // namespace scape
