// Text that a model writes, token by token: of the logits z at the end of the text so far, the largest (temperature 0), or one
// drawn with p_i ∝ exp(z_i / temperature) among the top_k largest (Fan et al., arXiv 1805.04833). Nothing is kept from one token to
// the next: the whole context is computed again for each, which is fine for the sizes that the suite trains and always exact.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/model.hpp"

namespace scape {

struct SamplingOptions {
  std::int64_t tokens = 200;
  double temperature = 0.8;  // 0: always the most likely token
  std::int64_t top_k = 0;    // 0: all
  std::uint64_t seed = 1;    // the same seed, the same text
};

/// Throws Error(usage) naming what cannot be meant.
void validate(const SamplingOptions& options);

/// The token that `uniform`, in [0, 1), chooses. Of equally likely ones the lower id comes first.
[[nodiscard]] std::int32_t choose_token(std::span<const float> logits, const SamplingOptions& options, double uniform);

/// What follows `prompt`, which is not empty: options.tokens ids, fewer when `end_token` is among them, which is left out. The
/// model sees as many of the last tokens as its context holds.
[[nodiscard]] std::vector<std::int32_t> generate(Model& model, std::span<const std::int32_t> prompt, std::int32_t end_token,
                                                 const SamplingOptions& options);

}  // namespace scape
