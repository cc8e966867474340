// Reasons to stop a run before its last step. The training loop asks after each step, and the ranks agree on the step.
#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace scape {

/// A stronger reason has a larger value: the one that is told when ranks have different ones.
enum class StopReason {
  none,
  time_limit,      ///< max_minutes
  job_end,         ///< the batch job is about to end
  signal,          ///< SIGTERM, SIGUSR1 or SIGINT
  record_failure,  ///< the run file cannot be written
};

/// "stopped by a signal", for people.
[[nodiscard]] std::string to_string(StopReason reason);

/// While it lives, the signals set a flag instead of ending the process. One at a time.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;
  [[nodiscard]] bool requested() const;
};

/// When to stop by the clock, counted from construction.
class TimeLimit {
 public:
  /// `max_minutes`: 0 is no limit. In a Slurm job the run also stops before the job's time limit (SLURM_JOB_END_TIME, where
  /// Slurm sets it): `job_margin_seconds` before, or a tenth of the job's time if that is less, so that short jobs work, too. 0
  /// leaves the job's limit alone.
  TimeLimit(double max_minutes, double job_margin_seconds);
  [[nodiscard]] StopReason reached() const;
  /// Seconds until the earlier of the two, if there is one.
  [[nodiscard]] std::optional<double> seconds_left() const;

 private:
  using Clock = std::chrono::system_clock;  // the job's end is a time of day
  std::optional<Clock::time_point> limit_;
  std::optional<Clock::time_point> job_end_;
};

}  // namespace scape
