// Masks that serve many steps. Formulas in the header.
#include "radius.hpp"

namespace scape {

void Radius::Options::declare(OptionTable& table) {
  table.add("density", density, "kept fraction d of every tensor between dense steps", {.max = 1, .above = 0});
  table.add("radius_period", period, "steps from one dense step to the next", {.min = 1});
}

Radius::Radius(const Options& options, const CommonOptions&, const MethodContext& context)
    : options_(options),
      layout_(context.layout),
      ranks_(context.ranks),
      mask_count_(chosen_count(layout_, {0, layout_.size()}, options_.density)),
      mean_(context),
      words_(mask_words(layout_.size()), context.device),
      offsets_(mask_blocks(layout_.size()), context.device),
      accepted_(1) {}

bool Radius::reduce(const StepContext& context) {
  const Stream& stream = context.stream;
  const SparseKernels& masks = sparse_kernels(context.grads.device());
  const MaskView mask{words_, offsets_, layout_.size(), mask_count_};
  std::int64_t& accepted = accepted_.host()[0];
  const bool dense = accepted % options_.period == 0;
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, stream);
    static_cast<void>(mean_.accumulate(context));  // the data tell whether all are finite
    if (!dense) masks.index_mask(words_, offsets_, stream);
  }
  if (!(dense ? mean_.reduce_all(context) : mean_.reduce(mask, context))) return false;
  if (dense) {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, stream);
    zero(words_.span(), stream);
    choose(layout_, {0, layout_.size()}, options_.density, context.grads, words_, stream);
  }
  density_ = dense ? 1 : static_cast<double>(mask_count_) / static_cast<double>(layout_.size());
  ++accepted;
  return true;
}

std::vector<StateEntry> Radius::state() {
  return {mean_.state("radius"), state_entry("radius/mask", StateScope::replicated, words_.span()),
          state_entry("radius/steps", StateScope::replicated, accepted_.span())};
}

double Radius::expected_wire_bytes(std::int64_t step) const {
  if ((step - 1) % options_.period != 0) return SharedMaskMean::wire_bytes(mask_count_, ranks_);
  return wire_bytes(Collective::all_reduce, 4.0 * static_cast<double>(layout_.size()), ranks_);
}

}  // namespace scape
