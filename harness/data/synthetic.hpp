// A built-in language for machines without text. Words are made of syllables and drawn with Zipf frequencies; a document has
// a topic that favours some of them, a few names that it repeats, sentences whose last word agrees with the first,
// and nested brackets. So a model can learn far below the unigram entropy, at short and at long range.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace scape {

class SyntheticLanguage {
 public:
  /// Invents the vocabulary: the same for the same seed, on every machine.
  explicit SyntheticLanguage(std::uint64_t seed);

  /// Document `index`, 2 to 8 KiB of printable ASCII and newlines. Depends on seed and index only.
  [[nodiscard]] std::string document(std::int64_t index) const;

 private:
  std::uint64_t seed_;
  std::vector<std::string> words_;  // by rank: the most frequent first
  std::vector<std::string> names_;
  std::vector<std::int64_t> cumulative_;  // Zipf weights of words_, summed up (integers: no rounding differs)
};

}  // namespace scape
