// compute = bf16 and recompute = layer: what they may change, and what not.
#include <gmock/gmock.h>

#include "message_of.hpp"
#include "model_test_support.hpp"
#include "ops/bf16.hpp"

namespace scape {
namespace {

using ::testing::HasSubstr;

struct Result {
  double loss;
  Floats gradient;
};

Result gradient_of(const ModelConfig& config) {
  const auto model = make_model(config);
  stir_vectors(*model);
  const Sample sample(config, 3, 9);
  const double loss = model->forward_backward(sample.batch(), 1.0, Stream());
  return {loss, copy_of(model->grads())};
}

class ModelPrecision : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    config_ = small_config(GetParam());
    config_.layers = 4;
  }
  ModelConfig config_;
};

TEST_P(ModelPrecision, RecomputationChangesNoBit) {
  for (const Compute compute : {Compute::fp32, Compute::bf16}) {
    if (compute == Compute::bf16 && !ops::bf16_products(cpu_device)) continue;
    config_.compute = compute;
    config_.recompute = Recompute::none;
    const Result kept = gradient_of(config_);
    config_.recompute = Recompute::layer;
    const Result again = gradient_of(config_);
    EXPECT_EQ(again.loss, kept.loss);
    EXPECT_EQ(again.gradient, kept.gradient);
  }
}

// At the usual initial weights. Factors of 8 bits are wrong by up to 2⁻⁹, gradients behind several layers by about 1%: not by
// nothing.
TEST_P(ModelPrecision, Bf16IsCloseToFp32) {
  if (!ops::bf16_products(cpu_device)) GTEST_SKIP() << "no bfloat16 products on this processor";
  config_ = model_config(GetParam() + "-nano");
  const Result exact = gradient_of(config_);
  config_.compute = Compute::bf16;
  const Result rounded = gradient_of(config_);
  EXPECT_NEAR(rounded.loss, exact.loss, 1e-3 * exact.loss);
  EXPECT_LT(relative_distance(rounded.gradient, exact.gradient), 1e-2);
  EXPECT_GT(relative_distance(rounded.gradient, exact.gradient), 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Families, ModelPrecision, ::testing::Values("gpt", "llama"),
                         [](const auto& param_info) { return param_info.param; });

TEST(ModelPrecision, RecomputationKeepsOneInputPerLayer) {
  ModelConfig config = model_config("gpt-345m");
  const std::int64_t kept = model_memory(config, 4, 1024).activations;
  config.recompute = Recompute::layer;
  config.layers = 24;
  const std::int64_t again = model_memory(config, 4, 1024).activations;
  EXPECT_LT(again, kept / 4) << "of which half are logits";
  config.layers = 25;
  EXPECT_EQ(model_memory(config, 4, 1024).activations - again, 4 * 4 * 1024 * config.width);
}

// ctest runs this one a second time with oneDNN held to AVX2, which has none.
TEST(ModelPrecision, Bf16IsRefusedWhereThereAreNoProducts) {
  ModelConfig config = small_config("gpt");
  config.compute = Compute::bf16;
  if (ops::bf16_products(cpu_device)) {
    EXPECT_NO_THROW((void)make_model(config));
    return;
  }
  EXPECT_THAT(testing::message_of(ErrorKind::usage, [&] { (void)make_model(config); }), HasSubstr("compute=bf16"));
}

}  // namespace
}  // namespace scape
