// When gradients leave: after the backward pass, or bucket by bucket during it (Li et al. 2020, "PyTorch Distributed", VLDB 13).
// Shared by SCAPE and the dense sync, so that a comparison at equal options has the same buckets.
#pragma once

#include <cstdint>
#include <vector>

#include "scape/config.hpp"
#include "scape/parameters.hpp"

namespace scape {

enum class Overlap { none, bucketed };

struct BucketOptions {
  Overlap overlap = Overlap::none;
  double bucket_megabytes = 25;  // of fp32 gradients [10^6 bytes], whatever part of them is sent

  void declare(OptionTable& table);
};

/// Collects the ranges that a backward pass announces. Neighbours join; ranges apart from each other (matrices and vectors of a
/// layer) fill buckets side by side.
class Buckets {
 public:
  Buckets(const BucketOptions& options, std::int64_t size);

  /// True if nothing was announced since the last rest().
  [[nodiscard]] bool empty() const { return announced_ == 0; }
  /// The bucket that is full with this range, to be sent now; empty if there is none. The last one is left for rest().
  [[nodiscard]] Range add(Range range);
  /// The ranges not given out yet, and forgets them: [0, size) if nothing was announced. Throws Error(internal) if only a part of
  /// [0, size) was.
  [[nodiscard]] std::vector<Range> rest();

 private:
  std::int64_t size_;
  double full_;                 // coordinates
  std::int64_t announced_ = 0;  // coordinates
  std::vector<Range> open_;     // apart from each other
};

}  // namespace scape
