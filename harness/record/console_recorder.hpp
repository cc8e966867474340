// Progress for people: one line that is rewritten in place on a terminal; elsewhere (log files, batch jobs) plain lines, at
// most one every few seconds. Time is the recorded time of the steps, so what is printed depends on the records alone.
#pragma once

#include <cstdio>
#include <string>

#include "record/recorder.hpp"

namespace scape {

class ConsoleRecorder final : public Recorder {
 public:
  static constexpr double seconds_between_updates = 0.1;  // terminal
  static constexpr double seconds_between_lines = 10;     // elsewhere

  /// `out` stays the caller's and must outlive the recorder.
  explicit ConsoleRecorder(std::FILE* out = stderr);
  ConsoleRecorder(std::FILE* out, bool terminal);

  void begin(const RunInfo& info) override;
  void step(const StepRecord& record) override;
  void evaluate(const ValidationRecord& record) override;
  void checkpoint(const CheckpointRecord& record) override;
  void end(const RunOutcome& outcome) override;

 private:
  [[nodiscard]] std::string progress() const;
  void show(const std::string& line);

  std::FILE* out_;
  bool terminal_;
  RunInfo info_;
  std::int64_t step_ = 0;
  std::int64_t skipped_ = 0;
  double loss_ = not_available;
  double validation_loss_ = not_available;
  double elapsed_ = 0;          // recorded seconds, evaluations included
  double shown_at_ = 0;         // value of elapsed_ when the last line was shown
  double step_seconds_ = 0;     // smoothed
  double exposed_seconds_ = 0;  // smoothed
};

}  // namespace scape
