// Top-k on a shared mask. Formulas in the header.
#include "topk_shared.hpp"

#include "exchange.hpp"
#include "scape/scape.hpp"

namespace scape {

void TopKShared::Options::declare(OptionTable& table) {
  schedule.declare(table);
  table.add("mask_chooser", chooser, "the mask: every rank's top-k united, or each owner's top-k of what it owns",
            {{"union", Chooser::every_rank}, {"owner", Chooser::owner}});
}

TopKShared::TopKShared(const Options& options, const CommonOptions&, const MethodContext& context)
    : options_(options),
      layout_(context.layout),
      rank_(context.rank),
      ranks_(context.ranks),
      total_steps_(context.total_steps),
      mean_(context),
      offsets_(mask_blocks(layout_.size()), context.device),
      count_(1, context.device) {
  const std::int64_t words = mask_words(layout_.size());
  const bool united = options_.chooser == Chooser::every_rank;
  for (int r = 0; r < ranks_; ++r)
    word_counts_.push_back(united ? words : mask_words(owned_range(layout_.size(), r, ranks_).size()));
  gathered_ = Buffer<std::uint64_t>(united ? ranks_ * words : words, context.device);
  if (united) words_ = Buffer<std::uint64_t>(words, context.device);
}

// A rank that has no finite a chooses among zeros: the payload tells the others.
MaskView TopKShared::shared_mask(bool finite, const StepContext& context) {
  const Stream& stream = context.stream;
  const SparseKernels& masks = sparse_kernels(context.grads.device());
  const bool united = options_.chooser == Chooser::every_rank;
  const Range all{0, layout_.size()};
  const Range owned = united ? all : owned_range(layout_.size(), rank_, ranks_);
  const std::int64_t my_words = word_counts_[static_cast<std::size_t>(rank_)];
  const std::int64_t first_word = united ? rank_ * my_words : owned.begin / MaskView::word_bits;
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, stream);
    if (!finite) zero(context.grads, stream);
    const double density = options_.schedule.at(context.step, total_steps_);
    zero(gathered_.span(), stream);
    choose(layout_, owned, density, context.grads, united ? gathered_.span().subspan(first_word, my_words) : gathered_.span(),
           stream);
  }
  exchange(context, [&](const Stream& comm_stream) {
    context.comm.all_gather_v(gathered_.span().subspan(first_word, my_words), gathered_.span(), word_counts_, comm_stream);
  });
  const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, stream);
  Span<std::uint64_t> words = gathered_;
  if (united) {
    words = words_;
    zero(words, stream);
    for (int r = 0; r < ranks_; ++r) masks.unite(words, gathered_.span().subspan(r * my_words, my_words), stream);
  }
  masks.index_mask(words, offsets_, stream);
  masks.count_common(words, words, count_, stream);
  mask_count_ = read(count_.span(), stream);
  return {words, offsets_, layout_.size(), mask_count_};
}

bool TopKShared::reduce(const StepContext& context) {
  bool finite = false;
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, context.stream);
    finite = mean_.accumulate(context);
  }
  return mean_.reduce(shared_mask(finite, context), context);
}

double TopKShared::expected_wire_bytes(std::int64_t step) const {
  std::int64_t count = mask_count_;
  if (options_.chooser == Chooser::owner) {
    count = 0;
    for (int r = 0; r < ranks_; ++r)
      count += chosen_count(layout_, owned_range(layout_.size(), r, ranks_), options_.schedule.at(step, total_steps_));
  }
  const double bitmaps = 8.0 * static_cast<double>(gathered_.size());
  return wire_bytes(Collective::all_gather, bitmaps, ranks_) + SharedMaskMean::wire_bytes(count, ranks_);
}

}  // namespace scape
