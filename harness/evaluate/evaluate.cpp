#include "evaluate/evaluate.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "data/token_stream.hpp"
#include "evaluate/score.hpp"

namespace scape {

namespace {

// At a time: what a batch needs grows with its tokens, and a few thousand keep a processor busy.
constexpr std::int64_t tokens_at_once = 2048;

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

std::int64_t first_largest(const std::vector<double>& values) {
  return std::ranges::max_element(values) - values.begin();
}

// Items share.rank, share.rank + share.ranks, … below `count`.
template <class Work>
void for_each_mine(std::int64_t count, const Share& share, const Work& work) {
  const std::int64_t mine = (count - share.rank + share.ranks - 1) / share.ranks;
  for (std::int64_t i = 0; i < mine; ++i) {
    share.progress(i, mine);
    work(share.rank + i * share.ranks);
  }
}

}  // namespace

void Tally::add(double value, double times) {
  count += times;
  sum += value * times;
  squares += value * value * times;
}

double Tally::standard_error() const {
  if (count < 2) return std::numeric_limits<double>::quiet_NaN();
  return std::sqrt(std::max(0.0, squares - sum * mean()) / (count - 1) / count);
}

Tally evaluate_validation(Model& model, const TokenFile& tokens, std::int64_t length, std::int64_t windows, const Share& share) {
  const TokenStream stream(tokens, Split::validation, {.sequence_length = length, .global_batch = 1}, 0, 1);
  const std::int64_t all = windows < 0 ? stream.windows() : std::min(windows, stream.windows());
  const std::int64_t at_once = std::max<std::int64_t>(1, tokens_at_once / length);
  std::vector<std::int32_t> inputs(static_cast<std::size_t>(at_once * length));
  std::vector<std::int32_t> targets(inputs.size());
  Tally tally;
  for_each_mine((all + at_once - 1) / at_once, share, [&](std::int64_t batch) {
    const std::int64_t first = batch * at_once;
    const std::int64_t sequences = std::min(at_once, all - first);
    const auto row = [&](std::vector<std::int32_t>& ids, std::int64_t i) {
      return std::span(ids).subspan(static_cast<std::size_t>(i * length), static_cast<std::size_t>(length));
    };
    for (std::int64_t i = 0; i < sequences; ++i) stream.batch(first + i, 0, 1, row(inputs, i), row(targets, i));
    const auto part = [&](const std::vector<std::int32_t>& ids) {
      return Span<const std::int32_t>(std::span<const std::int32_t>(ids).first(static_cast<std::size_t>(sequences * length)));
    };
    tally.add(model.evaluate({part(inputs), part(targets), sequences, length}, Stream()), static_cast<double>(sequences * length));
  });
  return tally;
}

ChoiceTally evaluate_choices(Model& model, const Tokenizer& tokenizer, const std::vector<ChoiceQuestion>& questions,
                             const Share& share) {
  ChoiceTally tally;
  for_each_mine(std::ssize(questions), share, [&](std::int64_t i) {
    const ChoiceQuestion& question = questions[static_cast<std::size_t>(i)];
    std::vector<Passage> passages;
    for (const std::string& choice : question.choices) {
      const bool joined = question.context.empty() || is_space(question.context.back()) || is_space(choice.front());
      const auto passage =
          make_passage(tokenizer, question.context, (joined ? "" : " ") + choice, model.config().context, question.place);
      if (passage) passages.push_back(*passage);
    }
    if (passages.size() < question.choices.size()) {
      ++tally.skipped;
      return;
    }
    std::vector<double> likelihoods, normalised;
    for (const Score& found : score(model, passages)) {
      likelihoods.push_back(found.log_likelihood);
      normalised.push_back(found.log_likelihood / static_cast<double>(question.choices[normalised.size()].size()));
    }
    tally.acc.add(first_largest(likelihoods) == question.label ? 1 : 0);
    tally.acc_norm.add(first_largest(normalised) == question.label ? 1 : 0);
  });
  return tally;
}

LastWordTally evaluate_last_words(Model& model, const Tokenizer& tokenizer, const std::vector<LastWordQuestion>& questions,
                                  const Share& share) {
  LastWordTally tally;
  for_each_mine(std::ssize(questions), share, [&](std::int64_t i) {
    const LastWordQuestion& question = questions[static_cast<std::size_t>(i)];
    const auto passage = make_passage(tokenizer, question.context, question.word, model.config().context, question.place);
    if (!passage) {
      ++tally.skipped;
      return;
    }
    const Score found = score(model, {&*passage, 1}).front();
    tally.acc.add(found.greedy ? 1 : 0);
    tally.log_likelihood.add(found.log_likelihood);
  });
  return tally;
}

}  // namespace scape
