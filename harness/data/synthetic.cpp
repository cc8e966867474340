#include "data/synthetic.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <set>
#include <string_view>

#include "scape/rng.hpp"

namespace scape {
namespace {

constexpr std::int64_t vocabulary = 2000;
constexpr std::int64_t function_words = 48;  // the most frequent words belong to no topic
constexpr std::int64_t topics = 16;
constexpr std::int64_t pairs = 24;  // of an opening and a closing word
constexpr std::int64_t names = 64;
constexpr int deepest = 3;  // nesting of brackets

std::string syllable(Rng& rng) {
  constexpr std::array<std::string_view, 20> onsets{"b", "d", "f", "g", "k",  "l",  "m",  "n",  "p",  "r",
                                                    "s", "t", "v", "z", "sh", "st", "tr", "kl", "br", "th"};
  constexpr std::array<std::string_view, 8> nuclei{"a", "e", "i", "o", "u", "ai", "ou", "ea"};
  constexpr std::array<std::string_view, 10> codas{"", "", "", "", "n", "r", "s", "l", "t", "nd"};
  std::string text(onsets[rng.below(onsets.size())]);
  text += nuclei[rng.below(nuclei.size())];
  text += codas[rng.below(codas.size())];
  return text;
}

// True in `percent` of a hundred cases.
bool happens(Rng& rng, std::uint64_t percent) {
  return rng.below(100) < percent;
}

std::int64_t between(Rng& rng, std::int64_t least, std::int64_t most) {
  return least + static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(most - least + 1)));
}

}  // namespace

SyntheticLanguage::SyntheticLanguage(std::uint64_t seed) : seed_(seed) {
  Rng rng(seed);
  std::set<std::string> used;
  const auto invent = [&](std::int64_t syllables) {
    std::string word;
    do {
      word.clear();
      for (std::int64_t i = 0; i < syllables; ++i) word += syllable(rng);
    } while (!used.insert(word).second);
    return word;
  };
  // Frequent words are short. Weights 1 / (rank + 3), in whole numbers so that every machine draws the same words.
  std::int64_t sum = 0;
  for (std::int64_t rank = 0; rank < vocabulary; ++rank) {
    words_.push_back(invent(rank < function_words ? 1 : between(rng, 2, rank < 400 ? 2 : 3)));
    cumulative_.push_back(sum += (std::int64_t{1} << 32) / (rank + 3));
  }
  for (std::int64_t i = 0; i < pairs; ++i) {
    openers_.push_back(invent(2));
    closers_.push_back(invent(2));
  }
  for (std::int64_t i = 0; i < names; ++i) {
    names_.push_back(invent(2));
    names_.back()[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(names_.back()[0])));
  }
}

std::int64_t SyntheticLanguage::zipf(Rng& rng, std::int64_t count) const {
  const auto end = cumulative_.begin() + count;
  const auto point = static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(*(end - 1))));
  return std::upper_bound(cumulative_.begin(), end, point) - cumulative_.begin();
}

std::string SyntheticLanguage::document(std::int64_t index) const {
  Rng rng(seed_, 1 + static_cast<std::uint64_t>(index));
  const std::int64_t topic = between(rng, 0, topics - 1);
  std::vector<std::string_view> cast;
  for (int i = 0; i < 3; ++i) cast.push_back(names_[rng.below(names)]);

  std::string text;
  std::int64_t previous = 0;  // rank of the latest word
  const auto word = [&] {
    if (happens(rng, 35)) {
      previous = (previous * 31 + 7) % vocabulary;  // the fixed companion of the previous word
    } else if (happens(rng, 45)) {
      previous = function_words + topic + topics * zipf(rng, (vocabulary - function_words) / topics);
    } else {
      previous = zipf(rng, vocabulary);
    }
    return words_[static_cast<std::size_t>(previous)];
  };
  const auto phrase = [&](const auto& self, int depth) -> void {
    for (std::int64_t left = depth == 0 ? between(rng, 4, 11) : between(rng, 2, 4); left > 0; --left) {
      if (depth < deepest && happens(rng, 8)) {
        const bool round = happens(rng, 50);
        text += round ? " (" : " [";
        text += word();
        self(self, depth + 1);
        text += round ? ')' : ']';
      } else {
        text += ' ';
        text += happens(rng, 12) ? std::string(cast[rng.below(cast.size())]) : word();
        if (left > 1 && happens(rng, 7)) text += ',';
      }
    }
  };

  const std::int64_t length = between(rng, 2048, 7168);
  while (std::ssize(text) < length) {
    for (std::int64_t sentences = between(rng, 3, 7); sentences > 0 && std::ssize(text) < length; --sentences) {
      const std::size_t pair = rng.below(pairs);
      if (!text.empty() && text.back() == '.') text += ' ';
      text += openers_[pair];
      phrase(phrase, 0);
      text += ' ' + closers_[pair] + '.';
    }
    text += "\n\n";
  }
  return text;
}

}  // namespace scape
