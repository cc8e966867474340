// Diagnostics on the host. Per step: one pass over the words of the mask. Per record: a few passes over all coordinates.
#include "scape/diagnostics.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

#include "scape/kernels.hpp"

namespace scape {

namespace {

constexpr std::int64_t word_bits = MaskView::word_bits;

// Calls visit(w, bits) for the words that hold coordinates of `range`, with those coordinates' bits set.
template <class Visit>
void for_each_word(Range range, Visit visit) {
  for (std::int64_t w = range.begin / word_bits; w * word_bits < range.end; ++w) {
    const std::int64_t low = std::max<std::int64_t>(range.begin - w * word_bits, 0);
    const std::int64_t high = std::min(range.end - w * word_bits, word_bits);
    visit(static_cast<std::size_t>(w), ~std::uint64_t{0} >> (word_bits - (high - low)) << low);
  }
}

template <class Words>
bool none_of(const Words& words) {
  return std::all_of(words.begin(), words.end(), [](std::uint64_t word) { return word == 0; });
}

template <class Words>
std::int64_t count_bits(const Words& words) {
  std::int64_t total = 0;
  for (const std::uint64_t word : words) total += std::popcount(word);
  return total;
}

double ratio(double part, double whole) {
  return whole > 0 ? part / whole : not_available;
}

double square(float x) {
  return static_cast<double>(x) * x;
}

}  // namespace

std::int64_t GradientBins::of(float gradient) {
  if (gradient == 0) return 0;
  const double place = std::floor(4 * (std::log10(std::abs(static_cast<double>(gradient))) + 12));
  return 1 + static_cast<std::int64_t>(std::clamp(place, 0.0, static_cast<double>(count - 2)));
}

double GradientBins::lower_edge(std::int64_t bin) {
  return bin == 0 ? 0 : std::pow(10, -12 + static_cast<double>(bin - 1) / 4);
}

std::int64_t AgeBins::of(std::int64_t age) {
  return std::min<std::int64_t>(std::bit_width(static_cast<std::uint64_t>(age)), count - 1);
}

double AgeBins::lower_edge(std::int64_t bin) {
  return bin == 0 ? 0 : std::exp2(static_cast<double>(bin - 1));
}

Diagnostics::Diagnostics(const ParameterLayout& layout, std::int64_t every) : layout_(layout), every_(every) {
  if (every_ == 0) return;
  const std::int64_t words = mask_words(layout_.size());
  mask_.resize(static_cast<std::size_t>(words));
  previous_ = Buffer<std::uint64_t>(words);
  first_ = Buffer<std::uint64_t>(words);
  last_used_ = Buffer<std::int32_t>(layout_.size());
}

bool Diagnostics::due(const StepContext& context) const {
  return every_ > 0 && context.step % every_ == 0 && context.comm.rank() == 0;
}

void Diagnostics::keep_gradients(const StepContext& context, Range range) {
  values_.resize(static_cast<std::size_t>(layout_.size()));
  copy(Span<float>(std::span(values_)).subspan(range.begin, range.size()), context.grads.subspan(range.begin, range.size()),
       context.stream);
}

// M_t, and the age of every coordinate.
void Diagnostics::follow_mask(const StepContext& context, Span<const std::uint64_t> mask) {
  copy(Span<std::uint64_t>(std::span(mask_)), mask, context.stream);
  context.stream.synchronize();
  const auto step = static_cast<std::int32_t>(context.step);
  for (std::size_t w = 0; w < mask_.size(); ++w) {
    std::int32_t* const last_used = last_used_.data() + static_cast<std::int64_t>(w) * word_bits;
    for (std::uint64_t bits = mask_[w]; bits != 0; bits &= bits - 1) last_used[std::countr_zero(bits)] = step;
  }
  const std::int64_t count = count_bits(mask_);
  if (count < layout_.size() && count != count_bits(first_.host())) std::copy(mask_.begin(), mask_.end(), first_.data());
}

void Diagnostics::compare_masks(const ParameterTensor& tensor, std::int64_t step, TensorDiagnostics& result) const {
  const auto compare = [&](std::span<const std::uint64_t> other, double& jaccard, double& share) {
    if (none_of(other)) return;
    std::int64_t count = 0;
    std::int64_t common = 0;
    std::int64_t either = 0;
    for_each_word(tensor.range, [&](std::size_t w, std::uint64_t bits) {
      count += std::popcount(mask_[w] & bits);
      common += std::popcount(mask_[w] & other[w] & bits);
      either += std::popcount((mask_[w] | other[w]) & bits);
    });
    jaccard = ratio(static_cast<double>(common), static_cast<double>(either));
    share = ratio(static_cast<double>(common), static_cast<double>(count));
  };
  compare(previous_.host(), result.jaccard_previous, result.share_previous);
  if (count_bits(mask_) < layout_.size()) compare(first_.host(), result.jaccard_first, result.share_first);
  for (std::int64_t j = tensor.range.begin; j < tensor.range.end; ++j) {
    ++result.age_histogram[static_cast<std::size_t>(AgeBins::of(step - last_used_.data()[j]))];
  }
}

// values_ holds the candidate.
void Diagnostics::measure_candidate(const ParameterTensor& tensor, TensorDiagnostics& result) const {
  double energy = 0;
  std::int64_t k = 0;
  for_each_word(tensor.range, [&](std::size_t w, std::uint64_t bits) {
    for (bits &= mask_[w]; bits != 0; bits &= bits - 1, ++k) energy += square(values_[64 * w + std::countr_zero(bits)]);
  });
  std::vector<double> squares;
  for (std::int64_t j = tensor.range.begin; j < tensor.range.end; ++j)
    squares.push_back(square(values_[static_cast<std::size_t>(j)]));
  const auto behind = squares.begin() + k;
  if (k < tensor.range.size()) std::nth_element(squares.begin(), behind, squares.end(), std::greater<>());
  double best = 0;
  std::for_each(squares.begin(), behind, [&](double x) { best += x; });
  result.energy_overlap = ratio(energy, best);
  result.topk_norm = std::sqrt(energy);
}

std::vector<TensorDiagnostics> Diagnostics::after_step(const StepContext& context, const Optimizer& method) {
  if (every_ == 0) return {};
  const StepView view = method.inspect(context);
  if (!view.mask.empty()) follow_mask(context, view.mask);

  std::vector<TensorDiagnostics> results;
  if (due(context)) {
    results.resize(layout_.tensors().size());
    const auto for_each_tensor = [&](auto measure) {
      for (std::size_t i = 0; i < results.size(); ++i) measure(layout_.tensors()[i], results[i]);
    };
    const auto fetch = [&](Span<const float> values) {
      copy(Span<float>(std::span(values_)), values, context.stream);
      context.stream.synchronize();
    };
    require(!values_.empty(), ErrorKind::internal, "Diagnostics: no gradients were kept for this step");
    context.stream.synchronize();
    for_each_tensor([&](const ParameterTensor& tensor, TensorDiagnostics& result) {
      for (std::int64_t j = tensor.range.begin; j < tensor.range.end; ++j) {
        ++result.gradient_histogram[static_cast<std::size_t>(GradientBins::of(values_[static_cast<std::size_t>(j)]))];
      }
      if (!view.mask.empty()) compare_masks(tensor, context.step, result);
    });
    if (!view.mask.empty() && !view.candidate.empty()) {
      fetch(view.candidate);
      for_each_tensor([&](const ParameterTensor& tensor, TensorDiagnostics& result) { measure_candidate(tensor, result); });
    }
    if (!view.residual.empty()) {
      fetch(view.residual);
      for_each_tensor([&](const ParameterTensor& tensor, TensorDiagnostics& result) {
        double sum = 0;
        for (std::int64_t j = tensor.range.begin; j < tensor.range.end; ++j) sum += square(values_[static_cast<std::size_t>(j)]);
        result.residual_norm = std::sqrt(sum);
      });
    }
  }
  if (!view.mask.empty()) std::copy(mask_.begin(), mask_.end(), previous_.data());
  return results;
}

std::vector<StateEntry> Diagnostics::state() {
  if (every_ == 0) return {};
  return {state_entry("diagnostics/previous_mask", StateScope::replicated, previous_.span()),
          state_entry("diagnostics/first_mask", StateScope::replicated, first_.span()),
          state_entry("diagnostics/last_used", StateScope::replicated, last_used_.span())};
}

}  // namespace scape
