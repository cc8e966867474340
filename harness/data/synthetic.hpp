// A built-in language for machines without text. Words are made of syllables and drawn with Zipf frequencies; a document has
// a topic that favours some of them, a few names that it repeats, sentences whose last word agrees with the first,
// and nested brackets. So a model can learn far below the unigram entropy, at short and at long range.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace scape {

class Rng;

class SyntheticLanguage {
 public:
  /// Invents the vocabulary: the same for the same seed, on every machine.
  explicit SyntheticLanguage(std::uint64_t seed);

  /// Document `index`, 2 to 8 KiB of printable ASCII and newlines. Depends on seed and index only.
  [[nodiscard]] std::string document(std::int64_t index) const;

 private:
  // A rank in [0, count), Zipf-distributed.
  [[nodiscard]] std::int64_t zipf(Rng& rng, std::int64_t count) const;

  std::uint64_t seed_;
  std::vector<std::string> words_;        // by rank, the most frequent first
  std::vector<std::int64_t> cumulative_;  // weights of words_, summed up
  std::vector<std::string> openers_;      // first words of sentences; closers_[i] ends what openers_[i] began
  std::vector<std::string> closers_;
  std::vector<std::string> names_;
};

}  // namespace scape
