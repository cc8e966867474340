// The built-in language: the same text everywhere, printable, and with structure that a model can learn.
#include <gtest/gtest.h>
#include <zlib.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <string>

#include "data/synthetic.hpp"

namespace scape {
namespace {

// Nats per byte given the `order` bytes before, from the counts of the text itself.
double conditional_entropy(const std::string& text, std::size_t order) {
  std::map<std::string, std::map<char, double>> counts;
  for (std::size_t i = order; i < text.size(); ++i) counts[text.substr(i - order, order)][text[i]] += 1;
  double sum = 0;
  for (const auto& [context, next] : counts) {
    double total = 0;
    for (const auto& [byte, count] : next) total += count;
    for (const auto& [byte, count] : next) sum += count * std::log(total / count);
  }
  return sum / static_cast<double>(text.size() - order);
}

std::string documents(std::uint64_t seed, std::int64_t count) {
  const SyntheticLanguage language(seed);
  std::string text;
  for (std::int64_t i = 0; i < count; ++i) text += language.document(i);
  return text;
}

TEST(SyntheticLanguage, IsTheSameOnEveryMachine) {
  const std::string text = documents(1, 20);
  EXPECT_EQ(crc32_z(0, reinterpret_cast<const unsigned char*>(text.data()), text.size()), 4217717472U);
}

TEST(SyntheticLanguage, DependsOnSeedAndIndexOnly) {
  const SyntheticLanguage language(3);
  const std::string later = language.document(5);
  EXPECT_NE(language.document(4), later);
  EXPECT_EQ(SyntheticLanguage(3).document(5), later);
  EXPECT_NE(SyntheticLanguage(4).document(5), later);
}

TEST(SyntheticLanguage, IsPrintableAndOfDocumentedLength) {
  const SyntheticLanguage language(1);
  for (std::int64_t i = 0; i < 200; ++i) {
    const std::string text = language.document(i);
    EXPECT_GE(text.size(), 2048U);
    EXPECT_LE(text.size(), 8192U);
    for (const char c : text) ASSERT_TRUE(c == '\n' || (c >= ' ' && c <= '~')) << static_cast<int>(c);
  }
}

TEST(SyntheticLanguage, BracketsAreNestedAndClosed) {
  std::string open;
  std::size_t deepest = 0;
  for (const char c : documents(1, 50)) {
    if (c == '(' || c == '[') open += c;
    deepest = std::max(deepest, open.size());
    if (c == ')' || c == ']') {
      ASSERT_FALSE(open.empty());
      ASSERT_EQ(open.back(), c == ')' ? '(' : '[');
      open.pop_back();
    }
    ASSERT_TRUE(c != '.' || open.empty());
  }
  EXPECT_EQ(deepest, 3U);
}

// Whoever has read the first word of a sentence knows the last one.
TEST(SyntheticLanguage, LastWordAgreesWithTheFirst) {
  const std::string text = documents(1, 50);
  std::map<std::string, std::string> last_of;
  std::size_t begin = 0;
  for (std::size_t end = text.find('.'); end != std::string::npos; end = text.find('.', begin)) {
    const std::string first = text.substr(begin, text.find(' ', begin) - begin);
    const std::string last = text.substr(text.rfind(' ', end) + 1, end - text.rfind(' ', end) - 1);
    EXPECT_EQ(last_of.try_emplace(first, last).first->second, last) << first;
    begin = std::min(text.find_first_not_of(" \n", end + 1), text.size());
  }
  EXPECT_EQ(last_of.size(), 24U);
}

TEST(SyntheticLanguage, ShortContextAloneBeatsTheUnigramEntropy) {
  const std::string text = documents(1, 100);
  const double unigram = conditional_entropy(text, 0);
  EXPECT_GT(unigram, 2.5);
  EXPECT_LT(unigram, 3.1);
  EXPECT_LT(conditional_entropy(text, 3), 0.6 * unigram);
}

// A document keeps to its topic: of its words (longer than syllables) more recur inside it than in two halves of different
// documents.
TEST(SyntheticLanguage, DocumentsRepeatTheirOwnWords) {
  const SyntheticLanguage language(1);
  const auto words = [](const std::string& text) {
    std::map<std::string, int> found;
    std::string word;
    for (const char c : text) {
      if (std::isalpha(static_cast<unsigned char>(c))) {
        word += c;
      } else {
        if (word.size() > 5) ++found[word];
        word.clear();
      }
    }
    return found;
  };
  double inside = 0, across = 0;
  for (std::int64_t i = 0; i < 40; ++i) {
    const std::string text = language.document(i), other = language.document(i + 1);
    const auto first = words(text.substr(0, 1000)), second = words(text.substr(1000, 1000)),
               foreign = words(other.substr(1000, 1000));
    for (const auto& [word, count] : first) {
      inside += second.contains(word);
      across += foreign.contains(word);
    }
  }
  EXPECT_GT(inside, 1.5 * across);
}

}  // namespace
}  // namespace scape
