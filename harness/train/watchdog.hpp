// Ends a run that cannot go on, and says why. A thread on every rank watches three things:
//   death    a process of this node that ends without a word is noticed at once (pidfd_open, Linux 5.3 and later)
//   silence  rank 0 hears from every rank every half second, and every rank from rank 0; one that is silent too long, because its
//            node or network is gone or it is suspended, is given up
//   hangs    each rank says how many collectives it has entered and which it has not left; when one waits too long, rank 0 names it
//            and the ranks that have not arrived
// Whoever ends the job tells the others first, and a rank that was itself suspended says so, so that nobody innocent is accused.
// The threads talk over a communicator of their own, so the method's traffic and order of collectives stay what they are.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "scape/communicator.hpp"

namespace scape {

struct WatchdogOptions {
  double silence_seconds = 25;  // 0: no watchdog at all
  double hang_minutes = 10;     // 0: collectives may take any time
};

class Watchdog {
 public:
  struct Watched {
    std::string name;  // "method": whose collectives
    const Communicator* communicator;
  };
  /// Collective. The communicators outlive the watchdog. `give_up` is called once, on a thread of the watchdog, with a line that
  /// says what happened; without it the line goes to stderr and the job ends with exit_status(communication).
  Watchdog(MPI_Comm world, const WatchdogOptions& options, std::vector<Watched> watched,
           std::function<void(const std::string&)> give_up = {});
  /// Stops this rank's thread; without finish() the others will take the rank for dead or silent.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Ends the watch on all ranks in peace. Collective.
  void finish();

 private:
  class Thread;
  std::unique_ptr<Thread> thread_;  // none when there is one rank or the watchdog is off
};

}  // namespace scape
