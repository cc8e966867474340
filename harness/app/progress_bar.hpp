// How far a long task is: on a terminal one line that changes, else a line every half minute.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace scape {

class ProgressBar {
 public:
  /// Speed is told in `unit`, each of which is `size` pieces of work.
  explicit ProgressBar(std::string unit = "MB/s", double size = 1e6);
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar();

  /// `work`: pieces that the speed counts; it may be more than `done` of `total`, where those are packed.
  void show(std::int64_t done, std::int64_t total, std::int64_t work);

 private:
  using Clock = std::chrono::steady_clock;
  std::string unit_;
  double size_;
  bool terminal_;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point last_ = begin_;
  bool shown_ = false;
};

}  // namespace scape
