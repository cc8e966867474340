#include "record/console_recorder.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>

namespace scape {
namespace {

// 75 -> "1:15", 3675 -> "1:01:15"
std::string duration(double seconds) {
  const auto s = static_cast<std::int64_t>(std::llround(seconds));
  if (s < 3600) return fmt::format("{}:{:02}", s / 60, s % 60);
  return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

// 950, 41.2k, 3.05M
std::string short_number(double value) {
  if (value >= 1e6) return fmt::format("{:.3g}M", value / 1e6);
  if (value >= 1e3) return fmt::format("{:.3g}k", value / 1e3);
  return fmt::format("{:.3g}", value);
}

double smoothed(double mean, double value, bool first) {
  return first ? value : 0.9 * mean + 0.1 * value;
}

}  // namespace

ConsoleRecorder::ConsoleRecorder(std::FILE* out) : ConsoleRecorder(out, isatty(fileno(out)) == 1) {}

ConsoleRecorder::ConsoleRecorder(std::FILE* out, bool terminal) : out_(out), terminal_(terminal) {}

void ConsoleRecorder::begin(const RunInfo& info) {
  info_ = info;
  step_ = info.first_step - 1;
  fmt::print(out_, "{}{}{} rank{}{}, {} steps of {} tokens\n", info.name, info.name.empty() ? "" : ": ", info.ranks,
             info.ranks == 1 ? "" : "s", info.oversubscribed ? " (more than cores)" : "", info.planned_steps, info.tokens_per_step);
  std::fflush(out_);
}

void ConsoleRecorder::step(const StepRecord& record) {
  const bool first = step_ < info_.first_step;
  step_ = record.step;
  loss_ = record.loss;
  skipped_ += record.result.applied ? 0 : 1;
  elapsed_ += record.seconds;
  step_seconds_ = smoothed(step_seconds_, record.seconds, first);
  exposed_seconds_ = smoothed(exposed_seconds_, record.phase_seconds[static_cast<std::size_t>(Phase::communication)], first);
  if (first || elapsed_ - shown_at_ >= (terminal_ ? seconds_between_updates : seconds_between_lines)) show(progress());
}

void ConsoleRecorder::evaluate(const ValidationRecord& record) {
  validation_loss_ = record.loss;
  elapsed_ += record.seconds;
}

void ConsoleRecorder::checkpoint(const CheckpointRecord& record) {
  if (!record.error.empty()) {
    fmt::print(out_, "{}warning: no checkpoint of step {}: {}\n", terminal_ ? "\n" : "", record.step, record.error);
  } else {
    show(fmt::format("checkpoint of step {}: {} MB in {:.2f} s, training waited {:.2f} s", record.step,
                     short_number(static_cast<double>(record.bytes) / 1e6), record.seconds, record.waited_seconds));
  }
  std::fflush(out_);
}

void ConsoleRecorder::end(const RunOutcome& outcome) {
  std::string line =
      fmt::format("{}: {} of {} steps in {}", to_string(outcome.status), step_, info_.planned_steps, duration(elapsed_));
  if (step_ >= info_.first_step) line += fmt::format(", loss {:.3f}", loss_);
  if (!std::isnan(validation_loss_)) line += fmt::format(", validation {:.3f}", validation_loss_);
  if (skipped_ > 0) line += fmt::format(", {} skipped", skipped_);
  if (!outcome.message.empty()) line += fmt::format(": {}", outcome.message);
  show(line);
  if (terminal_) fmt::print(out_, "\n");
  std::fflush(out_);
}

std::string ConsoleRecorder::progress() const {
  std::string line = fmt::format("step {}/{}  loss {:.3f}", step_, info_.planned_steps, loss_);
  if (!std::isnan(validation_loss_)) line += fmt::format("  val {:.3f}", validation_loss_);
  if (step_seconds_ > 0) {
    line += fmt::format(
        "  {} tokens/s  exposed comm {:.0f}%  ETA {}", short_number(static_cast<double>(info_.tokens_per_step) / step_seconds_),
        100 * exposed_seconds_ / step_seconds_, duration(static_cast<double>(info_.planned_steps - step_) * step_seconds_));
  }
  if (skipped_ > 0) line += fmt::format("  skipped {}", skipped_);
  return line;
}

void ConsoleRecorder::show(const std::string& line) {
  fmt::print(out_, "{}", terminal_ ? "\r" + line + "\033[K" : line + "\n");
  std::fflush(out_);
  shown_at_ = elapsed_;
}

}  // namespace scape
