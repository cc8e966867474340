#include "ranks.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <new>

#include "scape/error.hpp"

namespace scape {

NodeShare::NodeShare() : processors(static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN))) {
  MPI_Comm node = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
  MPI_Comm_size(node, &ranks);
  MPI_Comm_free(&node);
  int any = ranks > processors ? 1 : 0;
  MPI_Allreduce(MPI_IN_PLACE, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  crowded = any != 0;
}

int NodeShare::threads() const {
  return std::max(1, processors / ranks);
}

int on_all_ranks(const std::string& program, const std::function<void()>& work) {
  int rank = 0;
  int ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  int status = 0;
  std::string message;
  try {
    work();
  } catch (const Error& error) {
    status = exit_status(error.kind());
    message = error.what();
  } catch (const std::bad_alloc&) {
    status = exit_status(ErrorKind::input);
    message = "not enough memory; `scape info model NAME` tells what a model and its method take";
  } catch (const std::exception& error) {
    status = exit_status(ErrorKind::internal);
    message = std::string("internal error: ") + error.what();
  }
  struct {
    int rank, status;
  } first{status == 0 ? ranks : rank, status};
  MPI_Allreduce(MPI_IN_PLACE, &first.rank, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (first.rank == ranks) return 0;
  MPI_Bcast(&first.status, 1, MPI_INT, first.rank, MPI_COMM_WORLD);
  if (rank == first.rank) fmt::print(stderr, "{}: {}{}\n", program, rank == 0 ? "" : fmt::format("rank {}: ", rank), message);
  return first.status;
}

}  // namespace scape
