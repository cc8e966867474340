// A program that runs beside this one for a limited time, as a job of its own if it is an MPI launcher.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <csignal>
#include <string>
#include <vector>

namespace scape::detail {

/// Ends with this object at the latest, and all of its process group with it. It is started by posix_spawn, as a process whose
/// memory is registered with the network must not be copied, and in this process's environment less what makes it a rank of its
/// job.
class Process {
 public:
  /// words[0] is looked up in PATH. Throws std::system_error when it cannot be started.
  explicit Process(std::vector<std::string> words);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  /// Until the process has ended, at most for `time`.
  void wait(std::chrono::milliseconds time);
  /// What it has printed so far on its standard output; the rest is dropped after 64 KiB.
  [[nodiscard]] const std::string& output() const { return output_; }
  /// How it ended, in words; empty: well.
  [[nodiscard]] std::string fault() const;

 private:
  bool ended(siginfo_t& how) const;

  pid_t id_ = 0;
  int pipe_ = -1;
  std::string output_;
};

}  // namespace scape::detail
