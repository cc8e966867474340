// OpenMP keeps the number of threads per calling thread, so it is set on the thread that runs the stream's operations.
#include "ops/threads.hpp"

#include <omp.h>

#include "scape/error.hpp"

namespace scape::ops {

void set_threads(int threads, const Stream& stream) {
  require(threads >= 1, ErrorKind::usage, "the number of compute threads must be at least 1");
  stream.enqueue([threads] { omp_set_num_threads(threads); });
}

}  // namespace scape::ops
