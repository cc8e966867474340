// Making, gathering and forgetting masks.
#include "methods/mask_schedule.hpp"

#include <algorithm>
#include <bit>
#include <exception>

#include "scape/error.hpp"

namespace scape {

Range owned_range(std::int64_t size, int rank, int ranks) {
  const std::int64_t words = mask_words(size);
  const auto boundary = [&](int r) { return std::min(size, words * r / ranks * MaskView::word_bits); };
  return {boundary(rank), boundary(rank + 1)};
}

MaskSchedule::MaskSchedule(const ScapeOptions& options, const CommonOptions& common, const MethodContext& context)
    : options_(options),
      layout_(context.layout),
      device_(context.device),
      total_steps_(context.total_steps),
      ranks_(context.ranks),
      owned_(owned_range(context.layout.size(), context.rank, context.ranks)),
      choice_(options, common, context),
      gather_(options, context, choice_.parts()),
      offsets_(mask_blocks(context.layout.size()), context.device),
      book_(2 + 3 * (options.mask_delay + 2)),
      common_(1, context.device) {
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

MaskSchedule::~MaskSchedule() {
  for (const Slot& slot : slots_) {
    try {
      slot.gathered.synchronize();
    } catch (const std::exception&) {  // whoever waits for the stream learns of it
    }
  }
}

std::vector<std::int64_t> MaskSchedule::counts_by_owner(const Stream& stream) {
  if (first_use(in_use_) != 0 && (options_.mask_scope == MaskScope::global || owners(in_use_) != ranks_)) {
    std::vector<std::uint64_t> words(static_cast<std::size_t>(mask_words(layout_.size())));
    copy(Span<std::uint64_t>(std::span(words)), slots_[in_use_].words, stream);
    stream.synchronize();
    used_counts_.assign(static_cast<std::size_t>(ranks_), 0);
    for (int r = 0; r < ranks_; ++r) {
      const Range owned = owned_range(layout_.size(), r, ranks_);
      const auto part = std::span(words).subspan(static_cast<std::size_t>(owned.begin / MaskView::word_bits),
                                                 static_cast<std::size_t>(mask_words(owned.size())));
      for (const std::uint64_t word : part) used_counts_[static_cast<std::size_t>(r)] += std::popcount(word);
    }
  } else {
    used_counts_ = counts_of_mask(first_use(in_use_));
  }
  return used_counts_;
}

// By owner, for the mask first used in this step; 0: the one with everything on it.
std::vector<std::int64_t> MaskSchedule::counts_of_mask(std::int64_t first_use) const {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks_));
  if (first_use != 0) counts = choice_.counts(options_.density.at(first_use, total_steps_));
  for (int r = 0; r < ranks_; ++r) {
    const Range owned = owned_range(layout_.size(), r, ranks_);
    std::int64_t& count = counts[static_cast<std::size_t>(r)];
    if (first_use == 0) count = owned.size();
    if (first_use != 0)
      for (const Range vector : choice_.parts().vectors) count += intersect(vector, owned).size();
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
  owners(slot) = 0;
}

void MaskSchedule::observe(const StepContext& context, Range range) {
  if (due()) choice_.observe(context, range);
}

void MaskSchedule::make(const StepContext& context, Span<const float> candidate, Span<const float> m) {
  made_now_ = static_cast<std::size_t>(made() % static_cast<std::int64_t>(slots_.size()));
  Slot& slot = slots_[made_now_];
  const double density = options_.density.at(step() + options_.mask_delay, total_steps_);
  first_use(made_now_) = step() + options_.mask_delay;
  count(made_now_) = count_for(density);
  owners(made_now_) = ranks_;
  choice_.choose(context, step(), density, candidate, m, slot.words);
  const Telemetry::Scope scope = context.telemetry.scope(Phase::communication, context.stream);
  gather_.start(context, slot.words, choice_.counts(density));
  slot.gathered.record(context.comm_stream);
}

MaskView MaskSchedule::use(const StepContext& context) {
  in_use_ = slot_for(step());
  refused_ = context.step - step();
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

void MaskSchedule::commit(const StepContext& context) {
  const std::size_t previous = slot_for(step() - 1);
  if (previous != in_use_) clear(previous, context.stream);
  if (made_now_ != none && options_.mask_wait == MaskWait::before_forward) {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::communication, context.stream);
    context.stream.wait(slots_[made_now_].gathered);
  }
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

// Of the mask in use in step t of those applied: made in step t − mask_delay, or in the refresh step before it.
std::int64_t MaskSchedule::first_use_of_mask(std::int64_t t) const {
  const std::int64_t newest = t - options_.mask_delay;
  return newest < 1 ? 0 : newest - (newest - 1) % options_.mask_refresh + options_.mask_delay;
}

std::int64_t MaskSchedule::expected_count(std::int64_t t) const {
  const std::int64_t first = first_use_of_mask(t - refused_);
  return first == 0 ? layout_.size() : count_for(options_.density.at(first, total_steps_));
}

std::vector<std::int64_t> MaskSchedule::expected_counts_by_owner(std::int64_t t) const {
  if (options_.mask_scope == MaskScope::global && !used_counts_.empty()) return used_counts_;
  return counts_of_mask(first_use_of_mask(t - refused_));
}

double MaskSchedule::expected_wire_bytes(std::int64_t t) const {
  t -= refused_;
  if ((t - 1) % options_.mask_refresh != 0) return 0;
  const double density = options_.density.at(t + options_.mask_delay, total_steps_);
  return choice_.expected_wire_bytes() + gather_.expected_wire_bytes(choice_.counts(density));
}

void MaskSchedule::append_state(std::vector<StateEntry>& entries) {
  entries.push_back(state_entry("scape/masks", StateScope::replicated, book_.span()));
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    slots_[slot].gathered.synchronize();
    entries.push_back(state_entry("scape/mask/" + std::to_string(slot), StateScope::replicated, slots_[slot].words.span()));
  }
}

}  // namespace scape
