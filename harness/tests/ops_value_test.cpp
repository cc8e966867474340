// Operators on inputs small enough to work out by hand, and the accuracy of the vectorised exponential.
#include <sys/mman.h>

#include <bit>
#include <limits>
#include <numbers>
#include <numeric>

#include "message_of.hpp"
#include "model_test_support.hpp"
#include "ops/activation.hpp"
#include "ops/attention.hpp"
#include "ops/bf16.hpp"
#include "ops/cpu/loops.hpp"
#include "ops/cross_entropy.hpp"
#include "ops/embedding.hpp"
#include "ops/matmul.hpp"
#include "ops/norm.hpp"
#include "ops/rotary.hpp"
#include "ops/threads.hpp"

namespace scape {
namespace {

TEST(OpsValue, ExponentialIsWithinTwoUlps) {
  double worst = 0;
  for (std::int32_t i = -86'999; i <= 87'999; ++i) {
    const float x = static_cast<float>(i) * 1e-3F;
    const float exact = static_cast<float>(std::exp(static_cast<double>(x)));
    const float ulp = std::nextafter(exact, INFINITY) - exact;
    worst = std::max(worst, std::abs(static_cast<double>(ops::exponential(x)) - std::exp(static_cast<double>(x))) / ulp);
  }
  EXPECT_LT(worst, 2);
  EXPECT_EQ(ops::exponential(0.0F), 1.0F);
  EXPECT_EQ(ops::exponential(-INFINITY), ops::exponential(-87.0F));
  EXPECT_EQ(ops::exponential(INFINITY), ops::exponential(88.0F));
  EXPECT_TRUE(std::isnan(ops::exponential(NAN)));
}

TEST(OpsValue, LinearAddsBiasAndTransposesTheWeight) {
  const Floats x{1, 2};
  const Floats w{10, 20, 30, 40, 50, 60};  // [3, 2]
  const Floats bias{1, 2, 3};
  Floats y(3);
  const Stream stream;
  ops::linear_forward(span_of(y), span_of(x), span_of(w), span_of(bias), {1, 2, 3}, ops::Write::assign, stream);
  EXPECT_EQ(y, (Floats{51, 112, 173}));
  ops::linear_forward(span_of(y), span_of(x), span_of(w), Span<const float>(), {1, 2, 3}, ops::Write::add, stream);
  EXPECT_EQ(y, (Floats{101, 222, 343}));
}

TEST(OpsValue, Bf16RoundsToNearestEven) {
  const auto bits = [](float value) {
    std::vector<ops::Bf16> narrow(1);
    const Floats wide{value};
    ops::narrow(std::span(narrow), span_of(wide), Stream());
    return narrow[0].bits;
  };
  EXPECT_EQ(bits(1.0F), 0x3F80);
  EXPECT_EQ(bits(-2.0F), 0xC000);
  EXPECT_EQ(bits(1.0F + 0x1p-8F), 0x3F80) << "a tie goes to the even one";
  EXPECT_EQ(bits(1.0F + 0x3p-8F), 0x3F82);
  EXPECT_EQ(bits(1.0F + 0x1p-8F + 0x1p-23F), 0x3F81);
  EXPECT_EQ(bits(-0.0F), 0x8000);
  EXPECT_EQ(bits(0x1p-133F), 0x0001) << "the smallest subnormal";
  EXPECT_EQ(bits(INFINITY), 0x7F80);
  EXPECT_EQ(bits(std::numeric_limits<float>::max()), 0x7F80);
  for (const std::uint32_t nan : {0x7F800001U, 0xFFFFFFFFU, 0x7FC00000U}) {
    const auto narrow = static_cast<std::uint32_t>(bits(std::bit_cast<float>(nan))) << 16;
    EXPECT_TRUE(std::isnan(std::bit_cast<float>(narrow)));
  }
}

// Products of bfloat16 are exact in fp32, and so are sums of few: the result is that of the rounded factors.
TEST(OpsValue, LinearInBf16SumsInFp32) {
  if (!ops::bf16_products(cpu_device)) GTEST_SKIP() << "no bfloat16 products on this processor";
  const ops::LinearShape shape{5, 70, 11};
  const auto narrowed = [](const Floats& values) {
    std::vector<ops::Bf16> narrow(values.size());
    ops::narrow(std::span(narrow), span_of(values), Stream());
    return narrow;
  };
  const auto widened = [](const std::vector<ops::Bf16>& narrow) {
    Floats wide;
    for (const ops::Bf16 value : narrow) wide.push_back(std::bit_cast<float>(std::uint32_t{value.bits} << 16));
    return wide;
  };
  const auto x = narrowed(random_floats(5 * 70, 1));
  const auto w = narrowed(random_floats(11 * 70, 2));
  const auto dy = narrowed(random_floats(5 * 11, 3));
  const Floats bias = random_floats(11, 4);
  const Floats wide_x = widened(x);
  const Floats wide_w = widened(w);
  const Floats wide_dy = widened(dy);
  const auto span = [](const std::vector<ops::Bf16>& values) { return Span<const ops::Bf16>(std::span(values)); };
  const Stream stream;
  for (const ops::Write write : {ops::Write::assign, ops::Write::add}) {
    Floats y(5 * 11, 0.125F);
    Floats expected = y;
    ops::linear_forward(span_of(y), span(x), span(w), span_of(bias), shape, write, stream);
    ops::linear_forward(span_of(expected), span_of(wide_x), span_of(wide_w), span_of(bias), shape, write, stream);
    EXPECT_LT(relative_distance(y, expected), 1e-6);
  }
  Floats dx(5 * 70);
  Floats expected_dx(5 * 70);
  ops::linear_backward_input(span_of(dx), span(dy), span(w), shape, stream);
  ops::linear_backward_input(span_of(expected_dx), span_of(wide_dy), span_of(wide_w), shape, stream);
  EXPECT_LT(relative_distance(dx, expected_dx), 1e-6);
  Floats dw(11 * 70, 0x1p-20F);  // too small to survive in a bfloat16 sum
  Floats expected_dw = dw;
  ops::linear_backward_weight(span_of(dw), span(dy), span(x), shape, stream);
  ops::linear_backward_weight(span_of(expected_dw), span_of(wide_dy), span_of(wide_x), shape, stream);
  EXPECT_LT(relative_distance(dw, expected_dw), 1e-6);
}

TEST(OpsValue, LayerNormAndRmsNorm) {
  const Floats x{1, 3, 5, 7};  // mean 4, variance 5, mean square 21
  const Floats scale{1, 1, 2, 1};
  const Floats shift{0, 10, 0, 0};
  Floats y(4);
  Floats normalised(4);
  Floats inverse(1);
  const Stream stream;
  ops::norm_forward(span_of(y), span_of(normalised), span_of(inverse), span_of(x), span_of(scale), span_of(shift), {1, 4, true, 0},
                    stream);
  const float r = 1 / std::sqrt(5.0F);
  const Floats centred{-3 * r, -r + 10, 2 * r, 3 * r};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_FLOAT_EQ(y[i], centred[i]);
  ops::norm_forward(span_of(y), span_of(normalised), span_of(inverse), span_of(x), span_of(scale), Span<const float>(),
                    {1, 4, false, 4},
                    stream);  // epsilon 4: 1/√25
  for (std::size_t i = 0; i < 4; ++i) EXPECT_FLOAT_EQ(y[i], x[i] / 5 * scale[i]);
}

TEST(OpsValue, Gelu) {
  const Floats x{0, 1, -1, 20, -20};
  Floats y(5);
  ops::gelu_forward(span_of(y), span_of(x), Stream());
  EXPECT_EQ(y[0], 0);
  for (std::size_t i = 1; i < 5; ++i) {
    const double v = x[i];
    const double expected = v / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (v + 0.044715 * v * v * v)));
    EXPECT_NEAR(y[i], expected, 1e-6);
  }
  EXPECT_NEAR(y[1], 0.841192, 1e-6);  // as published for the tanh form; the exact GELU has 0.841345
}

TEST(OpsValue, Swiglu) {
  const Floats x{2, -1, 3, 5};  // gate 2, −1; up 3, 5
  Floats y(2);
  ops::swiglu_forward(span_of(y), span_of(x), 1, 2, Stream());
  EXPECT_NEAR(y[0], 2 / (1 + std::exp(-2.0)) * 3, 1e-6);
  EXPECT_NEAR(y[1], -1 / (1 + std::exp(1.0)) * 5, 1e-6);
}

TEST(OpsValue, RotaryTurnsHalvesAgainstEachOther) {
  // Base 4, size 4: angles p and p/2 for the pairs (0, 2) and (1, 3).
  Floats cosine(2 * 2);
  Floats sine(2 * 2);
  ops::rotary_table(span_of(cosine), span_of(sine), 2, 4, 4.0);
  Floats x{1, 2, 3, 4, 1, 0, 0, 2};  // positions 0 and 1
  ops::rotary_forward(span_of(x), span_of(cosine), span_of(sine), {1, 2, 1, 4, 4}, Stream());
  const Floats expected{1, 2, 3, 4, std::cos(1.0F), -2 * std::sin(0.5F), std::sin(1.0F), 2 * std::cos(0.5F)};
  for (std::size_t i = 0; i < 8; ++i) EXPECT_NEAR(x[i], expected[i], 1e-6) << i;
}

// Attention with memory of its own.
struct Attention {
  ops::AttentionShape shape;
  Floats out, kept, scratch, dqkv;

  explicit Attention(const ops::AttentionShape& s)
      : shape(s),
        out(static_cast<std::size_t>(s.sequences * s.length * s.width())),
        kept(static_cast<std::size_t>(s.kept())),
        scratch(static_cast<std::size_t>(s.scratch()), NAN),
        dqkv(static_cast<std::size_t>(s.sequences * s.length * s.qkv_width()), NAN) {}
  void forward(const Floats& qkv) {
    ops::attention_forward(span_of(out), span_of(kept), span_of(scratch), span_of(qkv), shape, Stream());
  }
  void backward(const Floats& qkv, const Floats& dout) {
    ops::attention_backward(span_of(dqkv), span_of(dout), span_of(out), span_of(qkv), span_of(kept), span_of(scratch), shape,
                            Stream());
  }
};

TEST(OpsValue, AttentionOverTwoPositions) {
  // One head of size 1: q = 1, 2; k = 1, 3; v = 10, 20. Row 1: softmax(2, 6).
  Attention attention({1, 2, 1, 1, 1});
  attention.forward({1, 1, 10, 2, 3, 20});
  const float first = 1 / (1 + std::exp(4.0F));
  EXPECT_FLOAT_EQ(attention.out[0], 10);
  EXPECT_NEAR(attention.out[1], 10 * first + 20 * (1 - first), 1e-5);
  EXPECT_EQ(attention.kept[1], 0) << "the future has no weight";
}

TEST(OpsValue, AttentionScalesByTheRootOfTheHeadSize) {
  // Head size 4, scores 2·4·1 / √4 = 4 and 0.
  Attention attention({1, 2, 1, 1, 4});
  attention.forward({0, 0, 0, 0, 2, 2, 2, 2, 1, 0, 0, 0, /**/ 1, 1, 1, 1, 0, 0, 0, 0, 0, 1, 0, 0});
  EXPECT_NEAR(attention.kept[2], 1 / (1 + std::exp(-4.0)), 1e-6);
  EXPECT_NEAR(attention.out[4], attention.kept[2], 1e-6);
  EXPECT_NEAR(attention.out[5], attention.kept[3], 1e-6);
}

// The formulas of attention.hpp in double, row by row, with the whole matrix P.
void plain_attention(const ops::AttentionShape& shape, const Floats& qkv, const Floats& dout, Floats& out, Floats& dqkv) {
  const auto [sequences, length, heads, kv_heads, size] = shape;
  const double factor = 1 / std::sqrt(static_cast<double>(size));
  std::vector<double> gradient(qkv.size());
  const auto at = [&, heads = heads, kv_heads = kv_heads, size = size](std::int64_t token, int part, std::int64_t head) {
    const std::int64_t first[] = {head, heads + head * kv_heads / heads, heads + kv_heads + head * kv_heads / heads};
    return static_cast<std::size_t>((token * (heads + 2 * kv_heads) + first[part]) * size);
  };
  for (std::int64_t i = 0; i < sequences * length; ++i) {
    const std::int64_t begin = i - i % length;
    for (std::int64_t head = 0; head < heads; ++head) {
      const std::size_t q = at(i, 0, head);
      const auto o = static_cast<std::size_t>((i * heads + head) * size);
      std::vector<double> p;
      double total = 0;
      for (std::int64_t j = begin; j <= i; ++j) {
        double score = 0;
        for (std::size_t d = 0; d < static_cast<std::size_t>(size); ++d) score += qkv[q + d] * double{qkv[at(j, 1, head) + d]};
        p.push_back(std::exp(factor * score));
        total += p.back();
      }
      std::vector<double> dp(p.size());
      double mean = 0;
      for (std::size_t j = 0; j < p.size(); ++j) {
        p[j] /= total;
        const std::size_t v = at(begin + static_cast<std::int64_t>(j), 2, head);
        for (std::size_t d = 0; d < static_cast<std::size_t>(size); ++d) {
          out[o + d] += static_cast<float>(p[j] * qkv[v + d]);
          gradient[v + d] += p[j] * dout[o + d];
          dp[j] += double{dout[o + d]} * qkv[v + d];
        }
        mean += p[j] * dp[j];
      }
      for (std::size_t j = 0; j < p.size(); ++j) {
        const double ds = factor * p[j] * (dp[j] - mean);
        const std::size_t k = at(begin + static_cast<std::int64_t>(j), 1, head);
        for (std::size_t d = 0; d < static_cast<std::size_t>(size); ++d) {
          gradient[q + d] += ds * qkv[k + d];
          gradient[k + d] += ds * qkv[q + d];
        }
      }
    }
  }
  dqkv.assign(gradient.begin(), gradient.end());
}

void expect_plain_attention(const ops::AttentionShape& shape, float deviation, double tolerance) {
  SCOPED_TRACE("length " + std::to_string(shape.length) + ", kv_heads " + std::to_string(shape.kv_heads));
  const Floats qkv = random_floats(shape.sequences * shape.length * shape.qkv_width(), 7, deviation);
  const Floats dout = random_floats(shape.sequences * shape.length * shape.width(), 8);
  Floats out(dout.size());
  Floats dqkv;
  plain_attention(shape, qkv, dout, out, dqkv);
  Attention attention(shape);
  attention.forward(qkv);
  attention.backward(qkv, dout);
  EXPECT_LT(relative_distance(attention.out, out), tolerance);
  EXPECT_LT(relative_distance(attention.dqkv, dqkv), tolerance);
}

// One block, its edge, several blocks, odd lengths; scores up to about 60.
TEST(OpsValue, AttentionInBlocksIsPlainAttention) {
  constexpr std::int64_t block = ops::AttentionShape::block;
  for (const std::int64_t length : {block - 1, block, block + 1, 2 * block, 2 * block + 7}) {
    for (const std::int64_t kv_heads : {length == block + 1 ? 4 : 1, 2}) {
      expect_plain_attention({2, length, 4, kv_heads, 6}, 2.5F, 2e-6);
    }
  }
}

// Scores of several hundred, where one block may outweigh another by more than fp32 can hold.
TEST(OpsValue, AttentionInBlocksDoesNotOverflow) {
  expect_plain_attention({1, 2 * ops::AttentionShape::block + 7, 4, 2, 6}, 8.0F, 2e-4);
}

TEST(OpsValue, AttentionMemoryGrowsWithTheLength) {
  const auto memory = [](std::int64_t length) {
    const ops::AttentionShape shape{2, length, 16, 4, 64};
    return shape.kept() + shape.scratch();
  };
  EXPECT_EQ(memory(4096) - memory(2048), 2 * 16 * 2048) << "one number per query and head";
}

TEST(OpsValue, CrossEntropy) {
  const Floats logits{0, 0, 0, 0, std::log(3.0F), 0};  // log 3 − 0;  log 5 − log 3
  const std::vector<std::int32_t> targets{1, 1};
  Floats losses(2);
  double loss = 0;
  const Span<double> loss_span{std::span<double>(&loss, 1)};
  ops::cross_entropy_forward(loss_span, span_of(losses), span_of(logits), span_of(targets), 2, 3, Stream());
  EXPECT_NEAR(loss, (std::log(3.0) + std::log(5.0 / 3)) / 2, 1e-7);
  Floats gradient = logits;
  ops::cross_entropy_forward_backward(loss_span, span_of(losses), span_of(gradient), span_of(targets), 2, 3, 1.0, Stream());
  const Floats expected{1.0F / 6, -1.0F / 3, 1.0F / 6, 0.1F, -0.2F, 0.1F};
  for (std::size_t i = 0; i < 6; ++i) EXPECT_NEAR(gradient[i], expected[i], 1e-7) << i;
  const Floats far{200, 0, 0, -200, 0, 0};  // no overflow, no NaN
  ops::cross_entropy_forward(loss_span, span_of(losses), span_of(far), span_of(targets), 2, 3, Stream());
  EXPECT_NEAR(loss, (200 + std::log(2.0)) / 2, 1e-5);
}

TEST(OpsValue, IdsOutsideTheVocabularyAreRefused) {
  const Floats tokens(6);
  Floats x(4);
  for (const std::int32_t bad : {-1, 3}) {
    const std::vector<std::int32_t> ids{0, bad};
    const auto embed = [&] {
      ops::embedding_forward(span_of(x), span_of(ids), span_of(tokens), Span<const float>(), {1, 2, 2, 3}, Stream());
    };
    EXPECT_EQ(testing::message_of(ErrorKind::input, embed),
              "token id " + std::to_string(bad) + " at position 1 of the batch is outside the vocabulary of 3");
  }
}

// A table of more than 2^31 elements, of which only the pages that are touched exist.
TEST(OpsValue, EmbeddingReachesBeyond32Bits) {
  constexpr std::int64_t width = 1024;
  constexpr std::int64_t vocab = (std::int64_t{1} << 21) + 8;
  constexpr std::size_t bytes = static_cast<std::size_t>(width * vocab) * sizeof(float);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "no " << bytes << " bytes of address space";
  const Span<float> table(static_cast<float*>(memory), width * vocab, cpu_device);
  float* last = table.data() + (vocab - 1) * width;
  std::iota(last, last + width, 1.0F);
  const std::vector<std::int32_t> ids{vocab - 1, 3};
  Floats x(2 * width);
  ops::embedding_forward(span_of(x), span_of(ids), table, Span<const float>(), {1, 2, width, vocab}, Stream());
  EXPECT_TRUE(std::equal(last, last + width, x.begin()));
  EXPECT_EQ(x[width], 0);
  ops::embedding_backward(table, Span<float>(), span_of(x), span_of(ids), {1, 2, width, vocab}, Stream());
  EXPECT_EQ(last[width - 1], 2 * width);
  munmap(memory, bytes);
}

TEST(OpsValue, ThreadsAreCounted) {
  EXPECT_THROW(ops::set_threads(0, Stream()), Error);
}

}  // namespace
}  // namespace scape
