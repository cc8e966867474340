// Dense gradient synchronisation.
#include "methods/dense.hpp"

#include <utility>

#include "scape/kernels.hpp"

namespace scape {

void Dense::Options::declare(OptionTable& table) {
  buckets.declare(table);
  table.add("payload", payload, "how gradients travel; sums are in fp32",
            {{"fp32", PayloadType::fp32}, {"bf16", PayloadType::bf16}});
}

Dense::Dense(const Options& options, const CommonOptions&, const MethodContext& context)
    : options_(options),
      size_(context.layout.size()),
      ranks_(context.ranks),
      buckets_(options.buckets, context.layout.size()),
      ready_(context.device),
      done_(context.device) {
  if (options.payload == PayloadType::fp32) return;
  coded_.emplace(QuantFormat{.code = QuantCode::bf16}, size_, context.rank, ranks_, context.device);
  coded_bytes_ = coded_->expected_wire_bytes(size_);
}

void Dense::gradients_ready(const StepContext& context, Range range) {
  if (options_.buckets.overlap == Overlap::bucketed) send(context, buckets_.add(range));
}

void Dense::send(const StepContext& context, Range range) {
  if (range.empty()) return;
  ready_.record(context.stream);
  context.comm_stream.wait(ready_);
  const Telemetry::Scope scope = context.telemetry.scope(Phase::communication, context.stream);
  const Span<float> bucket = context.grads.subspan(range.begin, range.size());
  coded_ ? exchange_codes(context, bucket) : context.comm.all_reduce(bucket, ReduceOp::sum, context.comm_stream);
}

void Dense::exchange_codes(const StepContext& context, Span<float> bucket) {
  const Stream& stream = context.comm_stream;
  const auto compute = [&](auto work) {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, context.stream);
    work();
  };
  compute([&] { coded_->code(bucket, {}, {}, stream); });
  coded_->scatter(context.comm, stream);
  compute([&] { coded_->reduce({}, {}, {}, stream); });
  coded_->gather(context.comm, stream);
  compute([&] { coded_->decode(bucket, stream); });
  coded_bytes_so_far_ += coded_->expected_wire_bytes(bucket.size());
}

bool Dense::reduce(const StepContext& context) {
  for (const Range bucket : buckets_.rest()) send(context, bucket);
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::communication, context.stream);
    done_.record(context.comm_stream);
    context.stream.wait(done_);
  }
  coded_bytes_ = std::exchange(coded_bytes_so_far_, 0);
  const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, context.stream);
  if (ranks_ > 1 && !coded_)
    update_kernels(context.grads.device()).divide(context.grads, static_cast<float>(ranks_), context.stream);
  return true;  // a value that is not finite reaches every rank with the sum; Composed sees it in the norm
}

double Dense::expected_wire_bytes(std::int64_t) const {
  if (coded_) return coded_bytes_;
  return wire_bytes(Collective::all_reduce, static_cast<double>(size_) * sizeof(float), ranks_);
}

}  // namespace scape
