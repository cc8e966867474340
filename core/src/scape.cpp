// SCAPE, replicated form. Formulas are in the header; here is the order of work:
//
//   compute stream         c, pack │ top-k of |c| for a later step │ wait payload │ recover ĝ, AdamS, new residual
//   communication stream           └ all-reduce of the payload ┘└ all-gather of the new mask … (next step) ┘
//
// Nothing of the state changes before the payload has arrived and says that every rank's gradient was finite: c lives in the
// gradient buffer until then, so a refused step leaves θ, m, e and the masks as they were.
#include "scape/scape.hpp"

#include <algorithm>
#include <cmath>

#include "scape/error.hpp"

namespace scape {

Range owned_range(std::int64_t size, int rank, int ranks) {
  const std::int64_t words = mask_words(size);
  const auto boundary = [&](int r) { return std::min(size, words * r / ranks * MaskView::word_bits); };
  return {boundary(rank), boundary(rank + 1)};
}

void Scape::Options::declare(OptionTable& table) {
  density.declare(table);
  table.add("mask_delay", mask_delay, "steps between making a mask and using it; 0 waits for the mask at once",
            {.min = 0, .max = 64});
  table.add("mask_refresh", mask_refresh, "steps between new masks", {.min = 1});
  declare_bias_correction(table, bias_correction);
}

Scape::Scape(const Options& options, const CommonOptions& common, const MethodContext& context)
    : options_(options),
      common_(common),
      layout_(context.layout),
      total_steps_(context.total_steps),
      rank_(context.rank),
      ranks_(context.ranks),
      owned_(owned_range(context.layout.size(), context.rank, context.ranks)),
      m_(context.layout.size(), context.device),
      e_(context.layout.size(), context.device),
      packed_(context.layout.size() + 1, context.device),
      offsets_(mask_blocks(context.layout.size()), context.device),
      book_(2 + 2 * (options.mask_delay + 2)),
      sums_(2, context.device),
      common_count_(1, context.device) {
  for (int r = 0; r < ranks_; ++r) word_counts_.push_back(mask_words(owned_range(layout_.size(), r, ranks_).size()));
  for (std::int64_t slot = 0; slot < options.mask_delay + 2; ++slot) {
    masks_.push_back({Buffer<std::uint64_t>(mask_words(layout_.size()), context.device), Event(context.device)});
    first_use(static_cast<std::size_t>(slot)) = unused;
  }
  // Until the first mask arrives, everything is sent.
  const Stream stream = context.device.kind == DeviceKind::cpu ? Stream() : Stream(context.device);
  sparse_kernels(context.device).set_range(masks_[0].words, {0, layout_.size()}, stream);
  stream.synchronize();
  first_use(0) = 0;
  count(0) = layout_.size();
  masks_made() = 1;
}

std::int64_t Scape::mask_count(double density) const {
  std::int64_t total = 0;
  for (int r = 0; r < ranks_; ++r) {
    const Range owned = owned_range(layout_.size(), r, ranks_);
    for (const ParameterTensor& tensor : layout_.tensors()) {
      const std::int64_t n = intersect(tensor.range, owned).size();
      total += tensor.role == TensorRole::matrix ? kept_count(density, n) : n;
    }
  }
  return total;
}

// The newest mask whose time has come.
std::size_t Scape::slot_in_use(std::int64_t t) {
  std::size_t best = masks_.size();
  for (std::size_t slot = 0; slot < masks_.size(); ++slot) {
    const std::int64_t first = first_use(slot);
    if (first != unused && first <= t && (best == masks_.size() || first > first_use(best))) best = slot;
  }
  require(best < masks_.size(), ErrorKind::internal, "scape: no mask for this step");
  return best;
}

MaskView Scape::view(std::size_t slot, const Stream& stream) {
  sparse_kernels(m_.device()).index_mask(masks_[slot].words, offsets_, stream);
  return {masks_[slot].words, offsets_, layout_.size(), count(slot)};
}

// Chooses this rank's part of the mask for step t + mask_delay from c, which is in context.grads.
std::size_t Scape::start_next_mask(const StepContext& context, std::int64_t t) {
  const auto slot = static_cast<std::size_t>(masks_made() % static_cast<std::int64_t>(masks_.size()));
  const double density = options_.density.at(t + options_.mask_delay, total_steps_);
  const Span<std::uint64_t> words = masks_[slot].words;
  const SparseKernels& kernels = sparse_kernels(m_.device());
  for (const ParameterTensor& tensor : layout_.tensors()) {
    const Range piece = intersect(tensor.range, owned_);
    if (tensor.role == TensorRole::vector) {
      kernels.set_range(words, piece, context.stream);
    } else if (!piece.empty()) {
      kernels.top_k(context.grads.subspan(piece.begin, piece.size()), kept_count(density, piece.size()), words, piece.begin,
                    context.stream);
    }
  }
  first_use(slot) = t + options_.mask_delay;
  count(slot) = mask_count(density);
  return slot;
}

void Scape::gather_next_mask(const StepContext& context, std::size_t slot) {
  const Telemetry::Scope scope = context.telemetry.scope(Phase::communication, context.stream);
  const Span<std::uint64_t> words = masks_[slot].words;
  const auto me = static_cast<std::size_t>(rank_);
  Event chosen(m_.device());
  chosen.record(context.stream);
  context.comm_stream.wait(chosen);
  context.comm.all_gather_v(words.subspan(owned_.begin / MaskView::word_bits, word_counts_[me]), words, word_counts_,
                            context.comm_stream);
  masks_[slot].gathered.record(context.comm_stream);
}

void Scape::clear(std::size_t slot, const Stream& stream) {
  stream.wait(masks_[slot].gathered);  // of a refused step: perhaps still under way
  zero(masks_[slot].words.span(), stream);
  first_use(slot) = unused;
  count(slot) = 0;
}

StepResult Scape::step(const StepContext& context) {
  const UpdateKernels& update = update_kernels(m_.device());
  const SparseKernels& sparse = sparse_kernels(m_.device());
  const Stream& stream = context.stream;
  const std::int64_t t = applied_steps() + 1;
  const auto beta1 = static_cast<float>(common_.beta1);
  const bool refresh = (t - 1) % options_.mask_refresh == 0;
  const std::size_t previous_slot = slot_in_use(t - 1);
  std::size_t next_slot = masks_.size();  // none made in this step

  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, stream);
    sparse.candidate(context.grads, m_, e_, beta1, sums_.span().subspan(0, 1), stream);
  }
  if (refresh && options_.mask_delay == 0) {
    {
      const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, stream);
      next_slot = start_next_mask(context, t);
    }
    gather_next_mask(context, next_slot);
  }

  const std::size_t slot = slot_in_use(t);
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::communication, stream);
    stream.wait(masks_[slot].gathered);
  }
  const MaskView mask = view(slot, stream);
  const Span<float> payload = packed_.span().subspan(0, mask.count + 1);
  const Span<float> packed = payload.subspan(0, mask.count);
  const Span<float> refusals = payload.subspan(mask.count, 1);
  double sent = 0;  // Σ of c² on the mask
  double total = 0;
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, stream);
    sparse.pack(context.grads, mask, packed, stream);
    update.flag_not_finite(sums_.span().subspan(0, 1), refusals, stream);
    update.sum_of_squares(packed, sums_.span().subspan(1, 1), stream);
    total = read(sums_.span().subspan(0, 1), stream);
    sent = read(sums_.span().subspan(1, 1), stream);
  }
  Event arrived(m_.device());
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::communication, stream);
    Event ready(m_.device());
    ready.record(stream);
    context.comm_stream.wait(ready);
    context.comm.all_reduce(payload, ReduceOp::sum, context.comm_stream);
    arrived.record(context.comm_stream);
  }
  if (refresh && options_.mask_delay > 0) {
    {
      const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, stream);
      next_slot = start_next_mask(context, t);
    }
    gather_next_mask(context, next_slot);
  }
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::communication, stream);
    stream.wait(arrived);
  }

  const Telemetry::Scope scope = context.telemetry.scope(Phase::update, stream);
  StepResult result;
  sparse.recover_gradient(packed, m_, mask, static_cast<float>(ranks_), beta1, sums_.span().subspan(0, 1), stream);
  const double norm = std::sqrt(read(sums_.span().subspan(0, 1), stream));
  if (read(refusals, stream) > 0 || !std::isfinite(norm)) {
    result.applied = false;
    if (next_slot < masks_.size()) clear(next_slot, stream);
    if (t > 1) last_mask_ = view(previous_slot, stream);  // this step's index goes with its mask
    return result;
  }

  AdamStep step = adams_step(common_, options_.bias_correction, t, context.learning_rate);
  step.gradient_scale = static_cast<float>(clip_coefficient(norm, common_.clip_norm));
  for (const ParameterLayout::Run& run : layout_.runs()) {
    step.weight_decay = weight_decay_of(run.role, common_);
    sparse.apply(run.range, context.params, m_, e_, context.grads, packed, mask, step, stream);
  }
  result.gradient_norm = norm;
  result.density = static_cast<double>(mask.count) / static_cast<double>(mask.size);
  result.residual_norm = mask.count == mask.size ? 0 : std::sqrt(std::max(0.0, total - sent));
  if (t > 1) {
    sparse.count_common(mask.words, masks_[previous_slot].words, common_count_, stream);
    result.mask_overlap = static_cast<double>(read(common_count_.span(), stream)) / static_cast<double>(mask.count);
  }
  if (previous_slot != slot) clear(previous_slot, stream);
  applied_steps() = t;
  if (next_slot < masks_.size()) ++masks_made();
  last_mask_ = mask;
  return result;
}

std::vector<StateEntry> Scape::state() {
  std::vector<StateEntry> entries{state_entry("scape/m", StateScope::replicated, m_.span()),
                                  state_entry("scape/residual", StateScope::per_rank, e_.span()),
                                  state_entry("scape/masks", StateScope::replicated, book_.span())};
  for (std::size_t slot = 0; slot < masks_.size(); ++slot) {
    masks_[slot].gathered.synchronize();
    entries.push_back(state_entry("scape/mask/" + std::to_string(slot), StateScope::replicated, masks_[slot].words.span()));
  }
  return entries;
}

MaskView Scape::mask() const {
  return last_mask_;
}

double Scape::expected_wire_bytes(std::int64_t step) const {
  // The mask in use was made in the last refresh step at or before step − mask_delay, for its first step of use.
  const std::int64_t made_by = step - options_.mask_delay;
  const std::int64_t made = made_by < 1 ? 0 : made_by - (made_by - 1) % options_.mask_refresh;
  const std::int64_t values = made < 1 ? layout_.size() : mask_count(options_.density.at(made + options_.mask_delay, total_steps_));
  double bytes = wire_bytes(Collective::all_reduce, static_cast<double>(values + 1) * sizeof(float), ranks_);
  if ((step - 1) % options_.mask_refresh == 0) {
    bytes += wire_bytes(Collective::all_gather, static_cast<double>(mask_words(layout_.size())) * sizeof(std::uint64_t), ranks_);
  }
  return bytes;
}

}  // namespace scape
