// Buckets of a backward pass.
#include "scape/buckets.hpp"

#include <algorithm>
#include <utility>

#include "scape/error.hpp"

namespace scape {

void BucketOptions::declare(OptionTable& table) {
  table.add("overlap", overlap, "when gradients leave: after the backward pass, or bucket by bucket during it",
            {{"none", Overlap::none}, {"bucketed", Overlap::bucketed}});
  table.add("bucket_megabytes", bucket_megabytes, "fp32 gradients in a bucket [MB] for overlap = bucketed", {.above = 0});
}

Buckets::Buckets(const BucketOptions& options, std::int64_t size)
    : size_(size), full_(options.bucket_megabytes * 1e6 / sizeof(float)) {}

Range Buckets::add(Range range) {
  if (range.empty()) return {};
  announced_ += range.size();
  std::erase_if(open_, [&](const Range& other) {
    if (other.end != range.begin && range.end != other.begin) return false;
    range = {std::min(range.begin, other.begin), std::max(range.end, other.end)};
    return true;
  });
  if (static_cast<double>(range.size()) >= full_ && announced_ < size_) return range;
  open_.push_back(range);
  return {};
}

std::vector<Range> Buckets::rest() {
  require(announced_ == 0 || announced_ == size_, ErrorKind::internal,
          "buckets: the backward pass announced only a part of the gradients");
  if (announced_ == 0) return {{0, size_}};
  announced_ = 0;
  return std::exchange(open_, {});
}

}  // namespace scape
