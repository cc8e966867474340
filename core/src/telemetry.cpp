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
  begin_.record(stream_);
}

Telemetry::Scope::~Scope() {
  Event end(stream_.device());
  end.record(stream_);
  telemetry_.intervals_.push_back({phase_, std::move(begin_), std::move(end)});
}

Telemetry::Seconds Telemetry::take() {
  Seconds seconds{};
  for (const Interval& interval : intervals_) {
    interval.end.synchronize();
    seconds[static_cast<std::size_t>(interval.phase)] += seconds_between(interval.begin, interval.end);
  }
  intervals_.clear();
  return seconds;
}

}  // namespace scape
