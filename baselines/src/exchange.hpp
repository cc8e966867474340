// The two things that every sync does the same way: run collectives between the work before and after them, and bring the few
// numbers that decide a step to the host.
#pragma once

#include <vector>

#include "scape/optimizer.hpp"

namespace scape {

/// Calls collectives(stream) with the communication stream, ordered after what the compute stream has queued and before what
/// it queues next. The compute stream's wait counts as exposed communication.
template <class Collectives>
void exchange(const StepContext& context, Collectives collectives) {
  const Telemetry::Scope scope = context.telemetry.scope(Phase::communication, context.stream);
  Event ready(context.stream.device());
  Event done(context.stream.device());
  ready.record(context.stream);
  context.comm_stream.wait(ready);
  collectives(context.comm_stream);
  done.record(context.comm_stream);
  context.stream.wait(done);
}

/// The values as of now in `stream`; blocks the caller.
[[nodiscard]] inline std::vector<double> read_back(Span<const double> values, const Stream& stream) {
  std::vector<double> host(static_cast<std::size_t>(values.size()));
  copy(Span<double>(std::span(host)), values, stream);
  stream.synchronize();
  return host;
}

}  // namespace scape
