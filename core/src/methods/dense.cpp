// Dense gradient synchronisation.
#include "methods/dense.hpp"

#include "scape/kernels.hpp"

namespace scape {

Dense::Dense(const Options& options, const CommonOptions&, const MethodContext& context)
    : options_(options),
      size_(context.layout.size()),
      ranks_(context.ranks),
      buckets_(options, context.layout.size()),
      ready_(context.device),
      done_(context.device) {}

void Dense::gradients_ready(const StepContext& context, Range range) {
  if (options_.overlap == Overlap::bucketed) send(context, buckets_.add(range));
}

void Dense::send(const StepContext& context, Range range) {
  if (range.empty()) return;
  ready_.record(context.stream);
  context.comm_stream.wait(ready_);
  const Telemetry::Scope scope = context.telemetry.scope(Phase::communication, context.stream);
  context.comm.all_reduce(context.grads.subspan(range.begin, range.size()), ReduceOp::sum, context.comm_stream);
}

bool Dense::reduce(const StepContext& context) {
  for (const Range bucket : buckets_.rest()) send(context, bucket);
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::communication, context.stream);
    done_.record(context.comm_stream);
    context.stream.wait(done_);
  }
  const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, context.stream);
  if (ranks_ > 1) update_kernels(context.grads.device()).divide(context.grads, static_cast<float>(ranks_), context.stream);
  return true;  // a value that is not finite reaches every rank with the sum; Composed sees it in the norm
}

double Dense::expected_wire_bytes(std::int64_t) const {
  return wire_bytes(Collective::all_reduce, static_cast<double>(size_) * sizeof(float), ranks_);
}

}  // namespace scape
