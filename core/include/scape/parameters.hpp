// The flat coordinate space. All parameters of a model lie in one vector; gradients and optimizer state use the same
// coordinates. ParameterLayout names the tensors in it. Algorithms never see a tensor as such: they see ranges of
// coordinates, so nothing they keep depends on buckets, shards or the number of ranks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace scape {

/// Coordinates [begin, end).
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  [[nodiscard]] std::int64_t size() const { return end - begin; }
  [[nodiscard]] bool empty() const { return end <= begin; }
  friend bool operator==(const Range&, const Range&) = default;
};

/// The common part of two ranges; empty (begin == end) when there is none.
[[nodiscard]] Range intersect(Range a, Range b);

/// What a tensor is, as far as an optimizer cares.
enum class TensorRole {
  matrix,  ///< weight matrices and embeddings: decoupled weight decay applies, communication may be sparse
  vector,  ///< LayerNorm, RMSNorm and bias: no decay, always communicated densely
};

struct ParameterTensor {
  std::string name;
  std::vector<std::int64_t> shape;  // row-major
  TensorRole role = TensorRole::matrix;
  Range range;  // its coordinates
};

class ParameterLayout {
 public:
  /// Appends a tensor behind the last one and returns its coordinates. Throws Error(usage) for a name used twice, a
  /// dimension below 1 or more elements than 64 bits count. Add all matrices first: then each role is one contiguous range and
  /// costs one kernel launch.
  Range add(std::string name, std::vector<std::int64_t> shape, TensorRole role);

  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] const std::vector<ParameterTensor>& tensors() const { return tensors_; }
  /// Throws Error(usage) naming the nearest known tensor when there is none of this name.
  [[nodiscard]] const ParameterTensor& tensor(std::string_view name) const;
  /// Maximal runs of neighbouring tensors of one role, in order; together they cover [0, size()).
  struct Run {
    Range range;
    TensorRole role;
  };
  [[nodiscard]] const std::vector<Run>& runs() const { return runs_; }

 private:
  std::vector<ParameterTensor> tensors_;
  std::vector<Run> runs_;
  std::int64_t size_ = 0;
};

}  // namespace scape
