#include "record/recorder.hpp"

#include <exception>

namespace scape {

void TeeRecorder::begin(const RunInfo& info) {
  for (const auto& recorder : recorders_) recorder->begin(info);
}

void TeeRecorder::step(const StepRecord& record) {
  for (const auto& recorder : recorders_) recorder->step(record);
}

void TeeRecorder::evaluate(const ValidationRecord& record) {
  for (const auto& recorder : recorders_) recorder->evaluate(record);
}

void TeeRecorder::diagnose(const DiagnosticsRecord& record) {
  for (const auto& recorder : recorders_) recorder->diagnose(record);
}

void TeeRecorder::checkpoint(const CheckpointRecord& record) {
  for (const auto& recorder : recorders_) recorder->checkpoint(record);
}

void TeeRecorder::flush() {
  for (const auto& recorder : recorders_) recorder->flush();
}

void TeeRecorder::end(const RunOutcome& outcome) {
  std::exception_ptr first;
  for (const auto& recorder : recorders_) {
    try {
      recorder->end(outcome);
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

std::string to_string(RunStatus status) {
  switch (status) {
    case RunStatus::complete:
      return "complete";
    case RunStatus::stopped:
      return "stopped";
    case RunStatus::failed:
      break;
  }
  return "failed";
}

}  // namespace scape
