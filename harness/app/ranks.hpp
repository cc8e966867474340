// The ranks of a command that is started with an MPI launcher, or alone.
#pragma once

#include <mpi.h>

#include <functional>
#include <string>

namespace scape {

/// How the ranks share the processors of this node. Collective.
struct NodeShare {
  int ranks = 1;
  int processors = 1;
  bool crowded = false;  // some node has more ranks than processors

  NodeShare();
  /// Threads for each rank so that all processors have work and none has two.
  [[nodiscard]] int threads() const;
};

/// Does `work`, which is not collective, on every rank. If it fails on any, the lowest rank that failed says why, in the name of
/// `program`, and the status is the same everywhere.
int on_all_ranks(const std::string& program, const std::function<void()>& work);

}  // namespace scape
