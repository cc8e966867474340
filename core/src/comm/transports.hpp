// The transports there are. CMake decides whether make_nccl_transport is NCCL or an error that says why not.
#pragma once

#include <bitset>
#include <memory>
#include <numeric>

#include "scape/communicator.hpp"

namespace scape::detail {

using Counts = std::span<const std::int64_t>;

[[nodiscard]] inline std::int64_t total(Counts counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

/// No communication: the one rank's data is the result.
[[nodiscard]] std::unique_ptr<Transport> make_self_transport();

/// Blocking MPI collectives on host memory, over a duplicate of `world`. MPI counts are 32-bit: messages of more than
/// `most_elements` elements are cut into pieces (tests lower the limit).
[[nodiscard]] std::unique_ptr<Transport> make_mpi_transport(MPI_Comm world, std::int64_t most_elements = std::int64_t{1} << 30);

/// By Collective.
using CollectiveSet = std::bitset<all_collectives.size()>;
/// "all_reduce, broadcast"
[[nodiscard]] std::string to_string(const CollectiveSet& collectives);

/// How MPI gets at memory of a GPU: collectives in `direct` are given its pointers, the others copies in host memory.
struct MpiPaths {
  CollectiveSet direct;
  std::string reason;  // one line; empty where nobody had to find out
};

/// `mpi`, a transport of host memory, for memory of `device`, along these paths. Nothing blocks the caller on a queued stream.
[[nodiscard]] std::unique_ptr<Transport> make_device_mpi_transport(std::unique_ptr<Transport> mpi, Device device, MpiPaths paths);

/// NCCL on the memory of `device`; the unique id travels over `world`. Error(usage) in a build without NCCL.
[[nodiscard]] std::unique_ptr<Transport> make_nccl_transport(MPI_Comm world, Device device);

}  // namespace scape::detail
