// Stands in for NCCL in a build without it.
#include "comm/transports.hpp"
#include "scape/error.hpp"

namespace scape::detail {

std::unique_ptr<Transport> make_nccl_transport(MPI_Comm, Device) {
  throw Error(ErrorKind::usage, "communicator 'nccl': this build has no NCCL (configure with -DSCAPE_CUDA=ON -DSCAPE_NCCL=ON)");
}

}  // namespace scape::detail
