// The transports there are. CMake decides whether make_nccl_transport is NCCL or an error that says why not.
#pragma once

#include <memory>

#include "scape/communicator.hpp"

namespace scape::detail {

/// No communication: the one rank's data is the result.
[[nodiscard]] std::unique_ptr<Transport> make_self_transport();

/// Blocking MPI collectives on host memory, over a duplicate of `world`. MPI counts are 32-bit: messages of more than
/// `most_elements` elements are cut into pieces (tests lower the limit).
[[nodiscard]] std::unique_ptr<Transport> make_mpi_transport(MPI_Comm world, std::int64_t most_elements = std::int64_t{1} << 30);

/// NCCL on the memory of `device`; the unique id travels over `world`. Error(usage) in a build without NCCL.
[[nodiscard]] std::unique_ptr<Transport> make_nccl_transport(MPI_Comm world, Device device);

}  // namespace scape::detail
