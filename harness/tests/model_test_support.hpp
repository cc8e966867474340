// What the tests of operators and models share: random vectors, finite differences, small configs of both families.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/model.hpp"
#include "scape/rng.hpp"

namespace scape {

using Floats = std::vector<float>;

inline Floats random_floats(std::int64_t count, std::uint64_t seed, float deviation = 1.0F) {
  Rng rng(seed);
  Floats values(static_cast<std::size_t>(count));
  for (float& value : values) value = deviation * rng.normal();
  return values;
}

inline std::vector<std::int32_t> random_ids(std::int64_t count, std::int64_t vocab, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  for (std::int32_t& id : ids) id = static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(vocab)));
  return ids;
}

inline Span<float> span_of(Floats& values) {
  return std::span<float>(values);
}
inline Span<const float> span_of(const Floats& values) {
  return std::span<const float>(values);
}
inline Span<const std::int32_t> span_of(const std::vector<std::int32_t>& values) {
  return std::span<const std::int32_t>(values);
}

inline double inner(const Floats& a, const Floats& b) {
  double total = 0;
  for (std::size_t i = 0; i < a.size(); ++i) total += static_cast<double>(a[i]) * b[i];
  return total;
}

/// Compares gradient[i] with (f(x + h eᵢ) − f(x − h eᵢ)) / 2h at the given coordinates (all when empty); the tolerance is
/// relative to the largest gradient, since fp32 differences carry an absolute error.
inline void expect_gradient(std::span<float> x, std::span<const float> gradient, const std::function<double()>& f,
                            const std::string& what, double tolerance = 2e-3, float h = 1e-2F, std::vector<std::size_t> at = {}) {
  ASSERT_EQ(x.size(), gradient.size()) << what;
  if (at.empty()) {
    for (std::size_t i = 0; i < x.size(); ++i) at.push_back(i);
  }
  float largest = 0;
  for (const float g : gradient) largest = std::max(largest, std::abs(g));
  ASSERT_GT(largest, 0) << what << ": no gradient at all";
  for (const std::size_t i : at) {
    const float kept = x[i];
    x[i] = kept + h;
    const double above = f();
    const float high = x[i];
    x[i] = kept - h;
    const double below = f();
    const double numeric = (above - below) / (static_cast<double>(high) - x[i]);
    x[i] = kept;
    EXPECT_NEAR(gradient[i], numeric, tolerance * largest) << what << "[" << i << "]";
  }
}

/// A small GPT and a small Llama with three query heads per key head and a head size of 4, and weights large enough that
/// nothing is nearly linear.
inline ModelConfig small_config(const std::string& family) {
  ModelConfig config = model_config(family + "-nano");
  config.vocab = 17;
  config.context = 9;
  config.layers = 2;
  config.width = 24;
  config.heads = 6;
  config.kv_heads = family == "llama" ? 2 : 6;
  config.ffn = 20;
  config.init_std = 0.3;
  return config;
}

/// Moves scales, shifts and biases off their initial ones and zeros, so that a term that ignores them is seen.
inline void stir_vectors(Model& model) {
  Rng rng(99);
  for (const ParameterTensor& tensor : model.layout().tensors()) {
    if (tensor.role != TensorRole::vector) continue;
    for (float& value : model.params().subspan(tensor.range.begin, tensor.range.size()).host()) value += 0.3F * rng.normal();
  }
}

/// A batch with its own memory.
struct Sample {
  std::vector<std::int32_t> inputs;
  std::vector<std::int32_t> targets;
  std::int64_t sequences;
  std::int64_t length;

  Sample(const ModelConfig& config, std::int64_t sequences_, std::int64_t length_, std::uint64_t seed = 5)
      : inputs(random_ids(sequences_ * length_, config.vocab, seed)),
        targets(random_ids(sequences_ * length_, config.vocab, seed + 1)),
        sequences(sequences_),
        length(length_) {}
  [[nodiscard]] Batch batch() const { return {span_of(inputs), span_of(targets), sequences, length}; }
  /// Sequences [first, first + count).
  [[nodiscard]] Batch part(std::int64_t first, std::int64_t count) const {
    return {span_of(inputs).subspan(first * length, count * length), span_of(targets).subspan(first * length, count * length),
            count, length};
  }
};

inline Floats copy_of(Span<const float> values) {
  return {values.host().begin(), values.host().end()};
}

inline double relative_distance(const Floats& a, const Floats& b) {
  double difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
  return std::sqrt(difference / inner(b, b));
}

/// A model with a head of its own that has the numbers of the tied one's embedding.
inline std::unique_ptr<Model> untied_twin(Model& tied, ModelConfig config) {
  config.tied_embedding = false;
  auto untied = make_model(config);
  for (const ParameterTensor& tensor : untied->layout().tensors()) {
    const Range from = tied.layout().tensor(tensor.name == "head" ? "embedding" : tensor.name).range;
    copy(untied->params().subspan(tensor.range.begin, tensor.range.size()), tied.params().subspan(from.begin, from.size()),
         Stream());
  }
  return untied;
}

}  // namespace scape
