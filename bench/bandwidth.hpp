// How the speed of a collective is stated: the conventions of nccl-tests (its doc/PERFORMANCE.md).
//   algbw = S / t                  S: message size, t: time of the slowest rank
//   busbw = algbw · bus_factor     comparable with the speed of a link, whatever the number of ranks
#pragma once

#include <cstdint>
#include <optional>

#include "scape/communicator.hpp"

namespace scape::bench {

/// all-reduce 2 (n−1)/n; reduce-scatter, all-gather and all-to-all (n−1)/n; broadcast 1.
[[nodiscard]] double bus_factor(Collective collective, int ranks);

/// A message of floats.
struct Message {
  std::int64_t elements;        // in all
  std::int64_t elements_block;  // in the block of one rank; all of them for all-reduce and broadcast
  [[nodiscard]] double bytes() const { return static_cast<double>(elements) * sizeof(float); }  // S
};

/// The largest message of at most `bytes` bytes that divides equally among the ranks; none if a rank's block would be empty. As
/// in nccl-tests, S of reduce-scatter and all-gather is the total over the ranks, S of all-to-all what one rank sends.
[[nodiscard]] std::optional<Message> message_of(Collective collective, std::int64_t bytes, int ranks);

}  // namespace scape::bench
