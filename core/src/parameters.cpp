// Names and coordinates of the tensors in the flat parameter vector.
#include "scape/parameters.hpp"

#include <algorithm>
#include <limits>

#include "scape/config.hpp"
#include "scape/error.hpp"

namespace scape {

Range intersect(Range a, Range b) {
  const std::int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

Range ParameterLayout::add(std::string name, std::vector<std::int64_t> shape, TensorRole role) {
  const std::int64_t most = std::numeric_limits<std::int64_t>::max() - size_;
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) {
    if (extent < 1) throw Error(ErrorKind::usage, "parameter tensor '" + name + "' has a dimension below 1");
    if (extent > most / count) throw Error(ErrorKind::usage, "parameter tensor '" + name + "' has too many elements");
    count *= extent;
  }
  for (const ParameterTensor& known : tensors_) {
    if (known.name == name) throw Error(ErrorKind::usage, "parameter tensor '" + name + "' is declared twice");
  }
  const Range range{size_, size_ + count};
  tensors_.push_back({std::move(name), std::move(shape), role, range});
  if (!runs_.empty() && runs_.back().role == role) {
    runs_.back().range.end = range.end;
  } else {
    runs_.push_back({range, role});
  }
  size_ = range.end;
  return range;
}

const ParameterTensor& ParameterLayout::tensor(std::string_view name) const {
  std::vector<std::string> names;
  for (const ParameterTensor& tensor : tensors_) {
    if (tensor.name == name) return tensor;
    names.push_back(tensor.name);
  }
  throw Error(ErrorKind::usage, "no parameter tensor '" + std::string(name) + "'; nearest is '" + nearest_name(name, names) + "'");
}

}  // namespace scape
