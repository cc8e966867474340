// How likely a model finds a piece of text behind another: for the tokens t_1 … t_m that follow a context c,
//   log p(t | c) = Σ_i log softmax(z(c, t_1 … t_{i−1}))[t_i]
// with z the model's logits, and whether each t_i is the model's first choice there, so that greedy decoding would write t. The
// rules for cutting text are those of EleutherAI's lm-evaluation-harness, so that the numbers can be compared.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.hpp"
#include "model/model.hpp"

namespace scape {

/// Token ids of which the last `scored` are scored given those before them.
struct Passage {
  std::vector<std::int32_t> ids;
  std::int64_t scored = 0;
};

/// `context` followed by `continuation`, each of which may not be empty. White space at the end of the context counts as the
/// beginning of the continuation; the tokens of the continuation are those that the whole text has more than the context. Of a text
/// longer than `longest` + 1 tokens the beginning is cut off. Nothing when the continuation has no token of its own or more than
/// `longest`: the rest of it would be scored as if it were all, and what is short looks likely. Throws Error(input), beginning with
/// `place`, when the tokenizer can put nothing in front of it.
[[nodiscard]] std::optional<Passage> make_passage(const Tokenizer& tokenizer, std::string_view context,
                                                  std::string_view continuation, std::int64_t longest, const std::string& place);

struct Score {
  double log_likelihood = 0;  // nats
  bool greedy = true;
};

/// Scores of some passages, computed together; none is longer than the model's context + 1.
[[nodiscard]] std::vector<Score> score(Model& model, std::span<const Passage> passages);

}  // namespace scape
