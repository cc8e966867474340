// Models as a trainer meets them: the loss at the start, causality, learning one batch by heart, refused batches.
#include <gmock/gmock.h>

#include "message_of.hpp"
#include "model_test_support.hpp"
#include "ops/bf16.hpp"

namespace scape {
namespace {

using ::testing::HasSubstr;

class ModelTraining : public ::testing::TestWithParam<std::string> {};

TEST(ModelTraining, FirstLossIsTheLogarithmOfTheVocabulary) {
  for (const char* name : {"gpt-nano", "gpt-mini", "llama-nano", "llama-mini"}) {
    const ModelConfig config = model_config(name);
    const Sample sample(config, 2, config.context);
    EXPECT_NEAR(make_model(config)->evaluate(sample.batch(), Stream()), std::log(256.0), 0.1) << name;
  }
}

TEST_P(ModelTraining, ATokenChangesNothingBeforeIt) {
  const ModelConfig config = small_config(GetParam());
  const auto model = make_model(config);
  Sample sample(config, 2, 9);
  const auto logits = [&] {
    Floats out(static_cast<std::size_t>(2 * 9 * config.vocab));
    model->logits({span_of(sample.inputs), {}, 2, 9}, span_of(out), Stream());
    return out;
  };
  const Floats first = logits();
  constexpr std::int64_t changed = 9 + 4;  // position 4 of sequence 1
  sample.inputs[changed] = (sample.inputs[changed] + 1) % static_cast<std::int32_t>(config.vocab);
  const Floats second = logits();
  const auto boundary = static_cast<std::ptrdiff_t>(changed * config.vocab);
  EXPECT_TRUE(std::equal(first.begin(), first.begin() + boundary, second.begin()));
  for (std::int64_t position = changed; position < 18; ++position) {
    const auto begin = static_cast<std::ptrdiff_t>(position * config.vocab);
    EXPECT_FALSE(std::equal(first.begin() + begin, first.begin() + begin + config.vocab, second.begin() + begin)) << position;
  }
}

// A position in the sequence is seen: the same token twice in a row does not get the same logits.
TEST_P(ModelTraining, PositionsMatter) {
  ModelConfig config = small_config(GetParam());
  const auto model = make_model(config);
  const std::vector<std::int32_t> swapped{1, 2, 3, 2, 1, 3};  // the last token sees the same tokens in another order
  Floats out(static_cast<std::size_t>(6 * config.vocab));
  model->logits({span_of(swapped), {}, 2, 3}, span_of(out), Stream());
  double difference = 0;
  for (std::int64_t j = 0; j < config.vocab; ++j) {
    difference = std::max<double>(difference, std::abs(out[static_cast<std::size_t>(2 * config.vocab + j)] -
                                                       out[static_cast<std::size_t>(5 * config.vocab + j)]));
  }
  EXPECT_GT(difference, 1e-2);
}

// The loss after learning.
double learn_one_batch_by_heart(ModelConfig config) {
  config.init_std = 0.02;
  config.width = 48;
  config.ffn = 96;
  const auto model = make_model(config);
  const Sample sample(config, 4, 9);
  const Stream stream;
  const auto size = static_cast<std::size_t>(model->layout().size());
  std::vector<double> m(size);
  std::vector<double> v(size);
  double correction1 = 1;
  double correction2 = 1;
  for (int step = 1; step <= 150; ++step) {  // Adam (Kingma & Ba, 2015)
    model->zero_grads(stream);
    model->forward_backward(sample.batch(), 1.0, stream);
    correction1 *= 0.9;
    correction2 *= 0.99;
    const auto params = model->params().host();
    const auto grads = model->grads().host();
    for (std::size_t i = 0; i < size; ++i) {
      m[i] = 0.9 * m[i] + 0.1 * grads[i];
      v[i] = 0.99 * v[i] + 0.01 * grads[i] * grads[i];
      params[i] -= static_cast<float>(1e-2 * (m[i] / (1 - correction1)) / (std::sqrt(v[i] / (1 - correction2)) + 1e-8));
    }
  }
  return model->evaluate(sample.batch(), stream);
}

TEST_P(ModelTraining, LearnsOneBatchByHeart) {
  ModelConfig config = small_config(GetParam());
  EXPECT_LT(learn_one_batch_by_heart(config), 0.1);
  if (!ops::bf16_products(cpu_device)) return;
  config.compute = Compute::bf16;
  EXPECT_LT(learn_one_batch_by_heart(config), 0.1);
}

TEST_P(ModelTraining, GrowsAndShrinksWithTheBatch) {
  const ModelConfig config = small_config(GetParam());
  const auto model = make_model(config);
  const Sample small(config, 1, 4);
  const Sample large(config, 5, 9);
  const double first = model->evaluate(small.batch(), Stream());
  model->evaluate(large.batch(), Stream());
  EXPECT_EQ(model->evaluate(small.batch(), Stream()), first);
}

TEST(ModelTraining, RefusesBatchesThatDoNotFit) {
  const ModelConfig config = small_config("gpt");
  const auto model = make_model(config);
  const auto error_of = [&](const Batch& batch, ErrorKind kind) {
    return testing::message_of(kind, [&] { model->forward_backward(batch, 1.0, Stream()); });
  };
  EXPECT_THAT(error_of(Sample(config, 1, 10).batch(), ErrorKind::usage), HasSubstr("length 10 exceeds the model's context of 9"));
  Sample sample(config, 2, 4);
  Batch short_targets = sample.batch();
  short_targets.targets = short_targets.targets.subspan(0, 7);
  EXPECT_THAT(error_of(short_targets, ErrorKind::usage), HasSubstr("sequences x length"));
  sample.inputs[5] = 17;
  EXPECT_THAT(error_of(sample.batch(), ErrorKind::input), HasSubstr("token id 17 at position 5"));
  sample.inputs[5] = 0;
  sample.targets[7] = -1;
  EXPECT_THAT(error_of(sample.batch(), ErrorKind::input), HasSubstr("target id -1 at position 7"));
  const Floats gradient = copy_of(model->grads());
  EXPECT_TRUE(std::all_of(gradient.begin(), gradient.end(), [](float g) { return g == 0; }))
      << "a refused batch leaves no gradient";
}

INSTANTIATE_TEST_SUITE_P(Families, ModelTraining, ::testing::Values("gpt", "llama"),
                         [](const auto& param_info) { return param_info.param; });

}  // namespace
}  // namespace scape
