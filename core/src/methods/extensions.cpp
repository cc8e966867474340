// Ages and blocks.
#include "methods/extensions.hpp"

#include <cmath>

#include "scape/error.hpp"

namespace scape {

Extensions::Extensions(const ScapeOptions& options, const CommonOptions& common, const MethodContext& context, Range shard)
    : options_(options), common_(common), ranks_(context.ranks), shard_(shard), squares_(1, context.device) {
  if (options.normaliser == Normaliser::coordinate) {
    for (const ParameterLayout::Run& run : context.layout.runs()) parts_.push_back({run.range, run.role});
  } else {
    require(options.backlog_scaling == BacklogScaling::none, ErrorKind::usage,
            "backlog_scaling needs normaliser = coordinate: with normaliser = block a backlog keeps its size without it");
    std::int64_t blocks = 0;
    for (const ParameterTensor& tensor : context.layout.tensors()) {
      const bool rows = tensor.role == TensorRole::matrix;
      parts_.push_back({tensor.range, tensor.role, rows ? tensor.shape.back() : tensor.range.size(), blocks});
      blocks += parts_.back().blocks();
    }
    v_ = Buffer<float>(blocks, context.device);
  }
  if (options.backlog_scaling == BacklogScaling::none) return;
  const std::vector<std::uint16_t> ones(static_cast<std::size_t>(shard.size()), 1);
  const Stream stream = context.device.kind == DeviceKind::cpu ? Stream() : Stream(context.device);
  ages_ = Buffer<std::uint16_t>(shard.size(), context.device);
  copy(ages_.span(), Span<const std::uint16_t>(std::span(ones)), stream);
  stream.synchronize();
}

void Extensions::measure(Span<const float> gradient, Span<double> squares, const Stream& stream) const {
  if (blocks() == 0) return;
  for (const Part& part : parts_) {
    update_kernels(v_.device())
        .block_squares(gradient.subspan(part.range.begin, part.range.size()), part.block_size,
                       squares.subspan(part.first_block, part.blocks()), stream);
  }
}

void Extensions::average(Span<const double> squares, Span<float> means, const Stream& stream) const {
  if (blocks() == 0) return;
  for (const Part& part : parts_) {
    update_kernels(v_.device())
        .narrow(squares.subspan(part.first_block, part.blocks()), 1 / static_cast<double>(part.block_size),
                means.subspan(part.first_block, part.blocks()), stream);
  }
}

bool Extensions::finite(Span<const float> means, const Stream& stream) const {
  if (blocks() == 0) return true;
  update_kernels(v_.device()).sum_of_squares(means, squares_, stream);
  return std::isfinite(read(squares_.span(), stream));
}

void Extensions::follow(Span<const float> means, const Stream& stream) const {
  if (blocks() == 0) return;
  const UpdateKernels& update = update_kernels(v_.device());
  const double ranks = ranks_;
  update.scale(v_, static_cast<float>(common_.beta2), stream);
  update.add(v_, means, static_cast<float>((1 - common_.beta2) / (ranks * ranks)), stream);
}

void Extensions::apply(Range range, Span<float> theta, Span<float> m, Span<float> e, Span<const float> c, Span<const float> packed,
                       const MaskView& mask, AdamStep step, std::int64_t t, const Stream& stream) const {
  ApplyExtension extension;
  if (ages_.size() > 0) {
    extension = {.ages = ages_,
                 .backlog_cap = static_cast<float>(options_.backlog_cap),
                 .backlog_root = options_.backlog_scaling == BacklogScaling::sqrt};
  }
  if (blocks() > 0) {
    step.epsilon = 1e-12F;
    const bool corrected = options_.bias_correction != BiasCorrection::none;
    step.v_scale = corrected ? static_cast<float>(1 / (1 - std::pow(common_.beta2, static_cast<double>(t)))) : 1;
  }
  for (const Part& part : parts_) {
    const Range mine = intersect({part.range.begin - shard_.begin, part.range.end - shard_.begin}, range);
    if (mine.empty()) continue;
    step.weight_decay = weight_decay_of(part.role, common_);
    if (blocks() > 0) {
      extension.block_v = v_.span().subspan(part.first_block, part.blocks());
      extension.block_size = part.block_size;
      extension.block_begin = part.range.begin - shard_.begin;
    }
    const auto of = [&](auto x) { return x.subspan(mine.begin - range.begin, mine.size()); };
    sparse_kernels(m.device()).apply(mine, of(theta), of(m), of(e), of(c), packed, mask, step, extension, stream);
  }
}

void Extensions::append_state(std::vector<StateEntry>& entries) const {
  const StateScope scope = options_.form == ScapeFormKind::sharded ? StateScope::shard : StateScope::replicated;
  if (options_.backlog_scaling != BacklogScaling::none) entries.push_back(state_entry("scape/ages", scope, ages_.span()));
  if (blocks() > 0) entries.push_back(state_entry("scape/block_v", StateScope::replicated, v_.span()));
}

}  // namespace scape
