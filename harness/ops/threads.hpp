// How many threads the operators of one stream use.
#pragma once

#include "scape/stream.hpp"

namespace scape::ops {

/// Operators queued on `stream` from here on use `threads` OpenMP threads. Without this call OMP_NUM_THREADS decides, or the
/// number of processors: far too many when several ranks share a machine. Results repeat bit for bit for a given number.
/// Throws Error(usage) below 1.
void set_threads(int threads, const Stream& stream);

}  // namespace scape::ops
