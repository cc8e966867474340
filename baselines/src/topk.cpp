// Top-k sparsification with error feedback. Formulas in the header.
//
// A step that any rank must refuse changes nothing: memories are written only after the exchanged data have shown, to every
// rank alike, that they are finite.
#include "topk.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "exchange.hpp"
#include "scape/error.hpp"

namespace scape {

namespace {

// Makes sure that `buffer` holds `size` elements, keeping it when it is large enough.
template <class T>
void reserve(Buffer<T>& buffer, std::int64_t size, Device device, const Stream& stream) {
  if (buffer.size() >= size) return;
  stream.synchronize();  // work on the old memory may still be queued
  buffer = Buffer<T>(size, device);
}

Span<float> as_floats(Span<std::uint32_t> words) {
  return {reinterpret_cast<float*>(words.data()), words.size(), words.device()};
}

}  // namespace

void TopK::Options::declare(OptionTable& table) {
  schedule.declare(table);
  table.add("topk_scope", scope, "top-k within each tensor, or over all of them",
            {{"tensor", Scope::tensor}, {"global", Scope::global}});
  table.add("error_feedback", error_feedback, "keep what was not sent and add it to the next gradient");
  table.add("dense_vectors", dense_vectors, "send norm and bias tensors in full, as SCAPE does");
  table.add("momentum_correction", momentum_correction, "factor of DGC's momentum correction with factor masking; 0 = off",
            {.min = 0, .below = 1});
}

TopK::TopK(const Options& options, const CommonOptions&, const MethodContext& context)
    : options_(options),
      layout_(context.layout),
      rank_(context.rank),
      ranks_(context.ranks),
      total_steps_(context.total_steps),
      update_(update_kernels(context.device)),
      masks_(sparse_kernels(context.device)),
      words_(mask_words(layout_.size()), context.device),
      offsets_(mask_blocks(layout_.size()), context.device) {
  for (const ParameterLayout::Run& run : layout_.runs()) {
    const bool sparse = run.role == TensorRole::matrix || !options_.dense_vectors;
    std::vector<Range>& ranges = sparse ? sparse_ : dense_;
    if (!ranges.empty() && ranges.back().end == run.range.begin) {
      ranges.back().end = run.range.end;
    } else {
      ranges.push_back(run.range);
    }
    if (sparse) sparse_size_ += run.range.size();
  }
  require(options_.scope == Scope::tensor || sparse_.size() <= 1, ErrorKind::usage,
          "topk_scope = global: the layout must list all matrices before the vectors (or set dense_vectors = false)");
  require(options_.momentum_correction == 0 || options_.error_feedback, ErrorKind::usage,
          "momentum_correction needs error_feedback = true");
  squares_ = Buffer<double>(ranks_ + static_cast<std::int64_t>(dense_.size()), context.device);
  if (options_.error_feedback) residual_ = Buffer<float>(layout_.size(), context.device);
  if (options_.momentum_correction > 0) {
    velocity_ = Buffer<float>(layout_.size(), context.device);
    sum_ = Buffer<float>(layout_.size(), context.device);
  }
}

std::int64_t TopK::selected(std::int64_t step) const {
  const double density = options_.schedule.at(step, total_steps_);
  if (options_.scope == Scope::global) return kept_count(density, sparse_size_);
  std::int64_t count = 0;
  for (const ParameterTensor& tensor : layout_.tensors()) {
    if (tensor.role == TensorRole::matrix || !options_.dense_vectors) count += kept_count(density, tensor.range.size());
  }
  return count;
}

bool TopK::reduce(const StepContext& context) {
  const Span<float> a = accumulate(context);
  const MaskView mask = select(a, context);
  stream_ = context.stream;
  density_ = static_cast<double>(mask.count + layout_.size() - sparse_size_) / static_cast<double>(layout_.size());
  return gathers(mask.count) ? gather(a, mask, context) : all_reduce(a, mask, context);
}

// a = g + r, or u + r with u = μ u + g left in the gradients. When it is not finite: infinite in the first coordinate and zero
// elsewhere. Top-k sends the first coordinate then, or it is sent anyway, and so every rank learns of it from the data.
Span<float> TopK::accumulate(const StepContext& context) {
  const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, context.stream);
  Span<float> a = context.grads;
  if (options_.momentum_correction > 0) {
    update_.add(context.grads, velocity_, static_cast<float>(options_.momentum_correction), context.stream);
    a = sum_;
    copy(a, context.grads, context.stream);
  }
  if (options_.error_feedback) update_.add(a, residual_, 1, context.stream);

  const Span<double> squares = squares_.span().subspan(0, 1);
  update_.sum_of_squares(a, squares, context.stream);
  if (!std::isfinite(read(squares, context.stream))) {
    const float infinite = std::numeric_limits<float>::infinity();
    zero(a, context.stream);
    copy(a.subspan(0, 1), Span<const float>(&infinite, 1, cpu_device), context.stream);
    context.stream.synchronize();  // `infinite` has been read
  }
  return a;
}

// S as a mask, and a on it in values_.
MaskView TopK::select(Span<const float> a, const StepContext& context) {
  const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, context.stream);
  const Stream& stream = context.stream;
  const std::int64_t k = selected(context.step);
  const double density = options_.schedule.at(context.step, total_steps_);
  zero(words_.span(), stream);
  if (options_.scope == Scope::global) {
    for (const Range range : sparse_) masks_.top_k(a.subspan(range.begin, range.size()), k, words_, range.begin, stream);
  } else {
    for (const ParameterTensor& tensor : layout_.tensors()) {
      if (tensor.role == TensorRole::vector && options_.dense_vectors) continue;
      const Range range = tensor.range;
      masks_.top_k(a.subspan(range.begin, range.size()), kept_count(density, range.size()), words_, range.begin, stream);
    }
  }
  masks_.index_mask(words_, offsets_, stream);
  const MaskView mask{words_, offsets_, layout_.size(), k};
  reserve(values_, k, context.grads.device(), stream);
  masks_.pack(a, mask, values_.span().subspan(0, k), stream);
  return mask;
}

// Exchange by all-gather of indices and values.
bool TopK::gather(Span<float> a, const MaskView& mask, const StepContext& context) {
  const Stream& stream = context.stream;
  const std::int64_t k = mask.count;
  reserve(messages_, ranks_ * 2 * k, context.grads.device(), stream);
  const auto indices_of = [&](int rank) { return messages_.span().subspan(rank * 2 * k, k); };
  const auto values_of = [&](int rank) { return as_floats(messages_.span().subspan(rank * 2 * k + k, k)); };
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, stream);
    masks_.indices(mask, indices_of(rank_), stream);
    copy(values_of(rank_), values_.span().subspan(0, k), stream);
  }
  exchange(context, [&](const Stream& comm_stream) {
    if (k > 0)
      context.comm.all_gather(messages_.span().subspan(rank_ * 2 * k, 2 * k), messages_.span().subspan(0, ranks_ * 2 * k),
                              comm_stream);
    for (const Range range : dense_) context.comm.all_reduce(a.subspan(range.begin, range.size()), ReduceOp::sum, comm_stream);
  });

  const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, stream);
  for (int rank = 0; rank < ranks_; ++rank) update_.sum_of_squares(values_of(rank), squares_.span().subspan(rank, 1), stream);
  for (std::size_t i = 0; i < dense_.size(); ++i) {
    const Span<double> squares = squares_.span().subspan(ranks_ + static_cast<std::int64_t>(i), 1);
    update_.sum_of_squares(a.subspan(dense_[i].begin, dense_[i].size()), squares, stream);
  }
  // By Cauchy and Schwarz no sum over the ranks exceeds √(N Σ a²): it is finite if that is well within the range of a float.
  double total = 0;
  for (const double squares : read_back(squares_, stream)) total += squares;
  constexpr double largest = std::numeric_limits<float>::max();
  if (!(total < largest * largest / (2.0 * ranks_))) return false;

  commit(a, mask, context);
  for (const Range range : sparse_) zero(context.grads.subspan(range.begin, range.size()), stream);
  for (int rank = 0; rank < ranks_; ++rank) masks_.scatter_add(indices_of(rank), values_of(rank), 1, context.grads, stream);
  for (const Range range : dense_) {
    if (a.data() != context.grads.data())
      copy(context.grads.subspan(range.begin, range.size()), a.subspan(range.begin, range.size()), stream);
  }
  update_.divide(context.grads, static_cast<float>(ranks_), stream);
  return true;
}

// Exchange by all-reduce of a with zeros off S.
bool TopK::all_reduce(Span<const float> a, const MaskView& mask, const StepContext& context) {
  const Stream& stream = context.stream;
  reserve(sent_, layout_.size(), context.grads.device(), stream);
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, stream);
    zero(sent_.span(), stream);
    masks_.unpack(values_.span().subspan(0, mask.count), mask, sent_, stream);
    for (const Range range : dense_)
      copy(sent_.span().subspan(range.begin, range.size()), a.subspan(range.begin, range.size()), stream);
  }
  exchange(context, [&](const Stream& comm_stream) { context.comm.all_reduce(sent_.span(), ReduceOp::sum, comm_stream); });

  const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, stream);
  const Span<double> squares = squares_.span().subspan(0, 1);
  update_.sum_of_squares(sent_, squares, stream);
  if (!std::isfinite(read(squares, stream))) return false;

  commit(a, mask, context);
  copy(context.grads, sent_, stream);
  update_.divide(context.grads, static_cast<float>(ranks_), stream);
  return true;
}

// r ← a and u ← u off S, both 0 on S and in the dense ranges. The values have been sent by now.
void TopK::commit(Span<const float> a, const MaskView& mask, const StepContext& context) {
  zero(values_.span(), context.stream);
  if (options_.error_feedback) remember(residual_, a, mask, context.stream);
  if (options_.momentum_correction > 0) remember(velocity_, context.grads, mask, context.stream);
}

void TopK::remember(Span<float> memory, Span<const float> values, const MaskView& mask, const Stream& stream) {
  for (const Range range : sparse_)
    copy(memory.subspan(range.begin, range.size()), values.subspan(range.begin, range.size()), stream);
  masks_.unpack(values_.span().subspan(0, mask.count), mask, memory, stream);
}

std::vector<StateEntry> TopK::state() {
  std::vector<StateEntry> entries;
  if (options_.error_feedback) entries.push_back(state_entry("topk/residual", StateScope::per_rank, residual_.span()));
  if (options_.momentum_correction > 0) entries.push_back(state_entry("topk/velocity", StateScope::per_rank, velocity_.span()));
  return entries;
}

double TopK::expected_wire_bytes(std::int64_t step) const {
  const std::int64_t k = selected(step);
  const double all = 4.0 * static_cast<double>(layout_.size());
  const double dense = 4.0 * static_cast<double>(layout_.size() - sparse_size_);
  if (!gathers(k)) return wire_bytes(Collective::all_reduce, all, ranks_);
  return wire_bytes(Collective::all_gather, 8.0 * static_cast<double>(ranks_ * k), ranks_) +
         wire_bytes(Collective::all_reduce, dense, ranks_);
}

double TopK::residual_norm() const {
  if (!options_.error_feedback) return not_available;
  const Span<double> squares = squares_.span().subspan(0, 1);
  update_.sum_of_squares(residual_, squares, stream_);
  return std::sqrt(read(squares, stream_));
}

}  // namespace scape
