// What a method keeps in memory on one rank of a run, reckoned without building it for the model: it is built for a handful of
// small layouts instead, and measured. Memory that grows with a tensor's elements, rows and columns, with the number of tensors or
// not at all is extrapolated from those, so there is no table of sizes to keep in step with the methods.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scape/registry.hpp"

namespace scape {

struct MemoryItem {
  std::string name;  // of a state entry ("adamw/m"), or "working buffers"
  double bytes = 0;
};

/// Rank 0's memory beside parameters and gradients: each state entry of a vector's size, then everything else that the method
/// allocates as it is built. Buffers that a method makes or enlarges while it runs are not seen. Exact but for roundings of shards,
/// blocks and numbers of kept coordinates.
[[nodiscard]] std::vector<MemoryItem> method_memory(const MethodChoice& method, const ParameterLayout& layout, int ranks);

}  // namespace scape
