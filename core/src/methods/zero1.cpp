// Dense training with sharded moments.
#include "methods/zero1.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "methods/exchange.hpp"
#include "methods/rules.hpp"
#include "scape/error.hpp"

namespace scape {

namespace {

std::optional<QuantFormat> format_of(Zero1::Payload payload) {
  switch (payload) {
    case Zero1::Payload::fp32:
      return {};
    case Zero1::Payload::bf16:
      return QuantFormat{.code = QuantCode::bf16};
    case Zero1::Payload::int8:
      return QuantFormat{.bits = 8};
    case Zero1::Payload::int4:
      return QuantFormat{.bits = 4};
  }
  return {};
}

std::int64_t sum_of(const std::vector<std::int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

}  // namespace

void Zero1::Options::declare(OptionTable& table) {
  table.add("rule", rule, "update rule of the owner", {{"adamw", Rule::adamw}, {"adams", Rule::adams}});
  declare_bias_correction(table, bias_correction);
  buckets.declare(table);
  const std::vector<std::pair<std::string, Payload>> payloads{
      {"fp32", Payload::fp32}, {"bf16", Payload::bf16}, {"int8", Payload::int8}, {"int4", Payload::int4}};
  table.add("payload", payload, "how gradients travel to their owners; sums are in fp32", payloads);
  table.add("parameter_payload", parameter_payload, "how parameters travel from their owners, who keep them in fp32", payloads);
  table.add("parameter_coding", parameter_coding,
            "what parameter_payload codes: parameters, or how far they are from those last sent",
            {{"values", Coded::values}, {"differences", Coded::differences}});
}

Zero1::Zero1(const Options& options, const CommonOptions& common, const MethodContext& context)
    : options_(options),
      common_(common),
      layout_(context.layout),
      rank_(context.rank),
      ranks_(context.ranks),
      shard_(owned(context.rank)),
      buckets_(options.buckets, context.layout.size()),
      parameter_format_(format_of(options.parameter_payload)),
      mean_(shard_.size(), context.device),
      m_(shard_.size(), context.device),
      v_(options.rule == Rule::adamw ? shard_.size() : 0, context.device),
      sum_(1, context.device),
      steps_(1) {
  require(options.rule == Rule::adams || options.bias_correction == BiasCorrection::scape, ErrorKind::usage,
          "bias_correction is a choice of rule = adams; rule = adamw has but one");
  require(parameter_format_ || options.parameter_coding == Coded::values, ErrorKind::usage,
          "parameter_coding = differences needs parameter_payload = bf16, int8 or int4: with fp32 parameters travel as they are");
  require(options.buckets.overlap == Overlap::none || options.payload == Payload::fp32 || options.payload == Payload::bf16,
          ErrorKind::usage, "overlap = bucketed needs payload = fp32 or bf16: blocks of integers would depend on the buckets");
  for (int r = 0; r < ranks_; ++r) counts_.push_back(owned(r).size());
  if (const auto format = format_of(options.payload)) {
    coded_.emplace(*format, layout_.size(), shard_.size(), rank_, ranks_, context.device);
    sent_bytes_ = coded_->expected_wire_bytes(counts_);
  }
  if (!parameter_format_) return;
  for (const std::int64_t count : counts_) parameter_bytes_.push_back(quant_bytes(count, *parameter_format_));
  parameters_ = Buffer<std::uint8_t>(sum_of(parameter_bytes_), context.device);
  master_ = Buffer<float>(shard_.size(), context.device);
}

void Zero1::gradients_ready(const StepContext& context, Range range) {
  if (options_.buckets.overlap == Overlap::bucketed) send(context, buckets_.add(range));
}

// Each rank's part of the range to that rank. Coded on the communication stream, where buckets take turns with the buffers.
void Zero1::send(const StepContext& context, Range range) {
  if (range.empty()) return;
  std::vector<std::int64_t> counts;
  for (int r = 0; r < ranks_; ++r) counts.push_back(intersect(range, owned(r)).size());
  const Range part = intersect(range, shard_);
  const Span<float> mine = part.empty() ? Span<float>() : mean_.span().subspan(part.begin - shard_.begin, part.size());
  const Span<const float> gradients = context.grads.subspan(range.begin, range.size());
  const Stream& stream = context.comm_stream;
  static_cast<void>(communicate(context, [&] {
    if (!coded_) return context.comm.reduce_scatter_v<float>(gradients, mine, counts, ReduceOp::sum, stream);
    coded_->code(gradients, counts, {}, {}, stream);
    coded_->scatter(context.comm, stream);
    coded_->mean(mine, stream);
    sending_bytes_ += coded_->expected_wire_bytes(counts);
  }));
}

void Zero1::update_shard(const StepContext& context, double norm) {
  const UpdateKernels& kernels = update_kernels(m_.device());
  const std::int64_t t = ++steps_.host()[0];
  const bool adamw = options_.rule == Rule::adamw;
  AdamStep step = adamw ? adamw_step(common_, t, context.learning_rate)
                        : adams_step(common_, options_.bias_correction, t, context.learning_rate);
  step.gradient_scale = static_cast<float>(clip_coefficient(norm, common_.clip_norm));
  for (const ParameterLayout::Run& run : layout_.runs()) {
    const Range part = intersect(run.range, shard_);
    if (part.empty()) continue;
    step.weight_decay = weight_decay_of(run.role, common_);
    const auto mine = [&](const Buffer<float>& values) { return values.span().subspan(part.begin - shard_.begin, part.size()); };
    const Span<float> theta = parameter_format_ ? mine(master_) : context.params.subspan(part.begin, part.size());
    if (adamw) {
      kernels.adamw(theta, mine(m_), mine(v_), mine(mean_), step, context.stream);
    } else {
      kernels.adams(theta, mine(m_), mine(mean_), step, context.stream);
    }
  }
}

void Zero1::gather_parameters(const StepContext& context) {
  if (parameter_format_) return gather_codes(context);
  wait(context, communicate(context, [&] {
         context.comm.all_gather_v<float>(context.params.subspan(shard_.begin, shard_.size()), context.params, counts_,
                                          context.comm_stream);
       }));
}

// Every rank, the owner too, reads what was sent.
void Zero1::gather_codes(const StepContext& context) {
  const QuantKernels& quant = quant_kernels(mean_.device());
  const Stream& stream = context.stream;
  const QuantFormat& format = *parameter_format_;
  const bool differences = options_.parameter_coding == Coded::differences;
  const auto codes_of = [&](int r) {
    const auto bytes = parameter_bytes_.begin() + r;
    return parameters_.span().subspan(std::accumulate(parameter_bytes_.begin(), bytes, std::int64_t{0}), *bytes);
  };
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, stream);
    copy(mean_.span(), master_, stream);
    if (differences) update_kernels(mean_.device()).add(mean_, context.params.subspan(shard_.begin, shard_.size()), -1, stream);
    quant.quantize(mean_, format, {}, codes_of(rank_), {}, stream);
  }
  wait(context, communicate(context, [&] {
         context.comm.all_gather_v(codes_of(rank_), parameters_.span(), parameter_bytes_, context.comm_stream);
       }));
  const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, stream);
  for (int r = 0; r < ranks_; ++r) {
    const Span<float> theta = context.params.subspan(owned(r).begin, owned(r).size());
    differences ? quant.dequantize_add(codes_of(r), format, theta, stream) : quant.dequantize(codes_of(r), format, theta, stream);
  }
}

StepResult Zero1::step(const StepContext& context) {
  const UpdateKernels& kernels = update_kernels(m_.device());
  const Stream& stream = context.stream;
  for (const Range bucket : buckets_.rest()) send(context, bucket);
  sent_bytes_ = std::exchange(sending_bytes_, 0);
  Event arrived(m_.device());
  arrived.record(context.comm_stream);
  wait(context, arrived);
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::update, stream);
    if (!coded_) kernels.divide(mean_, static_cast<float>(ranks_), stream);
    kernels.sum_of_squares(mean_, sum_, stream);
  }
  wait(context, communicate(context, [&] { context.comm.all_reduce(sum_.span(), ReduceOp::sum, context.comm_stream); }));
  StepResult result;
  const double norm = std::sqrt(read(sum_.span(), stream));
  result.applied = std::isfinite(norm);  // a value that is not finite reaches its owner with the sum, and every rank with the norm
  if (!result.applied) return result;
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::update, stream);
    if (parameter_format_ && steps_.host()[0] == 0)
      copy(master_.span(), context.params.subspan(shard_.begin, shard_.size()), stream);
    update_shard(context, norm);
  }
  gather_parameters(context);
  result.gradient_norm = norm;
  result.density = 1;
  return result;
}

std::vector<StateEntry> Zero1::state() {
  std::vector<StateEntry> entries{state_entry("zero1/m", StateScope::shard, m_.span()),
                                  state_entry("zero1/steps", StateScope::replicated, steps_.span())};
  if (parameter_format_) entries.push_back(state_entry("zero1/master", StateScope::shard, master_.span()));
  if (options_.rule == Rule::adamw) entries.push_back(state_entry("zero1/v", StateScope::shard, v_.span()));
  return entries;
}

double Zero1::expected_wire_bytes(std::int64_t) const {
  const double floats = static_cast<double>(layout_.size()) * sizeof(float);
  const double parameters = parameter_format_ ? static_cast<double>(sum_of(parameter_bytes_)) : floats;
  return (coded_ ? sent_bytes_ : wire_bytes(Collective::reduce_scatter, floats, ranks_)) +
         wire_bytes(Collective::all_gather, parameters, ranks_) + wire_bytes(Collective::all_reduce, sizeof(double), ranks_);
}

}  // namespace scape
