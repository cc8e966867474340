// A test bench for methods: parameters, gradients, communicator and streams of one rank, deterministic gradients to feed a method
// with, and comparisons across ranks.
#pragma once

#include <mpi.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "scape/optimizer.hpp"
#include "scape/registry.hpp"
#include "scape/rng.hpp"

namespace scape::testing {

enum class Streams {
  immediate,  ///< everything runs on the calling thread
  queued,     ///< compute and communication each on a worker thread
};

/// A layout of `size` coordinates: matrices, then (from size 3 on) vectors; odd shapes, so that nothing is a multiple of 64.
inline ParameterLayout odd_layout(std::int64_t size) {
  ParameterLayout layout;
  const std::int64_t vectors = size / 3;
  const std::int64_t matrices = size - vectors;
  const std::int64_t columns = matrices >= 300 ? 12 : matrices >= 12 ? 4 : 1;
  const std::int64_t first_rows = (matrices * 2 / 3) / columns;
  if (first_rows > 0) layout.add("w1", {first_rows, columns}, TensorRole::matrix);
  layout.add("w2", {matrices - first_rows * columns}, TensorRole::matrix);
  if (vectors > 1) layout.add("b1", {vectors / 2}, TensorRole::vector);
  if (vectors > 0) layout.add("b2", {vectors - vectors / 2}, TensorRole::vector);
  return layout;
}

/// Two matrices of 221 and 50 coordinates and a vector of 9.
inline ParameterLayout layout_of_three() {
  ParameterLayout layout;
  layout.add("a", {13, 17}, TensorRole::matrix);
  layout.add("b", {50}, TensorRole::matrix);
  layout.add("bias", {9}, TensorRole::vector);
  return layout;
}

/// A standard normal number that depends on its arguments only.
inline float normal_at(std::uint64_t seed, std::int64_t step, int rank, std::int64_t coordinate) {
  return Rng(seed + 1000003 * static_cast<std::uint64_t>(step),
             static_cast<std::uint64_t>(rank) << 32 | static_cast<std::uint64_t>(coordinate))
      .normal();
}
/// The same to the next multiple of 1/2: sums over a few ranks are exact in any order, and there are many ties and zeros.
inline float coarse_normal_at(std::uint64_t seed, std::int64_t step, int rank, std::int64_t coordinate) {
  return std::round(2 * normal_at(seed, step, rank, coordinate)) / 2;
}

/// One rank's side of a run of a method.
class Rig {
 public:
  Rig(ParameterLayout parameter_layout, MPI_Comm world, Streams streams = Streams::immediate)
      : layout(std::move(parameter_layout)),
        params(layout.size()),
        grads(layout.size()),
        comm(make_communicator("auto", world, cpu_device)) {
    if (streams == Streams::queued) {
      stream = Stream(cpu_device);
      comm_stream = Stream(cpu_device);
    }
    fill(params, [](std::int64_t j) { return normal_at(17, 0, 0, j); });
  }

  [[nodiscard]] MethodContext method_context(std::int64_t total_steps, std::uint64_t seed = 1) const {
    return {layout, cpu_device, comm->rank(), comm->size(), total_steps, seed};
  }
  [[nodiscard]] StepContext context(std::int64_t step, double learning_rate) {
    return {params, grads, layout, *comm, stream, comm_stream, telemetry, step, learning_rate};
  }

  /// values[j] ← value(j).
  static void fill(Buffer<float>& values, const std::function<float(std::int64_t)>& value) {
    for (std::int64_t j = 0; j < values.size(); ++j) values.data()[j] = value(j);
  }
  /// One step with gradient(j) on this rank, announced tensor by tensor from the last to the first, as a backward pass does.
  StepResult step(Optimizer& method, std::int64_t step, double learning_rate, const std::function<float(std::int64_t)>& gradient) {
    fill(grads, gradient);
    const StepContext now = context(step, learning_rate);
    for (auto tensor = layout.tensors().rbegin(); tensor != layout.tensors().rend(); ++tensor)
      method.gradients_ready(now, tensor->range);
    const StepResult result = method.step(now);
    stream.synchronize();
    comm_stream.synchronize();
    return result;
  }
  [[nodiscard]] std::vector<float> values() const { return {params.data(), params.data() + params.size()}; }

  ParameterLayout layout;
  Buffer<float> params;
  Buffer<float> grads;
  std::unique_ptr<Communicator> comm;
  Stream stream;
  Stream comm_stream;
  Telemetry telemetry;
};

/// Whether every rank of `world` holds these bytes. Collective.
inline bool same_on_all_ranks(const void* data, std::size_t bytes, MPI_Comm world) {
  std::vector<unsigned char> first(static_cast<const unsigned char*>(data), static_cast<const unsigned char*>(data) + bytes);
  MPI_Bcast(first.data(), static_cast<int>(bytes), MPI_BYTE, 0, world);
  int same = bytes == 0 || std::memcmp(first.data(), data, bytes) == 0 ? 1 : 0;
  MPI_Allreduce(MPI_IN_PLACE, &same, 1, MPI_INT, MPI_MIN, world);
  return same == 1;
}

/// The bytes of the state of a method or a sync, entry by entry.
using StateBytes = std::vector<std::vector<std::byte>>;
template <class Method>
StateBytes save(Method& method) {
  StateBytes saved;
  for (const StateEntry& entry : method.state()) saved.emplace_back(entry.bytes.data(), entry.bytes.data() + entry.bytes.size());
  return saved;
}
inline void load(Optimizer& method, const StateBytes& saved) {
  const std::vector<StateEntry> entries = method.state();
  require(entries.size() == saved.size(), ErrorKind::internal, "load: another number of state entries");
  for (std::size_t i = 0; i < entries.size(); ++i) {
    require(entries[i].bytes.size() == static_cast<std::int64_t>(saved[i].size()), ErrorKind::internal,
            "load: a state entry has another size");
    std::copy(saved[i].begin(), saved[i].end(), entries[i].bytes.data());
  }
}

}  // namespace scape::testing
