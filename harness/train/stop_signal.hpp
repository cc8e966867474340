// A request to stop, from SIGTERM, SIGUSR1 or SIGINT: the training loop asks after each step, and the ranks agree on it.
#pragma once

namespace scape {

/// While it lives, the signals set a flag instead of ending the process. One at a time.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;
  [[nodiscard]] bool requested() const;
};

}  // namespace scape
