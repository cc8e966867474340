#include "evaluate/score.hpp"

#include <algorithm>
#include <cmath>

#include "scape/error.hpp"

namespace scape {

std::optional<Passage> make_passage(const Tokenizer& tokenizer, std::string_view context, std::string_view continuation,
                                    std::int64_t longest, const std::string& place) {
  const std::size_t end = context.find_last_not_of(" \t\n\r") + 1;
  const std::string whole = std::string(context) + std::string(continuation);
  Passage passage{tokenizer.encode(context.substr(0, end)), 0};
  if (passage.ids.empty() && tokenizer.end_token() >= 0) passage.ids.push_back(tokenizer.end_token());  // where a document begins
  if (passage.ids.empty()) throw Error(ErrorKind::input, place + ": there is no text before the one to score");
  const std::vector<std::int32_t> ids = tokenizer.encode(whole);
  const auto known = std::min(ids.size(), end == 0 ? 0 : passage.ids.size());
  passage.ids.insert(passage.ids.end(), ids.begin() + static_cast<std::ptrdiff_t>(known), ids.end());
  passage.scored = std::ssize(ids) - static_cast<std::int64_t>(known);
  if (passage.scored < 1 || passage.scored > longest) return std::nullopt;
  const std::int64_t surplus = std::ssize(passage.ids) - longest - 1;
  if (surplus > 0) passage.ids.erase(passage.ids.begin(), passage.ids.begin() + surplus);
  return passage;
}

std::vector<Score> score(Model& model, std::span<const Passage> passages) {
  // Rows of one length: what follows a passage changes nothing in it. The last token is only a target.
  std::size_t length = 0;
  for (const Passage& passage : passages) length = std::max(length, passage.ids.size() - 1);
  std::vector<std::int32_t> inputs(passages.size() * length);
  for (std::size_t i = 0; i < passages.size(); ++i) {
    std::copy(passages[i].ids.begin(), passages[i].ids.end() - 1, inputs.begin() + static_cast<std::ptrdiff_t>(i * length));
  }
  const auto vocab = static_cast<std::size_t>(model.config().vocab);
  std::vector<float> logits(inputs.size() * vocab);
  const Stream stream;
  model.logits({std::span<const std::int32_t>(inputs), {}, std::ssize(passages), static_cast<std::int64_t>(length)},
               std::span<float>(logits), stream);
  stream.synchronize();

  std::vector<Score> scores;
  for (std::size_t i = 0; i < passages.size(); ++i) {
    const Passage& passage = passages[i];
    Score& score = scores.emplace_back();
    for (std::size_t at = passage.ids.size() - static_cast<std::size_t>(passage.scored); at < passage.ids.size(); ++at) {
      const auto row = std::span(logits).subspan((i * length + at - 1) * vocab, vocab);
      const auto largest = std::ranges::max_element(row);
      double sum = 0;
      for (const float z : row) sum += std::exp(static_cast<double>(z) - *largest);
      score.log_likelihood += static_cast<double>(row[static_cast<std::size_t>(passage.ids[at])]) - *largest - std::log(sum);
      score.greedy = score.greedy && largest - row.begin() == passage.ids[at];
    }
    require(std::isfinite(score.log_likelihood), ErrorKind::input, "the model's logits are not finite");
  }
  return scores;
}

}  // namespace scape
