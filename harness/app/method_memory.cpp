// Measuring methods on small layouts.
#include "method_memory.hpp"

#include <algorithm>
#include <map>
#include <numeric>

namespace scape {

namespace {

struct Matrix {
  std::int64_t rows, columns;
};
using Vectors = std::vector<std::int64_t>;
using Measured = std::map<std::string, double>;  // bytes by name

constexpr const char* working = "working buffers";

Measured measure(const MethodChoice& method, int ranks, const std::vector<Matrix>& matrices, const Vectors& vectors) {
  ParameterLayout layout;
  const auto name = [&] { return std::to_string(layout.tensors().size()); };
  for (const Matrix& m : matrices) layout.add(name(), {m.rows, m.columns}, TensorRole::matrix);
  for (const std::int64_t size : vectors) layout.add(name(), {size}, TensorRole::vector);
  const std::int64_t before = detail::allocated_bytes();
  const auto built = method.make({.layout = layout, .device = cpu_device, .ranks = ranks});
  auto rest = static_cast<double>(detail::allocated_bytes() - before);
  Measured bytes;
  for (const StateEntry& entry : built->state()) {
    bytes[entry.name] += static_cast<double>(entry.bytes.size());
    rest -= static_cast<double>(entry.bytes.size());
  }
  bytes[working] = rest;
  return bytes;
}

}  // namespace

std::vector<MemoryItem> method_memory(const MethodChoice& method, const ParameterLayout& layout, int ranks) {
  // Whole blocks of 256 on every rank, whole chunks of 64 in every row, whole numbers of one per cent of the coordinates.
  const std::int64_t rows = 400;
  const std::int64_t columns = 64 * (ranks / std::gcd(ranks, 100));
  const std::int64_t size = 256 * ranks;
  const Matrix m{rows, columns};
  const Measured start = measure(method, ranks, {m}, {size});
  const Measured taller = measure(method, ranks, {{2 * rows, columns}}, {size});
  const Measured wider = measure(method, ranks, {{rows, 2 * columns}}, {size});
  const Measured both = measure(method, ranks, {{2 * rows, 2 * columns}}, {size});
  const Measured second = measure(method, ranks, {m, m}, {size});
  const Measured longer = measure(method, ranks, {m}, {2 * size});
  const Measured second_vector = measure(method, ranks, {m}, {size, size});

  std::vector<MemoryItem> items;
  for (const auto& [name, s] : start) {
    const double more_rows = taller.at(name) - s;
    const double more_columns = wider.at(name) - s;
    const double elements = both.at(name) - s - more_rows - more_columns;  // of m
    const double of_rows = more_rows - elements;
    const double of_columns = more_columns - elements;
    const double matrix = second.at(name) - s - elements - of_rows - of_columns;  // each, whatever its shape
    const double vector_elements = longer.at(name) - s;
    const double vector = second_vector.at(name) - s - vector_elements;
    double bytes = s - (elements + of_rows + of_columns + matrix) - (vector_elements + vector);
    for (const ParameterTensor& tensor : layout.tensors()) {
      const auto count = static_cast<double>(tensor.range.size());
      if (tensor.role == TensorRole::vector) {
        bytes += vector + vector_elements * count / static_cast<double>(size);
      } else {
        const auto r = static_cast<double>(tensor.shape[0]) / static_cast<double>(rows);
        const auto c = static_cast<double>(tensor.shape[1]) / static_cast<double>(columns);
        bytes += matrix + elements * r * c + of_rows * r + of_columns * c;
      }
    }
    items.push_back({name, bytes});
  }
  std::stable_partition(items.begin(), items.end(), [](const MemoryItem& item) { return item.name != working; });
  return items;
}

}  // namespace scape
