// Choice by tensor and mean on a shared mask. Formulas in the header.
#include "shared_mask.hpp"

#include <cmath>

#include "exchange.hpp"

namespace scape {

std::int64_t chosen_count(const ParameterLayout& layout, Range range, double density) {
  std::int64_t count = 0;
  for (const ParameterTensor& tensor : layout.tensors()) {
    const std::int64_t n = intersect(tensor.range, range).size();
    count += tensor.role == TensorRole::vector ? n : kept_count(density, n);
  }
  return count;
}

void choose(const ParameterLayout& layout, Range range, double density, Span<const float> a, Span<std::uint64_t> words,
            const Stream& stream) {
  const SparseKernels& masks = sparse_kernels(a.device());
  for (const ParameterTensor& tensor : layout.tensors()) {
    const Range part = intersect(tensor.range, range);
    if (tensor.role == TensorRole::vector) {
      masks.set_range(words, part, stream);
    } else {
      masks.top_k(a.subspan(part.begin, part.size()), kept_count(density, part.size()), words, part.begin, stream);
    }
  }
}

SharedMaskMean::SharedMaskMean(const MethodContext& context)
    : ranks_(context.ranks),
      update_(update_kernels(context.device)),
      masks_(sparse_kernels(context.device)),
      residual_(context.layout.size(), context.device),
      payload_(context.layout.size() + 1, context.device),
      squares_(1, context.device) {}

bool SharedMaskMean::accumulate(const StepContext& context) {
  stream_ = context.stream;
  update_.add(context.grads, residual_, 1, stream_);
  update_.sum_of_squares(context.grads, squares_, stream_);
  return std::isfinite(read(squares_.span(), stream_));
}

bool SharedMaskMean::reduce(const MaskView& mask, const StepContext& context) {
  const Span<float> payload = payload_.span().subspan(0, mask.count + 1);
  const Span<float> values = payload.subspan(0, mask.count);
  const Span<float> flag = payload.subspan(mask.count, 1);
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, stream_);
    masks_.pack(context.grads, mask, values, stream_);
    update_.flag_not_finite(squares_, flag, stream_);
  }
  exchange(context, [&](const Stream& comm_stream) { context.comm.all_reduce(payload, ReduceOp::sum, comm_stream); });

  const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, stream_);
  update_.sum_of_squares(values, squares_, stream_);
  if (read(flag, stream_) > 0 || !std::isfinite(read(squares_.span(), stream_))) return false;
  copy(residual_.span(), context.grads, stream_);
  zero(context.grads, stream_);
  update_.divide(values, static_cast<float>(ranks_), stream_);
  masks_.unpack(values, mask, context.grads, stream_);
  zero(values, stream_);
  masks_.unpack(values, mask, residual_, stream_);
  return true;
}

bool SharedMaskMean::reduce_all(const StepContext& context) {
  exchange(context, [&](const Stream& comm_stream) { context.comm.all_reduce(context.grads, ReduceOp::sum, comm_stream); });
  const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, stream_);
  update_.sum_of_squares(context.grads, squares_, stream_);
  if (!std::isfinite(read(squares_.span(), stream_))) return false;
  zero(residual_.span(), stream_);
  update_.divide(context.grads, static_cast<float>(ranks_), stream_);
  return true;
}

double SharedMaskMean::wire_bytes(std::int64_t mask_count, int ranks) {
  return scape::wire_bytes(Collective::all_reduce, 4.0 * static_cast<double>(mask_count + 1), ranks);
}

double SharedMaskMean::residual_norm() const {
  update_.sum_of_squares(residual_, squares_, stream_);
  return std::sqrt(read(squares_.span(), stream_));
}

}  // namespace scape
