// Every operator's backward pass against central differences of its forward pass. The scalar is f = Σ weight · output with
// random weights, so dy is `weight`; gradients that accumulate start from a known value and must keep it.
#include "model_test_support.hpp"
#include "ops/activation.hpp"
#include "ops/attention.hpp"
#include "ops/cross_entropy.hpp"
#include "ops/embedding.hpp"
#include "ops/matmul.hpp"
#include "ops/norm.hpp"
#include "ops/rotary.hpp"

namespace scape {
namespace {

constexpr float before = 0.25F;  // what accumulated gradients hold at first

Floats filled(std::int64_t count) {
  return Floats(static_cast<std::size_t>(count), before);
}
Floats without_first(Floats gradient) {
  for (float& g : gradient) g -= before;
  return gradient;
}

TEST(OpsGradient, Linear) {
  const ops::LinearShape shape{5, 7, 11};
  const Stream stream;
  Floats x = random_floats(5 * 7, 1);
  Floats w = random_floats(11 * 7, 2);
  Floats bias = random_floats(11, 3);
  const Floats start = random_floats(5 * 11, 4);
  const Floats weight = random_floats(5 * 11, 5);
  for (const ops::Write write : {ops::Write::assign, ops::Write::add}) {
    const auto f = [&] {
      Floats y = start;
      ops::linear_forward(span_of(y), span_of(x), span_of(w), span_of(bias), shape, write, stream);
      return inner(y, weight);
    };
    Floats dx(x.size());
    Floats dw = filled(11 * 7);
    Floats dbias = filled(11);
    ops::linear_backward_input(span_of(dx), span_of(weight), span_of(w), shape, stream);
    ops::linear_backward_weight(span_of(dw), span_of(weight), span_of(x), shape, stream);
    ops::linear_backward_bias(span_of(dbias), span_of(weight), shape, stream);
    expect_gradient(x, dx, f, "dx");
    expect_gradient(w, without_first(dw), f, "dw");
    expect_gradient(bias, without_first(dbias), f, "dbias");
  }
}

class NormGradient : public ::testing::TestWithParam<std::pair<bool, bool>> {};  // centred, with shift

TEST_P(NormGradient, MatchesDifferences) {
  const auto [centred, with_shift] = GetParam();
  const ops::NormShape shape{4, 19, centred, 1e-2F};  // an epsilon large enough to matter
  const Stream stream;
  Floats x = random_floats(4 * 19, 1);
  Floats scale = random_floats(19, 2);
  Floats shift = with_shift ? random_floats(19, 3) : Floats{};
  const Floats weight = random_floats(4 * 19, 4);
  Floats y(x.size());
  Floats normalised(x.size());
  Floats inverse(4);
  const auto f = [&] {
    ops::norm_forward(span_of(y), span_of(normalised), span_of(inverse), span_of(x), span_of(scale), span_of(shift), shape, stream);
    return inner(y, weight);
  };
  f();
  Floats dx = filled(4 * 19);
  Floats dscale = filled(19);
  Floats dshift = with_shift ? filled(19) : Floats{};
  ops::norm_backward(span_of(dx), span_of(dscale), span_of(dshift), span_of(weight), span_of(normalised), span_of(inverse),
                     span_of(scale), shape, stream);
  expect_gradient(x, without_first(dx), f, "dx");
  expect_gradient(scale, without_first(dscale), f, "dscale");
  if (with_shift) expect_gradient(shift, without_first(dshift), f, "dshift");
}

INSTANTIATE_TEST_SUITE_P(All, NormGradient,
                         ::testing::Values(std::pair{true, true}, std::pair{true, false}, std::pair{false, true},
                                           std::pair{false, false}));

TEST(OpsGradient, Gelu) {
  const Stream stream;
  Floats x = random_floats(101, 1, 2.0F);
  const Floats weight = random_floats(101, 2);
  const auto f = [&] {
    Floats y(x.size());
    ops::gelu_forward(span_of(y), span_of(x), stream);
    return inner(y, weight);
  };
  Floats dx = weight;
  ops::gelu_backward(span_of(dx), span_of(dx), span_of(x), stream);  // in place
  expect_gradient(x, dx, f, "dx");
}

TEST(OpsGradient, Swiglu) {
  const Stream stream;
  Floats x = random_floats(3 * 2 * 21, 1, 2.0F);
  const Floats weight = random_floats(3 * 21, 2);
  const auto f = [&] {
    Floats y(weight.size());
    ops::swiglu_forward(span_of(y), span_of(x), 3, 21, stream);
    return inner(y, weight);
  };
  Floats dx(x.size());
  ops::swiglu_backward(span_of(dx), span_of(weight), span_of(x), 3, 21, stream);
  expect_gradient(x, dx, f, "dx");
}

TEST(OpsGradient, Rotary) {
  const ops::RotaryShape shape{2, 5, 3, 6, 3 * 6 + 4};  // four more elements per row, which must not turn
  const Stream stream;
  Floats cosine(5 * 3);
  Floats sine(5 * 3);
  ops::rotary_table(span_of(cosine), span_of(sine), 5, 6, 100.0);
  Floats x = random_floats(10 * 22, 1);
  const Floats weight = random_floats(10 * 22, 2);
  const auto f = [&] {
    Floats y = x;
    ops::rotary_forward(span_of(y), span_of(cosine), span_of(sine), shape, stream);
    return inner(y, weight);
  };
  Floats dx = weight;
  ops::rotary_backward(span_of(dx), span_of(cosine), span_of(sine), shape, stream);
  expect_gradient(x, dx, f, "dx");
  for (std::size_t i = 18; i < 22; ++i) EXPECT_EQ(dx[i], weight[i]);
}

class AttentionGradient : public ::testing::TestWithParam<std::int64_t> {};  // kv_heads

TEST_P(AttentionGradient, MatchesDifferences) {
  const ops::AttentionShape shape{2, 7, 6, GetParam(), 5};
  const Stream stream;
  Floats qkv = random_floats(14 * shape.qkv_width(), 1);
  const Floats weight = random_floats(14 * shape.width(), 2);
  Floats out(weight.size());
  Floats kept(static_cast<std::size_t>(shape.kept()));
  Floats scratch(static_cast<std::size_t>(shape.scratch()), 1e6F);
  const auto f = [&] {
    ops::attention_forward(span_of(out), span_of(kept), span_of(scratch), span_of(qkv), shape, stream);
    return inner(out, weight);
  };
  f();
  Floats dqkv(qkv.size(), 1e6F);  // written, not added to
  ops::attention_backward(span_of(dqkv), span_of(weight), span_of(out), span_of(qkv), span_of(kept), span_of(scratch), shape,
                          stream);
  expect_gradient(qkv, dqkv, f, "dqkv");
}

INSTANTIATE_TEST_SUITE_P(KvHeads, AttentionGradient, ::testing::Values(6, 3, 2, 1));

TEST(OpsGradient, Embedding) {
  const ops::EmbeddingShape shape{2, 4, 6, 5};
  const Stream stream;
  const std::vector<std::int32_t> ids{1, 1, 4, 0, 2, 1, 4, 4};  // repeats add up; 3 never occurs
  Floats tokens = random_floats(5 * 6, 1);
  Floats positions = random_floats(7 * 6, 2);  // longer than the sequences
  const Floats weight = random_floats(8 * 6, 3);
  const auto f = [&] {
    Floats x(weight.size());
    ops::embedding_forward(span_of(x), span_of(ids), span_of(tokens), span_of(positions), shape, stream);
    return inner(x, weight);
  };
  Floats dtokens = filled(5 * 6);
  Floats dpositions = filled(7 * 6);
  ops::embedding_backward(span_of(dtokens), span_of(dpositions), span_of(weight), span_of(ids), shape, stream);
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(dtokens[3 * 6 + i], before) << "an id that never occurs has no gradient";
  expect_gradient(tokens, without_first(dtokens), f, "dtokens");
  expect_gradient(positions, without_first(dpositions), f, "dpositions");
}

TEST(OpsGradient, CrossEntropy) {
  const Stream stream;
  Floats logits = random_floats(4 * 9, 1, 2.0F);
  const std::vector<std::int32_t> targets{0, 8, 3, 3};
  Floats losses(4);
  double loss = 0;
  const Span<double> loss_span{std::span<double>(&loss, 1)};
  const auto f = [&] {
    ops::cross_entropy_forward(loss_span, span_of(losses), span_of(logits), span_of(targets), 4, 9, stream);
    return 3 * loss;
  };
  const double expected = f() / 3;
  Floats gradient = logits;
  ops::cross_entropy_forward_backward(loss_span, span_of(losses), span_of(gradient), span_of(targets), 4, 9, 3.0, stream);
  EXPECT_DOUBLE_EQ(loss, expected);
  expect_gradient(logits, gradient, f, "dlogits");
}

}  // namespace
}  // namespace scape
