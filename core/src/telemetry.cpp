// Phase times, from pairs of events on the stream that does the work.
#include "scape/telemetry.hpp"

namespace scape {

const char* to_string(Phase phase) {
  switch (phase) {
    case Phase::data:
      return "data";
    case Phase::forward_backward:
      return "forward_backward";
    case Phase::compress:
      return "compress";
    case Phase::communication:
      return "communication";
    case Phase::update:
      return "update";
  }
  return "";
}

Telemetry::Scope::Scope(Telemetry& telemetry, Phase phase, const Stream& stream)
    : telemetry_(telemetry), phase_(phase), stream_(stream), begin_(stream.device()) {
  telemetry_.open_.push_back(phase_);
  begin_.record(stream_);
}

Telemetry::Scope::~Scope() {
  Event end(stream_.device());
  end.record(stream_);
  telemetry_.open_.pop_back();
  const auto outer = telemetry_.open_.empty() ? std::nullopt : std::optional(telemetry_.open_.back());
  telemetry_.intervals_.push_back({phase_, outer, std::move(begin_), std::move(end)});
}

Telemetry::Seconds Telemetry::take() {
  Seconds seconds{};
  for (const Interval& interval : intervals_) {
    interval.end.synchronize();
    const double elapsed = seconds_between(interval.begin, interval.end);
    seconds[static_cast<std::size_t>(interval.phase)] += elapsed;
    if (interval.outer) seconds[static_cast<std::size_t>(*interval.outer)] -= elapsed;
  }
  intervals_.clear();
  return seconds;
}

}  // namespace scape
