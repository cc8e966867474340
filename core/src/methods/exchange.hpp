// Hand-over between the two streams of a step, with exposed communication timed as such.
#pragma once

#include "scape/optimizer.hpp"

namespace scape {

/// Queues collective() on the communication stream behind the compute stream's work; the event says that its result is there.
template <class Collective>
Event communicate(const StepContext& context, Collective collective) {
  const Telemetry::Scope scope = context.telemetry.scope(Phase::communication, context.stream);
  Event ready(context.stream.device());
  ready.record(context.stream);
  context.comm_stream.wait(ready);
  collective();
  Event arrived(context.comm_stream.device());
  arrived.record(context.comm_stream);
  return arrived;
}

/// The compute stream waits for it.
inline void wait(const StepContext& context, const Event& arrived) {
  const Telemetry::Scope scope = context.telemetry.scope(Phase::communication, context.stream);
  context.stream.wait(arrived);
}

}  // namespace scape
