// Dense gradient synchronisation.
#include "methods/dense.hpp"

#include "scape/kernels.hpp"

namespace scape {

void Dense::Options::declare(OptionTable& table) {
  table.add("overlap", overlap, "when gradients leave: after the backward pass, or bucket by bucket during it",
            {{"none", Overlap::none}, {"bucketed", Overlap::bucketed}});
  table.add("bucket_megabytes", bucket_megabytes, "size of a bucket [MB] for overlap = bucketed", {.above = 0});
}

Dense::Dense(const Options& options, const CommonOptions&, const MethodContext& context)
    : options_(options), size_(context.layout.size()), ranks_(context.ranks), ready_(context.device), done_(context.device) {}

void Dense::gradients_ready(const StepContext& context, Range range) {
  if (options_.overlap == Overlap::none) return;
  announced_ += range.size();
  const bool adjoins = !bucket_.empty() && (range.end == bucket_.begin || range.begin == bucket_.end);
  if (!adjoins) {
    send(context, bucket_);
    bucket_ = range;
  } else {
    bucket_ = {std::min(bucket_.begin, range.begin), std::max(bucket_.end, range.end)};
  }
  if (static_cast<double>(bucket_.size()) * sizeof(float) >= options_.bucket_megabytes * 1e6) {
    send(context, bucket_);
    bucket_ = {};
  }
}

void Dense::send(const StepContext& context, Range range) {
  if (range.empty()) return;
  ready_.record(context.stream);
  context.comm_stream.wait(ready_);
  const Telemetry::Scope scope = context.telemetry.scope(Phase::communication, context.stream);
  context.comm.all_reduce(context.grads.subspan(range.begin, range.size()), ReduceOp::sum, context.comm_stream);
}

bool Dense::reduce(const StepContext& context) {
  if (announced_ == 0) bucket_ = {0, size_};
  require(announced_ == 0 || announced_ == size_, ErrorKind::internal,
          "dense: the backward pass announced only a part of the gradients");
  send(context, bucket_);
  bucket_ = {};
  announced_ = 0;
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
