// The models and AdamW against PyTorch: fixtures/parity.hdf5, written by fixtures/make_parity.py, holds what an implementation of
// its own makes of a small GPT and a small Llama with grouped-query attention and rotary positions.
#include <gmock/gmock.h>

#include "model_test_support.hpp"
#include "record/hdf5.hpp"
#include "scape/communicator.hpp"
#include "scape/registry.hpp"

namespace scape {
namespace {

constexpr double tolerance = 1e-4;  // relative, of fp32 arithmetic to float64

class ModelParity : public ::testing::TestWithParam<const char*> {
 protected:
  // A table's options, wherever the fixture has an attribute of that name.
  void set_from_fixture(OptionTable& table) const {
    for (const OptionTable::Option& option : std::vector(table.options())) {
      if (const auto value = fixture_.attribute(option.name)) table.set({option.name, to_string(*value), "fixture"});
    }
  }
  [[nodiscard]] Floats floats(const std::string& group, const std::string& name) const {
    const std::vector<double> values = fixture_.group(group).dataset(name).read();
    return {values.begin(), values.end()};
  }
  [[nodiscard]] std::vector<std::int32_t> ids(const std::string& name) const {
    const std::vector<double> values = fixture_.dataset(name).read();
    return {values.begin(), values.end()};
  }
  // Every tensor of a flat vector, by the norm of the difference and by the largest one.
  void expect_tensors(Span<const float> flat, const ParameterLayout& layout, const std::string& group) const {
    EXPECT_EQ(fixture_.group(group).members().size(), layout.tensors().size());
    for (const ParameterTensor& tensor : layout.tensors()) {
      expect_close(copy_of(flat.subspan(tensor.range.begin, tensor.range.size())), floats(group, tensor.name),
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

  hdf5::Group fixture_ = hdf5::File(PARITY_FIXTURE, hdf5::Mode::read).group(GetParam());
};

TEST_P(ModelParity, LogitsLossGradientsAndTenStepsOfAdamW) {
  ModelConfig config;
  OptionTable settings;
  config.declare(settings);
  set_from_fixture(settings);
  const auto model = make_model(config);
  for (const ParameterTensor& tensor : model->layout().tensors()) {
    const Floats values = floats("params", tensor.name);
    copy(model->params().subspan(tensor.range.begin, tensor.range.size()), span_of(values), Stream());
  }
  const std::vector<std::int32_t> inputs = ids("inputs");
  const std::vector<std::int32_t> targets = ids("targets");
  const std::int64_t length = 11;
  const Batch batch{span_of(inputs), span_of(targets), std::ssize(inputs) / length, length};
  const Stream stream;

  std::vector<double> expected_logits = fixture_.dataset("logits").read();
  Floats logits(expected_logits.size());
  model->logits(batch, span_of(logits), stream);
  expect_close(logits, Floats(expected_logits.begin(), expected_logits.end()), "logits");

  Registry registry;
  register_core(registry);
  MethodChoice method(registry, "adamw", "dense");
  OptionTable options;
  method.declare(options);
  set_from_fixture(options);
  const auto optimizer = method.make({.layout = model->layout(), .device = cpu_device});
  const auto communicator = make_communicator("self", MPI_COMM_SELF, cpu_device);
  Telemetry telemetry;
  const std::vector<double> losses = fixture_.dataset("losses").read();
  const auto rate = fixture_.attribute("learning_rate");
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
                                               .learning_rate = std::get<double>(*rate)});
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
