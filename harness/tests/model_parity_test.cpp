// The models and AdamW against PyTorch: fixtures/parity.hdf5, written by fixtures/make_parity.py, holds what an implementation of
// its own makes of a small GPT and a small Llama with grouped-query attention and rotary positions.
#include <gmock/gmock.h>

#include "parity_fixture.hpp"
#include "scape/communicator.hpp"
#include "scape/registry.hpp"

namespace scape {
namespace {

constexpr double tolerance = 1e-4;  // relative, of fp32 arithmetic to float64

class ModelParity : public ::testing::TestWithParam<const char*> {
 protected:
  // Every tensor of a flat vector, by the norm of the difference and by the largest one.
  void expect_tensors(Span<const float> flat, const ParameterLayout& layout, const std::string& group) const {
    EXPECT_EQ(fixture_.members(group), layout.tensors().size());
    for (const ParameterTensor& tensor : layout.tensors()) {
      expect_close(copy_of(flat.subspan(tensor.range.begin, tensor.range.size())), fixture_.floats(group + "/" + tensor.name),
                   group + "/" + tensor.name);
    }
  }
  static void expect_close(const Floats& found, const Floats& expected, const std::string& what) {
    ASSERT_EQ(found.size(), expected.size()) << what;
    EXPECT_LT(relative_distance(found, expected), tolerance) << what;
    float largest = 0;
    float difference = 0;
    for (std::size_t i = 0; i < found.size(); ++i) {
      largest = std::max(largest, std::abs(expected[i]));
      difference = std::max(difference, std::abs(found[i] - expected[i]));
    }
    EXPECT_LT(difference, tolerance * largest) << what;
  }

  const ParityFixture fixture_{GetParam()};
};

TEST_P(ModelParity, LogitsLossGradientsAndTenStepsOfAdamW) {
  const auto model = make_model(fixture_.config());
  const Floats params = fixture_.params();
  copy(model->params(), span_of(params), Stream());
  const Sample sample = fixture_.sample();
  const Batch batch = sample.batch();
  const Stream stream;

  const Floats expected_logits = fixture_.floats("logits");
  Floats logits(expected_logits.size());
  model->logits(batch, span_of(logits), stream);
  expect_close(logits, expected_logits, "logits");

  Registry registry;
  register_core(registry);
  MethodChoice method(registry, "adamw", "dense");
  OptionTable options;
  method.declare(options);
  fixture_.set(options);
  const auto optimizer = method.make({.layout = model->layout(), .device = cpu_device});
  const auto communicator = make_communicator("self", MPI_COMM_SELF, cpu_device);
  Telemetry telemetry;
  const Floats losses = fixture_.floats("losses");
  ASSERT_EQ(losses.size(), 11U);
  bool clipped = false;
  for (std::int64_t step = 1; step <= 10; ++step) {
    model->zero_grads(stream);
    const double loss = model->forward_backward(batch, 1.0, stream);
    const double expected = losses[static_cast<std::size_t>(step - 1)];
    EXPECT_NEAR(loss, expected, tolerance * expected) << "step " << step;
    if (step == 1) expect_tensors(model->grads(), model->layout(), "grads");
    const StepResult result = optimizer->step({.params = model->params(),
                                               .grads = model->grads(),
                                               .layout = model->layout(),
                                               .comm = *communicator,
                                               .stream = stream,
                                               .comm_stream = stream,
                                               .telemetry = telemetry,
                                               .step = step,
                                               .learning_rate = fixture_.attribute("learning_rate")});
    clipped = clipped || result.gradient_norm > 1;
  }
  EXPECT_TRUE(clipped) << "the fixture says nothing about clipping";
  expect_tensors(model->params(), model->layout(), "after");
  EXPECT_NEAR(model->evaluate(batch, stream), losses[10], tolerance * losses[10]);
}

INSTANTIATE_TEST_SUITE_P(Families, ModelParity, ::testing::Values("gpt", "llama"),
                         [](const auto& param_info) { return std::string(param_info.param); });

}  // namespace
}  // namespace scape
