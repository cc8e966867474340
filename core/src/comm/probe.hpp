// Which collectives of the MPI library take memory of a device as it is. Neither the build nor the library's own word settles that
// (a "CUDA-aware" MPI may compute wrong numbers, hang or crash in single collectives), and it may differ between login and compute
// nodes: so every collective is tried at run time, in a process of its own.
#pragma once

#include <chrono>

#include "comm/transports.hpp"

namespace scape::detail {

inline constexpr std::chrono::seconds probe_limit{60};

/// Direct is what gave the right numbers on rank 0's node, by two ranks of the program scape_mpi_probe (probe_main.cpp) on rank 0's
/// device; a collective in which they crash, compute wrongly or are not done within `limit` is not, and the rest is tried without
/// it. Nothing is tried when the library says itself that it does not know CUDA. Never fails: where nothing can be tried nothing is
/// direct, and the reason says why. Collective; the same on all ranks.
///
/// Environment: SCAPE_MPIEXEC names MPI's launcher, SCAPE_MPI_PROBE the program, where they are not where the build knew them.
[[nodiscard]] MpiPaths probe_mpi(MPI_Comm world, Device device, std::chrono::milliseconds limit = probe_limit);

}  // namespace scape::detail
