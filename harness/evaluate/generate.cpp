#include "evaluate/generate.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "scape/error.hpp"
#include "scape/rng.hpp"

namespace scape {

void validate(const SamplingOptions& options) {
  require(options.tokens >= 1, ErrorKind::usage, "the number of tokens to write must be at least 1");
  require(std::isfinite(options.temperature) && options.temperature >= 0, ErrorKind::usage, "the temperature must be 0 or above");
  require(options.top_k >= 0, ErrorKind::usage, "top-k must be 0 (all) or above");
}

std::int32_t choose_token(std::span<const float> logits, const SamplingOptions& options, double uniform) {
  require(std::ranges::all_of(logits, [](float z) { return std::isfinite(z); }), ErrorKind::input,
          "the model's logits are not finite");
  std::vector<std::int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto value = [&](std::int32_t id) { return static_cast<double>(logits[static_cast<std::size_t>(id)]); };
  const auto before = [&](std::int32_t a, std::int32_t b) { return value(a) != value(b) ? value(a) > value(b) : a < b; };
  const std::int64_t kept = options.temperature == 0 ? 1 : options.top_k == 0 ? std::ssize(ids) : options.top_k;
  const auto end = ids.begin() + std::min(kept, std::ssize(ids));
  std::partial_sort(ids.begin(), end, ids.end(), before);
  if (options.temperature == 0) return ids.front();
  std::vector<double> sums;
  double sum = 0;
  for (auto id = ids.begin(); id != end; ++id) {
    sums.push_back(sum += std::exp((value(*id) - value(ids.front())) / options.temperature));
  }
  const auto chosen = std::ranges::upper_bound(sums, uniform * sum) - sums.begin();
  return ids[static_cast<std::size_t>(std::min(chosen, std::ssize(sums) - 1))];
}

std::vector<std::int32_t> generate(Model& model, std::span<const std::int32_t> prompt, std::int32_t end_token,
                                   const SamplingOptions& options) {
  validate(options);
  require(!prompt.empty(), ErrorKind::usage, "generate: the prompt has no token");
  const auto context = static_cast<std::size_t>(model.config().context);
  const auto vocab = static_cast<std::size_t>(model.config().vocab);
  const Stream stream;
  Rng rng(options.seed);
  std::vector<std::int32_t> text(prompt.begin(), prompt.end());
  std::vector<float> logits;
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    const auto seen = std::span<const std::int32_t>(text).last(std::min(text.size(), context));
    logits.resize(seen.size() * vocab);
    model.logits({seen, {}, 1, std::ssize(seen)}, std::span(logits), stream);
    stream.synchronize();
    const std::int32_t id = choose_token(std::span<const float>(logits).last(vocab), options, rng.uniform());
    if (id == end_token) break;
    text.push_back(id);
  }
  return {text.begin() + std::ssize(prompt), text.end()};
}

}  // namespace scape
