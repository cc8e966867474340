// One step of SCAPE in replicated form.
#include "methods/replicated.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>

#include "scape/error.hpp"

namespace scape {

ReplicatedScape::ReplicatedScape(const ScapeOptions& options, const CommonOptions& common, const MethodContext& context)
    : options_(options),
      common_(common),
      ranks_(context.ranks),
      masks_(options, common, context),
      extensions_(options, common, context, {0, context.layout.size()}),
      buckets_(options.buckets, context.layout.size()),
      m_(context.layout.size(), context.device),
      e_(context.layout.size(), context.device, options.offload != Offload::none),
      staging_(context.device, options.offload_piece, offloaded_vectors(options.offload)),
      values_begin_((head() + 15) / 16 * 16),
      payload_(values_begin_ + context.layout.size(), context.device),
      squares_(extensions_.blocks(), context.device),
      candidate_sums_(1, context.device),
      sent_sums_(1, context.device),
      sum_(1, context.device),
      index_stream_(context.device.kind == DeviceKind::cpu ? Stream() : Stream(context.device)),
      indexed_(context.device),
      arrived_(context.device) {
  if (options.payload != PayloadType::fp32) {
    require(options.normaliser == Normaliser::coordinate, ErrorKind::usage,
            "normaliser = block with form = replicated needs payload = fp32: mean squares would be rounded with the values");
    const std::int64_t most = context.layout.size() + 1;
    coded_.emplace(format_of(options.payload), most, context.rank, context.ranks, context.device);
    lost_ = Buffer<float>(most, context.device);
    lost_of_shard_ = Buffer<float>(coded_->longest_shard(), context.device);
  }
  if (options.buckets.overlap == Overlap::none) return;
  require(options.payload == PayloadType::fp32, ErrorKind::usage,
          "overlap = bucketed needs payload = fp32: blocks of codes would depend on the buckets");
  require(options.normaliser == Normaliser::coordinate, ErrorKind::usage,
          "overlap = bucketed needs normaliser = coordinate: a block may lie in several buckets");
  require(options.mask_delay > 0, ErrorKind::usage,
          "overlap = bucketed needs mask_delay of at least 1: with 0 a step's mask is known only after its backward pass");
  require(options.clip == ClipPolicy::recovered, ErrorKind::usage,
          "overlap = bucketed needs clip = recovered: the norm for clip = local is known only after the backward pass");
}

void ReplicatedScape::gradients_ready(const StepContext& context, Range range) {
  if (options_.buckets.overlap == Overlap::none) return;
  if (buckets_.empty()) use_mask(context);
  const Range bucket = buckets_.add(range);
  if (bucket.empty()) return;
  make_candidate(context, bucket);
  send(context, bucket, false);
}

void ReplicatedScape::use_mask(const StepContext& context) {
  mask_ = masks_.use(context);
  indexed_.record(context.stream);
  index_stream_.wait(indexed_);
}

// Coordinates on the mask before j. Reads a piece of the mask, on a stream of its own: the host does not wait for the compute
// stream, which may be far behind it in the backward pass.
std::int64_t ReplicatedScape::place_of(std::int64_t j) const {
  if (j == 0) return 0;
  if (j == mask_.size) return mask_.count;
  const std::int64_t block = j / (MaskView::word_bits * MaskView::block_words);
  const std::int64_t first = block * MaskView::block_words;
  std::array<std::uint64_t, MaskView::block_words> words{};
  const std::int64_t n = std::min(MaskView::block_words, mask_.words.size() - first);
  copy(Span<std::uint64_t>(std::span(words).first(static_cast<std::size_t>(n))), mask_.words.subspan(first, n), index_stream_);
  std::int64_t place = read(mask_.offsets.subspan(block, 1), index_stream_);
  for (std::int64_t w = first; w <= j / MaskView::word_bits; ++w) {
    const std::uint64_t word = words[static_cast<std::size_t>(w - first)];
    const std::int64_t bits = std::min(j - w * MaskView::word_bits, MaskView::word_bits);
    place += std::popcount(bits == MaskView::word_bits ? word : word & ((std::uint64_t{1} << bits) - 1));
  }
  return place;
}

void ReplicatedScape::make_candidate(const StepContext& context, Range range) {
  const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, context.stream);
  if (made_ == candidate_sums_.size()) {
    for (Buffer<double>* sums : {&candidate_sums_, &sent_sums_}) {
      Buffer<double> larger(2 * sums->size(), sums->device());
      copy(larger.span().subspan(0, sums->size()), *sums, context.stream);
      context.stream.synchronize();
      *sums = std::move(larger);
    }
  }
  masks_.observe(context, range);
  make_candidate_in(context, range, m_, residual(Staging::Use::read), staging_, static_cast<float>(common_.beta1),
                    candidate_sums_.span().subspan(made_++, 1));
}

// Packs the part of the payload that lies in `range`, and starts its way; with what lies before the first value if told to.
void ReplicatedScape::send(const StepContext& context, Range range, bool with_head) {
  const std::int64_t first = place_of(range.begin);
  const std::int64_t last = place_of(range.end);
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, context.stream);
    sparse_kernels(m_.device()).pack(range, context.grads.subspan(range.begin, range.size()), mask_, values(), context.stream);
    update_kernels(m_.device())
        .sum_of_squares(values().subspan(first, last - first), sent_sums_.span().subspan(sent_++, 1), context.stream);
  }
  const std::int64_t begin = values_begin_ + first - (with_head ? head() : 0);
  exchange(context, payload_.span().subspan(begin, values_begin_ + last - begin));
}

void ReplicatedScape::exchange(const StepContext& context, Span<float> part) {
  if (part.empty()) return;
  if (coded_) {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, context.stream);
    coded_->code(part, {}, lost_.span().subspan(0, part.size()), context.stream);
  }
  const Telemetry::Scope scope = context.telemetry.scope(Phase::communication, context.stream);
  Event ready(m_.device());
  ready.record(context.stream);
  context.comm_stream.wait(ready);
  if (coded_) {
    const Span<float> lost = lost_of_shard_.span().subspan(0, coded_->shard(part.size()).size());
    coded_->scatter(context.comm, context.comm_stream);
    coded_->reduce({}, {}, lost, context.comm_stream);
    coded_->gather(context.comm, context.comm_stream);
  } else {
    context.comm.all_reduce(part, ReduceOp::sum, context.comm_stream);
  }
}

// What the backward pass has not sent, at most: everything, and the flag.
void ReplicatedScape::send_rest(const StepContext& context) {
  if (buckets_.empty() && options_.mask_delay > 0) use_mask(context);
  const std::vector<Range> rest = buckets_.rest();
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, context.stream);
    extensions_.measure(context.grads, squares_, context.stream);
    extensions_.average(squares_, means(), context.stream);
  }
  for (const Range range : rest) make_candidate(context, range);
  if (options_.mask_delay == 0) {
    if (masks_.due()) masks_.make(context, context.grads, m_);
    use_mask(context);
  }
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, context.stream);
    update_kernels(m_.device()).flag_not_finite(candidate_sums_.span().subspan(0, made_), flag(), context.stream);
  }
  const bool has_first = std::any_of(rest.begin(), rest.end(), [](const Range& range) { return range.begin == 0; });
  if (!has_first) exchange(context, flag());
  for (const Range range : rest) send(context, range, range.begin == 0);
  arrived_.record(context.comm_stream);
}

// Payload ← the mean over the ranks; lost_ ← what returns to this rank's residual.
void ReplicatedScape::receive_coded(const StepContext& context) {
  const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, context.stream);
  const UpdateKernels& update = update_kernels(m_.device());
  const Range shard = coded_->shard(mask_.count + 1);
  coded_->decode(flag_and_values(), context.stream);
  update.add(lost_.span().subspan(shard.begin, shard.size()), lost_of_shard_.span().subspan(0, shard.size()),
             static_cast<float>(ranks_), context.stream);
}

// Σ over the buckets of Σ c² − Σ c² on the mask.
double ReplicatedScape::squares_off_mask(const Stream& stream) {
  const auto count = static_cast<std::size_t>(made_);
  std::vector<double> all(count), sent(count);
  copy(Span<double>(std::span(all)), candidate_sums_.span().subspan(0, made_), stream);
  copy(Span<double>(std::span(sent)), sent_sums_.span().subspan(0, made_), stream);
  stream.synchronize();
  const auto sum = [](const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); };
  return mask_.count == mask_.size ? 0 : std::max(0.0, sum(all) - sum(sent));
}

// θ, m and e ← those after the step. On the mask e gets what was lost [mask_.count], if anything.
void ReplicatedScape::apply(const StepContext& context, const AdamStep& step, Span<const float> lost) {
  const std::array vectors{parameters_of(context, options_.offload, Staging::Use::update), residual(Staging::Use::write)};
  staging_.for_each_part({0, mask_.size}, vectors, context.stream, [&](Range part, Span<float> theta, Span<float> e) {
    const auto of = [&](auto x) { return x.subspan(part.begin, part.size()); };
    extensions_.apply(part, theta, of(m_.span()), e, of(context.grads), values(), mask_, step, masks_.step(), context.stream);
    if (!lost.empty()) sparse_kernels(m_.device()).unpack(part, lost, mask_, e, context.stream);
  });
}

StepResult ReplicatedScape::step(const StepContext& context) {
  const Stream& stream = context.stream;
  const auto beta1 = static_cast<float>(common_.beta1);
  const bool local = options_.clip == ClipPolicy::local;
  const double local_norm = local ? clip_locally(context, common_.clip_norm, sum_) : 0;
  send_rest(context);
  if (masks_.due() && options_.mask_delay > 0) masks_.make(context, context.grads, m_);
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::communication, stream);
    stream.wait(arrived_);
  }

  if (coded_) receive_coded(context);

  const Telemetry::Scope scope = context.telemetry.scope(Phase::update, stream);
  const SparseKernels& sparse = sparse_kernels(m_.device());
  StepResult result;
  sparse.recover_gradient(values(), m_, mask_, coded_ ? 1.0F : static_cast<float>(ranks_), -beta1, beta1, sum_, stream);
  const double norm = std::sqrt(read(sum_.span(), stream));
  const double residual = squares_off_mask(stream);
  made_ = sent_ = 0;
  if (read(flag(), stream) != 0 || !std::isfinite(norm) || !extensions_.finite(means(), stream)) {
    result.applied = false;
    masks_.refuse(stream);
    return result;
  }
  AdamStep step = adams_step(common_, options_.bias_correction, masks_.step(), context.learning_rate);
  step.residual_scale = residual_scale(options_.residual, common_.beta1);
  if (!local) step.gradient_scale = static_cast<float>(clip_coefficient(norm, common_.clip_norm));
  extensions_.follow(means(), stream);
  const bool returns = coded_ && options_.residual != ResidualPolicy::none;
  const Span<float> lost = returns ? lost_.span().subspan(1, mask_.count) : Span<float>();
  apply(context, step, lost);
  double returned = 0;  // Σ of squares of what returns on the mask
  if (returns) {
    update_kernels(m_.device()).sum_of_squares(lost, sum_, stream);
    returned = read(sum_.span(), stream);
  }
  result.gradient_norm = local ? local_norm : norm;
  result.density = static_cast<double>(mask_.count) / static_cast<double>(mask_.size);
  result.residual_norm = std::sqrt(step.residual_scale * step.residual_scale * residual + returned);
  result.mask_overlap = masks_.overlap(stream);
  masks_.commit(context);
  return result;
}

std::vector<StateEntry> ReplicatedScape::state() {
  std::vector<StateEntry> entries{state_entry("scape/m", StateScope::replicated, m_.span()),
                                  state_entry("scape/residual", StateScope::per_rank, e_.span())};
  extensions_.append_state(entries);
  masks_.append_state(entries);
  return entries;
}

double ReplicatedScape::expected_wire_bytes(std::int64_t step) const {
  const std::int64_t values = masks_.expected_count(step) + head();
  const double payload = coded_ ? coded_->expected_wire_bytes(values)
                                : wire_bytes(Collective::all_reduce, static_cast<double>(values) * sizeof(float), ranks_);
  return payload + masks_.expected_wire_bytes(step);
}

}  // namespace scape
