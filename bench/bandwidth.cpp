// Bandwidth conventions.
#include "bandwidth.hpp"

namespace scape::bench {

namespace {

bool has_blocks(Collective collective) {
  return collective != Collective::all_reduce && collective != Collective::broadcast;
}

}  // namespace

double bus_factor(Collective collective, int ranks) {
  if (collective == Collective::broadcast) return 1;
  return (collective == Collective::all_reduce ? 2.0 : 1.0) * (ranks - 1) / ranks;
}

std::optional<Message> message_of(Collective collective, std::int64_t bytes, int ranks) {
  const std::int64_t blocks = has_blocks(collective) ? ranks : 1;
  const std::int64_t block = bytes / static_cast<std::int64_t>(sizeof(float)) / blocks;
  if (block == 0) return std::nullopt;
  return Message{block * blocks, block};
}

}  // namespace scape::bench
