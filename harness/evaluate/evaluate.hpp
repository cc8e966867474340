// What a trained model knows, without having been shown how to answer (zero-shot):
//   validation   mean loss of a token of held-out text; its exponential is the perplexity
//   choices      the share of the questions whose right choice the model finds most likely behind the context: by log-likelihood
//                (acc), and by log-likelihood divided by the choice's length in bytes of UTF-8 (acc_norm)
//   last words   the share of the texts whose last word greedy decoding would write, and exp(−mean log-likelihood of that word)
// acc, acc_norm and the standard errors are those of EleutherAI's lm-evaluation-harness, which divides by the number of characters:
// the same for ASCII. Between a context and a choice goes a space, unless there is white space already.
// What cannot be scored, because a choice or last word alone is longer than the model's context, is skipped and counted; the
// harness has no number for it either (it stops at its assertion). Ranks share the work: each does every ranks-th item, and results
// are sums.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "data/token_file.hpp"
#include "evaluate/questions.hpp"
#include "model/model.hpp"

namespace scape {

/// A mean over items, as sums that ranks can add up.
struct Tally {
  double count = 0;
  double sum = 0;
  double squares = 0;

  void add(double value, double times = 1);
  [[nodiscard]] double mean() const { return sum / count; }
  /// Of the mean: √(variance / count), the variance with count − 1; NaN for less than two items.
  [[nodiscard]] double standard_error() const;
};

/// Which items are this process's, and who wants to know how many of them are done.
struct Share {
  int rank = 0;
  int ranks = 1;
  std::function<void(std::int64_t done, std::int64_t total)> progress = [](std::int64_t, std::int64_t) {};
};

/// Losses of tokens in the first `windows` windows of `length` tokens of the validation split, in the trainer's order, so that
/// validation_batches · global_batch of them are what a run validates on; fewer when the split is smaller, and all of them if
/// `windows` is negative. Only count and sum are filled in. Throws Error(input) for a split shorter than a window.
[[nodiscard]] Tally evaluate_validation(Model& model, const TokenFile& tokens, std::int64_t length, std::int64_t windows,
                                        const Share& share);

struct ChoiceTally {
  Tally acc, acc_norm;
  std::int64_t skipped = 0;  // questions with a choice that cannot be scored, see make_passage
};
/// Contexts are cut on the left to what the model can see.
[[nodiscard]] ChoiceTally evaluate_choices(Model& model, const Tokenizer& tokenizer, const std::vector<ChoiceQuestion>& questions,
                                           const Share& share);

struct LastWordTally {
  Tally acc, log_likelihood;
  std::int64_t skipped = 0;
};
[[nodiscard]] LastWordTally evaluate_last_words(Model& model, const Tokenizer& tokenizer,
                                                const std::vector<LastWordQuestion>& questions, const Share& share);

}  // namespace scape
