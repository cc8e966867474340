// Owners, statistics and scopes of masks.
#include "methods/mask_choice.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>

#include "scape/error.hpp"
#include "scape/rng.hpp"

namespace scape {

namespace {

// A threshold is searched byte by byte, from the first byte of the magnitude on.
constexpr std::array digit_shifts{24, 16, 8, 0};
constexpr std::uint32_t largest_digit = 255;
using Histogram = std::span<std::int64_t>;  // [largest_digit + 1]

// The bits of |x|, whose order is that of |x|.
std::uint32_t magnitude(float x) {
  return std::bit_cast<std::uint32_t>(x) & 0x7fffffffU;
}

// What shares the bytes found so far, by its next one.
void count_digits(std::span<const float> x, std::uint32_t prefix, int shift, Histogram histogram) {
  for (const float value : x) {
    const std::uint64_t digits = magnitude(value) >> shift;
    if (digits >> 8 == prefix) ++histogram[digits & largest_digit];
  }
}

// The next byte of the element of rank `rank` (1 = the largest) of those in the histogram; rank ← its rank among those that share
// it.
std::uint32_t find_digit(Histogram histogram, std::int64_t& rank) {
  std::uint32_t digit = largest_digit;
  for (; histogram[digit] < rank; --digit) rank -= histogram[digit];
  return digit;
}

// Elements above and on a threshold.
struct AboveAndOn {
  std::int64_t above, on;
};
AboveAndOn count_above_and_on(std::span<const float> x, std::uint32_t threshold) {
  AboveAndOn counts{};
  for (const float value : x) {
    counts.above += magnitude(value) > threshold ? 1 : 0;
    counts.on += magnitude(value) == threshold ? 1 : 0;
  }
  return counts;
}

// Sets the bits first + i of the elements above the threshold and of the first `ties` on it. Returns the ties that are left.
std::int64_t mark(std::span<const float> x, std::uint32_t threshold, std::int64_t ties, std::span<std::uint64_t> words,
                  std::int64_t first) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::uint32_t value = magnitude(x[i]);
    if (value < threshold || (value == threshold && ties-- <= 0)) continue;
    const std::int64_t j = first + static_cast<std::int64_t>(i);
    words[static_cast<std::size_t>(j / MaskView::word_bits)] |= std::uint64_t{1} << j % MaskView::word_bits;
  }
  return std::max<std::int64_t>(ties, 0);
}

// Owner of each tensor: the largest first, each to the rank that has least (Graham 1969), the lower one of equals.
std::vector<int> owners_of_tensors(const ParameterLayout& layout, int ranks) {
  const std::vector<ParameterTensor>& tensors = layout.tensors();
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return tensors[a].range.size() > tensors[b].range.size(); });
  std::vector<std::int64_t> load(static_cast<std::size_t>(ranks));
  std::vector<int> owners(tensors.size());
  for (const std::size_t i : order) {
    if (tensors[i].role == TensorRole::vector) continue;
    const auto least = std::min_element(load.begin(), load.end());
    *least += tensors[i].range.size();
    owners[i] = static_cast<int>(least - load.begin());
  }
  return owners;
}

// Whether no owner has anything between its pieces.
bool owners_have_one_run(const MaskParts& parts) {
  const auto gap = std::adjacent_find(parts.pieces.begin(), parts.pieces.end(), [](const MaskPiece& a, const MaskPiece& b) {
    return a.owner == b.owner && a.range.end != b.range.begin;
  });
  return gap == parts.pieces.end();
}

}  // namespace

MaskParts mask_parts(const ParameterLayout& layout, MaskOwner rule, int ranks) {
  MaskParts parts;
  const std::vector<ParameterTensor>& tensors = layout.tensors();
  const std::vector<int> owners = rule == MaskOwner::tensors ? owners_of_tensors(layout, ranks) : std::vector<int>();
  for (int r = 0; r < ranks; ++r) {
    std::int64_t place = 0;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].role == TensorRole::vector) continue;
      const Range owned = rule == MaskOwner::ranges ? owned_range(layout.size(), r, ranks)
                          : owners[i] == r          ? tensors[i].range
                                                    : Range{};
      const Range range = intersect(tensors[i].range, owned);
      if (range.empty()) continue;
      parts.pieces.push_back({range, r, place});
      place += range.size();
    }
    parts.sizes.push_back(place);
  }
  for (const ParameterTensor& tensor : tensors) {
    if (tensor.role == TensorRole::vector) parts.vectors.push_back(tensor.range);
  }
  parts.matrix_coordinates = std::accumulate(parts.sizes.begin(), parts.sizes.end(), std::int64_t{0});
  parts.vector_coordinates = layout.size() - parts.matrix_coordinates;
  return parts;
}

MaskChoice::MaskChoice(const ScapeOptions& options, const CommonOptions& common, const MethodContext& context)
    : options_(options),
      common_(common),
      parts_(mask_parts(context.layout, options.mask_owner, context.ranks)),
      owned_(owned_range(context.layout.size(), context.rank, context.ranks)),
      size_(context.layout.size()),
      device_(context.device),
      seed_(context.seed),
      ranks_(context.ranks) {
  if (device_.kind != DeviceKind::cpu) {
    require(options.mask_scope != MaskScope::global, ErrorKind::usage,
            "mask_scope = global searches its threshold on the host and needs device = cpu");
    require(options.mask_scope != MaskScope::shard || owners_have_one_run(parts_), ErrorKind::usage,
            "mask_scope = shard needs device = cpu for a model that has vectors between its matrices");
  }
  for (const MaskPiece& piece : parts_.pieces) {
    if (piece.owner == context.rank) mine_.push_back(piece);
  }
  const std::int64_t size = parts_.sizes[static_cast<std::size_t>(context.rank)];
  if (options.mask_statistic == MaskStatistic::gradient || options.mask_statistic == MaskStatistic::update) {
    score_ = Buffer<float>(size, device_);
  } else if (options.mask_statistic == MaskStatistic::random) {
    score_ = Buffer<float>(size, device_);
    drawn_ = Buffer<float>(size);
  }
}

std::vector<std::int64_t> MaskChoice::counts(double density) const {
  std::vector<std::int64_t> counts(parts_.sizes.size());
  switch (options_.mask_scope) {
    case MaskScope::tensor:
      for (const MaskPiece& piece : parts_.pieces)
        counts[static_cast<std::size_t>(piece.owner)] += kept_count(density, piece.range.size());
      break;
    case MaskScope::shard:
      std::transform(parts_.sizes.begin(), parts_.sizes.end(), counts.begin(),
                     [&](std::int64_t n) { return kept_count(density, n); });
      break;
    case MaskScope::global: {
      const std::int64_t k = kept_count(density, parts_.matrix_coordinates);
      if (std::accumulate(last_counts_.begin(), last_counts_.end(), std::int64_t{0}) == k) return last_counts_;
      std::int64_t n_left = parts_.matrix_coordinates;
      std::int64_t k_left = k;
      for (std::size_t r = 0; r < counts.size(); ++r) {
        const double share = static_cast<double>(parts_.sizes[r]) / static_cast<double>(std::max<std::int64_t>(n_left, 1));
        counts[r] = std::llround(share * static_cast<double>(k_left));
        n_left -= parts_.sizes[r];
        k_left -= counts[r];
      }
    }
  }
  return counts;
}

std::int64_t MaskChoice::count(double density) const {
  const std::vector<std::int64_t> of = counts(density);
  return std::accumulate(of.begin(), of.end(), parts_.vector_coordinates);
}

double MaskChoice::expected_wire_bytes() const {
  if (options_.mask_scope != MaskScope::global || parts_.matrix_coordinates == 0) return 0;
  const auto pieces = static_cast<double>(parts_.pieces.size());
  return static_cast<double>(digit_shifts.size()) * wire_bytes(Collective::all_reduce, (largest_digit + 1) * 8.0, ranks_) +
         wire_bytes(Collective::all_gather, pieces * sizeof(AboveAndOn), ranks_);
}

void MaskChoice::observe(const StepContext& context, Range range) {
  if (options_.mask_statistic != MaskStatistic::gradient && options_.mask_statistic != MaskStatistic::update) return;
  for (const MaskPiece& piece : mine_) {
    const Range seen = intersect(piece.range, range);
    if (seen.empty()) continue;
    copy(kept(piece).subspan(seen.begin - piece.range.begin, seen.size()), context.grads.subspan(seen.begin, seen.size()),
         context.stream);
  }
}

// Element i is word i % 4 of philox(seed, stream, i / 4), of which 24 bits are used, where i is the coordinate.
void MaskChoice::draw(std::int64_t t, const Stream& stream) {
  stream.enqueue([this, stream_of_step = std::uint64_t{0x6d61736b} << 32 | static_cast<std::uint64_t>(t)] {
    float* to = drawn_.data();
    for (const MaskPiece& piece : mine_) {
      std::array<std::uint32_t, 4> words{};
      for (std::int64_t j = piece.range.begin; j < piece.range.end; ++j) {
        if (j % 4 == 0 || j == piece.range.begin) words = philox(seed_, stream_of_step, static_cast<std::uint64_t>(j / 4));
        *to++ = static_cast<float>(words[static_cast<std::size_t>(j % 4)] >> 8) * 0x1.0p-24F;
      }
    }
  });
  copy(score_.span(), drawn_.span(), stream);
}

std::vector<MaskChoice::Scored> MaskChoice::scores(const StepContext& context, std::int64_t t, Span<const float> candidate,
                                                   Span<const float> m) {
  const auto of = [&](Span<const float> values, const MaskPiece& piece) {
    const std::int64_t first = values.size() == size_ ? 0 : owned_.begin;
    return values.subspan(piece.range.begin - first, piece.range.size());
  };
  if (options_.mask_statistic == MaskStatistic::random) draw(t, context.stream);
  const AdamStep step = adams_step(common_, options_.bias_correction, t, 0);
  std::vector<Scored> scored;
  for (const MaskPiece& piece : mine_) {
    Span<const float> score = kept(piece);
    switch (options_.mask_statistic) {
      case MaskStatistic::candidate:
        score = of(candidate, piece);
        break;
      case MaskStatistic::momentum:
        score = of(m, piece);
        break;
      case MaskStatistic::update:
        update_kernels(device_).adams_direction(kept(piece), of(candidate, piece), of(m, piece), step, context.stream);
        break;
      case MaskStatistic::gradient:
      case MaskStatistic::random:
        break;
    }
    scored.push_back({piece.range, score});
  }
  return scored;
}

void MaskChoice::choose(const StepContext& context, std::int64_t t, double density, Span<const float> candidate,
                        Span<const float> m, Span<std::uint64_t> words) {
  std::vector<Scored> scored;
  {
    const Telemetry::Scope scope = context.telemetry.scope(Phase::compress, context.stream);
    const SparseKernels& kernels = sparse_kernels(device_);
    for (const Range vector : parts_.vectors) kernels.set_range(words, vector, context.stream);
    scored = scores(context, t, candidate, m);
    if (options_.mask_scope == MaskScope::tensor) {
      for (const Scored& part : scored) {
        kernels.top_k(part.score, kept_count(density, part.score.size()), words, part.range.begin, context.stream);
      }
    } else if (options_.mask_scope == MaskScope::shard) {
      choose_in_shard(density, std::move(scored), words, context.stream);
    }
  }
  if (options_.mask_scope == MaskScope::global) choose_globally(context, density, scored, words);
}

void MaskChoice::choose_in_shard(double density, std::vector<Scored> scored, Span<std::uint64_t> words,
                                 const Stream& stream) const {
  if (scored.empty()) return;
  const Scored& first = scored.front();
  const Scored& last = scored.back();
  std::int64_t n = 0;
  for (const Scored& part : scored) n += part.score.size();
  const std::int64_t k = kept_count(density, n);
  if (last.range.end - first.range.begin == n) {  // one run; its numbers lie together, too
    sparse_kernels(device_).top_k({first.score.data(), n, device_}, k, words, first.range.begin, stream);
    return;
  }
  stream.enqueue([scored = std::move(scored), k, words] {
    std::uint32_t threshold = 0;
    std::int64_t ties = k;
    for (const int shift : digit_shifts) {
      std::array<std::int64_t, largest_digit + 1> histogram{};
      for (const Scored& part : scored) count_digits(part.score.host(), threshold, shift, histogram);
      threshold = threshold << 8 | find_digit(histogram, ties);
    }
    for (const Scored& part : scored) ties = mark(part.score.host(), threshold, ties, words.host(), part.range.begin);
  });
}

void MaskChoice::choose_globally(const StepContext& context, double density, const std::vector<Scored>& scored,
                                 Span<std::uint64_t> words) {
  const std::int64_t k = kept_count(density, parts_.matrix_coordinates);
  last_counts_.assign(parts_.sizes.size(), 0);
  if (k == 0) return;
  const Telemetry::Scope scope = context.telemetry.scope(Phase::communication, context.stream);
  context.stream.synchronize();  // from here on the host works on what lies there
  std::uint32_t threshold = 0;
  std::int64_t ties = k;
  for (const int shift : digit_shifts) {
    Buffer<std::int64_t> histogram(largest_digit + 1);
    for (const Scored& part : scored) count_digits(part.score.host(), threshold, shift, histogram.host());
    context.comm.all_reduce(histogram.span(), ReduceOp::sum, context.comm_stream);
    context.comm_stream.synchronize();
    threshold = threshold << 8 | find_digit(histogram.host(), ties);
  }

  // [pieces][2] above and on the threshold. The ties go to the pieces in the order of their coordinates.
  Buffer<std::int64_t> counts(2 * std::ssize(parts_.pieces));
  std::vector<std::int64_t> gathered(parts_.sizes.size());
  for (const MaskPiece& piece : parts_.pieces) gathered[static_cast<std::size_t>(piece.owner)] += 2;
  const auto first_of_mine = std::find_if(parts_.pieces.begin(), parts_.pieces.end(),
                                          [&](const MaskPiece& piece) { return piece.owner == context.comm.rank(); });
  const std::int64_t first = mine_.empty() ? 0 : 2 * (first_of_mine - parts_.pieces.begin());
  const Span<std::int64_t> my_counts = counts.span().subspan(first, 2 * std::ssize(mine_));
  for (std::size_t i = 0; i < scored.size(); ++i) {
    const AboveAndOn found = count_above_and_on(scored[i].score.host(), threshold);
    my_counts.host()[2 * i] = found.above;
    my_counts.host()[2 * i + 1] = found.on;
  }
  context.comm.all_gather_v(my_counts, counts.span(), gathered, context.comm_stream);
  context.comm_stream.synchronize();
  std::vector<std::size_t> order(parts_.pieces.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return parts_.pieces[a].range.begin < parts_.pieces[b].range.begin; });
  for (const std::size_t i : order) {
    const MaskPiece& piece = parts_.pieces[i];
    const std::int64_t taken = std::min(ties, counts.host()[2 * i + 1]);
    ties -= taken;
    last_counts_[static_cast<std::size_t>(piece.owner)] += counts.host()[2 * i] + taken;
    if (piece.owner != context.comm.rank()) continue;
    const Scored& part = scored[i - static_cast<std::size_t>(first / 2)];
    mark(part.score.host(), threshold, taken, words.host(), part.range.begin);
  }
}

}  // namespace scape
