// Making, gathering and forgetting masks.
#include "methods/mask_schedule.hpp"

#include <algorithm>

#include "scape/error.hpp"

namespace scape {

Range owned_range(std::int64_t size, int rank, int ranks) {
  const std::int64_t words = mask_words(size);
  const auto boundary = [&](int r) { return std::min(size, words * r / ranks * MaskView::word_bits); };
  return {boundary(rank), boundary(rank + 1)};
}

MaskSchedule::MaskSchedule(const ScapeOptions& options, const MethodContext& context)
    : options_(options),
      layout_(context.layout),
      device_(context.device),
      total_steps_(context.total_steps),
      rank_(context.rank),
      ranks_(context.ranks),
      owned_(owned_range(context.layout.size(), context.rank, context.ranks)),
      offsets_(mask_blocks(context.layout.size()), context.device),
      book_(2 + 2 * (options.mask_delay + 2)),
      common_(1, context.device) {
  for (int r = 0; r < ranks_; ++r) word_counts_.push_back(mask_words(owned_range(layout_.size(), r, ranks_).size()));
  for (std::int64_t slot = 0; slot < options.mask_delay + 2; ++slot) {
    slots_.push_back({Buffer<std::uint64_t>(mask_words(layout_.size()), device_), Event(device_)});
    first_use(static_cast<std::size_t>(slot)) = unused;
  }
  const Stream stream = device_.kind == DeviceKind::cpu ? Stream() : Stream(device_);
  sparse_kernels(device_).set_range(slots_[0].words, {0, layout_.size()}, stream);
  stream.synchronize();
  first_use(0) = 0;
  count(0) = layout_.size();
  made() = 1;
}

std::int64_t MaskSchedule::count_for(double density, int owner) const {
  const Range owned = owned_range(layout_.size(), owner, ranks_);
  std::int64_t total = 0;
  for (const ParameterTensor& tensor : layout_.tensors()) {
    const std::int64_t n = intersect(tensor.range, owned).size();
    total += tensor.role == TensorRole::matrix ? kept_count(density, n) : n;
  }
  return total;
}

std::int64_t MaskSchedule::count_for(double density) const {
  std::int64_t total = 0;
  for (int r = 0; r < ranks_; ++r) total += count_for(density, r);
  return total;
}

std::vector<std::int64_t> MaskSchedule::counts_by_owner() {
  const std::int64_t first = first_use(in_use_);  // 0: the mask with everything on it
  std::vector<std::int64_t> counts;
  for (int r = 0; r < ranks_; ++r) {
    counts.push_back(first == 0 ? owned_range(layout_.size(), r, ranks_).size()
                                : count_for(options_.density.at(first, total_steps_), r));
  }
  return counts;
}

// The newest mask whose time has come.
std::size_t MaskSchedule::slot_for(std::int64_t t) {
  std::size_t best = none;
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    const std::int64_t first = first_use(slot);
    if (first != unused && first <= t && (best == none || first > first_use(best))) best = slot;
  }
  require(best != none, ErrorKind::internal, "scape: no mask for this step");
  return best;
}

MaskView MaskSchedule::view(std::size_t slot, const Stream& stream) {
  sparse_kernels(device_).index_mask(slots_[slot].words, offsets_, stream);
  return {slots_[slot].words, offsets_, layout_.size(), count(slot)};
}

void MaskSchedule::clear(std::size_t slot, const Stream& stream) {
  stream.wait(slots_[slot].gathered);  // of a refused step: perhaps still under way
  zero(slots_[slot].words.span(), stream);
  first_use(slot) = unused;
  count(slot) = 0;
}

void MaskSchedule::make(const StepContext& context, Span<const float> score) {
  made_now_ = static_cast<std::size_t>(made() % static_cast<std::int64_t>(slots_.size()));
  Slot& slot = slots_[made_now_];
  const Span<std::uint64_t> words = slot.words;
  const double density = options_.density.at(step() + options_.mask_delay, total_steps_);
  first_use(made_now_) = step() + options_.mask_delay;
  count(made_now_) = count_for(density);
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, context.stream);
    const SparseKernels& kernels = sparse_kernels(device_);
    for (const ParameterTensor& tensor : layout_.tensors()) {
      const Range piece = intersect(tensor.range, owned_);
      if (tensor.role == TensorRole::vector) {
        kernels.set_range(words, piece, context.stream);
      } else if (!piece.empty()) {
        kernels.top_k(score.subspan(piece.begin, piece.size()), kept_count(density, piece.size()), words, piece.begin,
                      context.stream);
      }
    }
  }
  const Telemetry::Scope scope = context.telemetry.scope(Phase::communication, context.stream);
  Event chosen(device_);
  chosen.record(context.stream);
  context.comm_stream.wait(chosen);
  context.comm.all_gather_v(words.subspan(owned_.begin / MaskView::word_bits, word_counts_[static_cast<std::size_t>(rank_)]), words,
                            word_counts_, context.comm_stream);
  slot.gathered.record(context.comm_stream);
}

MaskView MaskSchedule::use(const StepContext& context) {
  in_use_ = slot_for(step());
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::communication, context.stream);
    context.stream.wait(slots_[in_use_].gathered);
  }
  return view(in_use_, context.stream);
}

double MaskSchedule::overlap(const Stream& stream) {
  if (step() == 1) return not_available;
  sparse_kernels(device_).count_common(slots_[in_use_].words, slots_[slot_for(step() - 1)].words, common_, stream);
  return static_cast<double>(read(common_.span(), stream)) / static_cast<double>(count(in_use_));
}

void MaskSchedule::commit(const Stream& stream) {
  const std::size_t previous = slot_for(step() - 1);
  if (previous != in_use_) clear(previous, stream);
  last_ = {slots_[in_use_].words, offsets_, layout_.size(), count(in_use_)};
  if (made_now_ != none) ++made();
  made_now_ = none;
  ++book_.host()[0];
}

void MaskSchedule::refuse(const Stream& stream) {
  if (made_now_ != none) clear(made_now_, stream);
  made_now_ = none;
  if (step() > 1) last_ = view(slot_for(step() - 1), stream);  // this step's index goes with its mask
}

std::int64_t MaskSchedule::expected_count(std::int64_t t) const {
  const std::int64_t newest = t - options_.mask_delay;  // made in this step, or in the refresh step before it
  if (newest < 1) return layout_.size();
  const std::int64_t made_in = newest - (newest - 1) % options_.mask_refresh;
  return count_for(options_.density.at(made_in + options_.mask_delay, total_steps_));
}

double MaskSchedule::expected_wire_bytes(std::int64_t t) const {
  if ((t - 1) % options_.mask_refresh != 0) return 0;
  return wire_bytes(Collective::all_gather, static_cast<double>(mask_words(layout_.size())) * sizeof(std::uint64_t), ranks_);
}

void MaskSchedule::append_state(std::vector<StateEntry>& entries) {
  entries.push_back(state_entry("scape/masks", StateScope::replicated, book_.span()));
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    slots_[slot].gathered.synchronize();
    entries.push_back(state_entry("scape/mask/" + std::to_string(slot), StateScope::replicated, slots_[slot].words.span()));
  }
}

}  // namespace scape
