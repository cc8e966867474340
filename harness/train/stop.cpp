// Signal handlers and clocks of a training run.
#include "train/stop.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>

namespace scape {

namespace {

volatile std::sig_atomic_t stop_requested = 0;  // all that a signal handler may write
constexpr std::array signals{SIGTERM, SIGUSR1, SIGINT};
std::array<struct sigaction, signals.size()> previous;

// A whole number from the environment.
std::optional<std::int64_t> number_from(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return std::nullopt;
  std::int64_t number = 0;
  const char* end = text + std::strlen(text);
  const auto [stopped, error] = std::from_chars(text, end, number);
  if (error != std::errc() || stopped != end) return std::nullopt;
  return number;
}

}  // namespace

std::string to_string(StopReason reason) {
  switch (reason) {
    case StopReason::none:
      return "not stopped";
    case StopReason::time_limit:
      return "stopped at max_minutes";
    case StopReason::job_end:
      return "stopped before the job's time limit";
    case StopReason::signal:
      return "stopped by a signal";
    case StopReason::record_failure:
      break;
  }
  return "stopped because the run file could not be written";
}

StopSignal::StopSignal() {
  stop_requested = 0;
  struct sigaction action {};
  action.sa_handler = [](int) { stop_requested = 1; };
  action.sa_flags = SA_RESTART;
  for (std::size_t i = 0; i < signals.size(); ++i) sigaction(signals[i], &action, &previous[i]);
}

StopSignal::~StopSignal() {
  for (std::size_t i = 0; i < signals.size(); ++i) sigaction(signals[i], &previous[i], nullptr);
}

bool StopSignal::requested() const {
  return stop_requested != 0;
}

TimeLimit::TimeLimit(double max_minutes, double job_margin_seconds) {
  const auto now = Clock::now();
  const auto seconds = [](double value) {  // at most a century: clocks count nanoseconds in 64 bits
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::min(value, 3e9)));
  };
  if (max_minutes > 0) limit_ = now + seconds(60 * max_minutes);
  const auto end = number_from("SLURM_JOB_END_TIME");
  if (!end || job_margin_seconds <= 0) return;
  const Clock::time_point ends{std::chrono::seconds(*end)};
  const auto begin = number_from("SLURM_JOB_START_TIME");
  const double length = begin ? static_cast<double>(*end - *begin) : std::chrono::duration<double>(ends - now).count();
  job_end_ = ends - seconds(std::min(job_margin_seconds, length / 10));
}

StopReason TimeLimit::reached() const {
  const auto now = Clock::now();
  if (job_end_ && now >= *job_end_) return StopReason::job_end;
  return limit_ && now >= *limit_ ? StopReason::time_limit : StopReason::none;
}

std::optional<double> TimeLimit::seconds_left() const {
  if (!limit_ && !job_end_) return std::nullopt;
  const auto first = !job_end_ ? *limit_ : !limit_ ? *job_end_ : std::min(*limit_, *job_end_);
  return std::chrono::duration<double>(first - Clock::now()).count();
}

}  // namespace scape
