// Token streams: every window once per epoch, the same step for any number of ranks, nothing to save for a resume.
#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <set>

#include "data/token_stream.hpp"
#include "data/token_writer.hpp"
#include "data_support.hpp"

namespace scape {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using testing::TemporaryFolder;

using Ids = std::vector<std::int32_t>;

// Tokens that tell their place: training token i is i, validation token i is 100000 + i.
class Counting : public ::testing::Test {
 protected:
  static TokenFile make(std::int64_t train, std::int64_t validation) {
    const TemporaryFolder folder;
    TokenFileWriter writer(folder / "t", {.vocabulary = 1000000, .token_bytes = 4});
    Ids ids(static_cast<std::size_t>(train));
    std::iota(ids.begin(), ids.end(), 0);
    writer.add(Split::train, ids);
    ids.resize(static_cast<std::size_t>(validation));
    std::iota(ids.begin(), ids.end(), 100000);
    writer.add(Split::validation, ids);
    writer.finish();
    return TokenFile::open(folder / "t");
  }

  // First ids of the sequences of one rank's part of `step`, after checking that each sequence is consecutive.
  static Ids firsts(const TokenStream& stream, std::int64_t step, std::int64_t length, std::int64_t micro_batches = 1) {
    const std::int64_t sequences = stream.sequences_per_rank() / micro_batches;
    Ids found;
    for (std::int64_t m = 0; m < micro_batches; ++m) {
      Ids inputs(static_cast<std::size_t>(sequences * length)), targets(inputs.size());
      stream.batch(step, m, sequences, inputs, targets);
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        const auto in_sequence = static_cast<std::int64_t>(i) % length;
        if (in_sequence == 0) found.push_back(inputs[i]);
        EXPECT_EQ(inputs[i], found.back() + in_sequence);
        EXPECT_EQ(targets[i], inputs[i] + 1);
      }
    }
    return found;
  }
};

constexpr std::int64_t length = 7;
constexpr TokenStreamOptions options{.sequence_length = length, .global_batch = 24, .seed = 5};

TEST_F(Counting, StepIsTheSameForAnyNumberOfRanksAndMicroBatches) {
  const TokenFile file = make(3000, 500);
  for (const auto split : {Split::train, Split::validation}) {
    for (const std::int64_t step : {0, 1, 14, 15, 16, 40}) {  // an epoch has 374 windows: step 15 crosses into the next
      const Ids all = firsts(TokenStream(file, split, options, 0, 1), step, length);
      EXPECT_EQ(firsts(TokenStream(file, split, options, 0, 1), step, length, 8), all);
      for (const int ranks : {2, 3, 4, 8}) {
        Ids joined;
        for (int rank = 0; rank < ranks; ++rank) {
          const auto part = firsts(TokenStream(file, split, options, rank, ranks), step, length, ranks == 3 ? 4 : 3);
          joined.insert(joined.end(), part.begin(), part.end());
        }
        EXPECT_EQ(joined, all) << ranks;
      }
    }
  }
}

TEST_F(Counting, EpochVisitsEveryWindowOnceAndWindowsDoNotOverlap) {
  for (const std::int64_t train : {199, 200, 1000, 3001}) {
    const TokenFile file = make(train, 200);
    const TokenStream stream(file, Split::train, options, 0, 1);
    EXPECT_EQ(stream.windows(), (train - length) / (length + 1));
    std::set<std::int64_t> offsets;
    Ids order_before;
    for (std::int64_t epoch = 0; epoch < 12; ++epoch) {
      Ids order;
      for (std::int64_t i = epoch * stream.windows(); i < (epoch + 1) * stream.windows(); ++i) {
        order.push_back(static_cast<std::int32_t>(stream.window_begin(i / options.global_batch, i % options.global_batch)));
      }
      Ids sorted = order;
      std::sort(sorted.begin(), sorted.end());
      EXPECT_GE(sorted.front(), 0);
      EXPECT_LE(sorted.back() + length + 1, train);
      for (std::size_t i = 1; i < sorted.size(); ++i) ASSERT_EQ(sorted[i], sorted[i - 1] + length + 1);
      EXPECT_NE(order, sorted) << "not shuffled";
      EXPECT_NE(order, order_before) << "same order in two epochs";
      offsets.insert(sorted.front());
      order_before = order;
    }
    EXPECT_GE(offsets.size(), 4U) << "the offset hardly varies";
  }
}

TEST_F(Counting, NoTwoRanksShareATokenWithinAnEpoch) {
  const TokenFile file = make(4000, 200);
  for (const int ranks : {1, 2, 3, 4, 8}) {
    std::set<std::int32_t> seen;
    std::int64_t drawn = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const TokenStream stream(file, Split::train, options, rank, ranks);
      for (std::int64_t step = 0; step < stream.steps_per_epoch(); ++step) {
        for (const auto first : firsts(stream, step, length)) {
          for (std::int32_t i = 0; i <= length; ++i) seen.insert(first + i);
          drawn += length + 1;
        }
      }
    }
    EXPECT_EQ(std::ssize(seen), drawn) << ranks;
  }
}

// In a random order about one neighbouring pair in `windows` stays together, and positions and windows are uncorrelated.
TEST_F(Counting, OrderLooksRandom) {
  const TokenStream stream(make(40000, 200), Split::train, {.sequence_length = 7, .global_batch = 1, .seed = 2}, 0, 1);
  const auto n = static_cast<double>(stream.windows());
  double neighbours = 0, covariance = 0;
  std::int64_t previous = -1;
  for (std::int64_t i = 0; i < stream.windows(); ++i) {
    const std::int64_t window = stream.window_begin(i, 0) / (length + 1);
    if (previous >= 0) neighbours += std::abs(window - previous) == 1;
    covariance += (static_cast<double>(i) / n - 0.5) * (static_cast<double>(window) / n - 0.5) / n;
    previous = window;
  }
  EXPECT_LT(neighbours, 12);                               // 2 expected
  EXPECT_LT(std::abs(covariance) * 12, 5 / std::sqrt(n));  // five standard deviations
}

TEST_F(Counting, ResumeNeedsOnlyTheStepNumber) {
  const TokenFile file = make(3000, 500);
  for (int rank = 0; rank < 2; ++rank) {
    const TokenStream stream(file, Split::train, options, rank, 2);
    std::vector<std::uint32_t> running{0};
    for (std::int64_t step = 0; step < 20; ++step) running.push_back(stream.hash(step, running.back()));
    const TokenStream resumed(file, Split::train, options, rank, 2);
    std::uint32_t hash = running[10];
    for (std::int64_t step = 10; step < 20; ++step) hash = resumed.hash(step, hash);
    EXPECT_EQ(hash, running[20]);
    EXPECT_NE(stream.hash(3), stream.hash(4));
    EXPECT_NE(stream.hash(3), TokenStream(file, Split::train, options, 1 - rank, 2).hash(3));
  }
}

// The order is part of what a run file promises to repeat: it must not change by accident.
TEST_F(Counting, OrderIsTheSameOnEveryMachine) {
  const TokenStream stream(make(3000, 500), Split::train, options, 0, 1);
  EXPECT_EQ(stream.hash(17, stream.hash(0)), 3575201257U);
}

TEST_F(Counting, SeedChangesTrainingOrderButNotValidation) {
  const TokenFile file = make(3000, 500);
  auto other = options;
  other.seed = 6;
  EXPECT_NE(TokenStream(file, Split::train, options, 0, 1).hash(0), TokenStream(file, Split::train, other, 0, 1).hash(0));
  const TokenStream validation(file, Split::validation, options, 0, 1);
  EXPECT_EQ(validation.hash(1), TokenStream(file, Split::validation, other, 0, 1).hash(1));
  EXPECT_EQ(validation.steps_per_epoch(), 62 / 24);
  std::set<std::int32_t> seen;
  for (std::int64_t i = 0; i < 62; ++i) seen.insert(static_cast<std::int32_t>(validation.window_begin(i / 24, i % 24)));
  EXPECT_EQ(seen.size(), 62U);
  EXPECT_EQ(*seen.rbegin(), 61 * 8);
}

TEST_F(Counting, TooFewTokensSaysHowManyAreNeeded) {
  const auto attempt = [](std::int64_t train, std::int64_t validation, Split split) {
    TokenStream(make(train, validation), split, options, 0, 1);
  };
  EXPECT_NO_THROW(attempt(199, 192, Split::train));
  EXPECT_NO_THROW(attempt(199, 192, Split::validation));
  const auto message = message_of(ErrorKind::input, [&] { attempt(198, 192, Split::train); });
  EXPECT_THAT(message, HasSubstr("198 tokens in the train split, 199 needed"));
  EXPECT_THAT(message_of(ErrorKind::input, [&] { attempt(199, 191, Split::validation); }),
              HasSubstr("191 tokens in the validation split, 192 needed"));
  EXPECT_THAT(message_of(ErrorKind::input, [&] { attempt(1, 1, Split::train); }), HasSubstr("1 tokens"));
}

TEST_F(Counting, ImpossibleArgumentsAreRefused) {
  const TokenFile file = make(3000, 500);
  EXPECT_THAT(message_of(ErrorKind::usage, [&] { TokenStream(file, Split::train, options, 0, 5); }), HasSubstr("24 sequences"));
  EXPECT_THAT(message_of(ErrorKind::usage, [&] { TokenStream(file, Split::train, options, 2, 2); }), HasSubstr("rank"));
  const TokenStream stream(file, Split::train, options, 0, 2);
  Ids inputs(6 * 7), targets(6 * 7);
  EXPECT_NO_THROW(stream.batch(0, 1, 6, inputs, targets));
  EXPECT_THAT(message_of(ErrorKind::usage, [&] { stream.batch(0, 2, 6, inputs, targets); }), HasSubstr("micro-batch"));
  EXPECT_THAT(message_of(ErrorKind::usage, [&] { stream.batch(0, 0, 5, inputs, targets); }), HasSubstr("size"));
  EXPECT_THAT(message_of(ErrorKind::usage, [&] { stream.batch(-1, 0, 6, inputs, targets); }), HasSubstr("sequence"));
}

}  // namespace
}  // namespace scape
