// The gradient of whole models: finite differences in every tensor, accumulation, and when a range is final.
#include "model_test_support.hpp"
#include "ops/threads.hpp"

namespace scape {
namespace {

class ModelGradient : public ::testing::TestWithParam<std::string> {};

TEST_P(ModelGradient, MatchesDifferencesInEveryTensor) {
  const ModelConfig config = small_config(GetParam());
  const auto model = make_model(config);
  stir_vectors(*model);
  const Sample sample(config, 3, 7);  // shorter than the context
  const Stream stream;
  const double loss = model->forward_backward(sample.batch(), 1.0, stream);
  EXPECT_DOUBLE_EQ(model->evaluate(sample.batch(), stream), loss);
  const auto f = [&] { return model->evaluate(sample.batch(), stream); };

  Rng rng(3);
  for (const ParameterTensor& tensor : model->layout().tensors()) {
    const auto values = model->params().subspan(tensor.range.begin, tensor.range.size()).host();
    const auto gradient = model->grads().subspan(tensor.range.begin, tensor.range.size()).host();
    const auto largest =
        std::max_element(gradient.begin(), gradient.end(), [](float a, float b) { return std::abs(a) < std::abs(b); });
    std::vector<std::size_t> at{static_cast<std::size_t>(largest - gradient.begin())};
    for (int i = 0; i < 12; ++i) at.push_back(rng.below(values.size()));
    expect_gradient(values, gradient, f, tensor.name, 1e-2, 3e-3F, at);
  }
}

// A tied embedding is used twice: its gradient is the sum of what an untied twin has in its two tensors.
TEST(ModelGradient, TiedEmbeddingSumsBothUses) {
  const ModelConfig config = small_config("gpt");
  const auto tied = make_model(config);
  const auto untied = untied_twin(*tied, config);
  const Sample sample(config, 2, 9);
  EXPECT_DOUBLE_EQ(tied->forward_backward(sample.batch(), 1, Stream()), untied->forward_backward(sample.batch(), 1, Stream()));
  const auto gradient = [](Model& model, const char* name) {
    const Range range = model.layout().tensor(name).range;
    return copy_of(model.grads().subspan(range.begin, range.size()));
  };
  Floats sum = gradient(*untied, "embedding");
  const Floats head = gradient(*untied, "head");
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += head[i];
  EXPECT_LT(relative_distance(gradient(*tied, "embedding"), sum), 1e-6);
}

TEST_P(ModelGradient, MicroBatchesAddUpToTheBigBatch) {
  const ModelConfig config = small_config(GetParam());
  const auto model = make_model(config);
  const Sample sample(config, 8, 9);
  const Stream stream;
  const double whole_loss = model->forward_backward(sample.batch(), 1.0, stream);
  const Floats whole = copy_of(model->grads());
  model->zero_grads(stream);
  double loss = 0;
  for (std::int64_t micro = 0; micro < 4; ++micro) loss += model->forward_backward(sample.part(2 * micro, 2), 0.25, stream) / 4;
  EXPECT_NEAR(loss, whole_loss, 1e-6 * whole_loss);
  EXPECT_LT(relative_distance(copy_of(model->grads()), whole), 1e-6);
}

TEST_P(ModelGradient, RangesAreReadyOnceAndFinal) {
  ModelConfig config = small_config(GetParam());
  for (const bool tied : {true, false}) {
    config.tied_embedding = tied;
    const auto model = make_model(config);
    const Sample sample(config, 2, 5);
    const Stream stream(cpu_device);  // queued: what is ready is told before it is computed
    Floats at_ready(static_cast<std::size_t>(model->layout().size()));
    std::vector<Range> ranges;
    model->forward_backward(sample.batch(), 1.0, stream, [&](Range range) {
      ranges.push_back(range);
      copy(span_of(at_ready).subspan(range.begin, range.size()), model->grads().subspan(range.begin, range.size()), stream);
    });
    EXPECT_EQ(at_ready, copy_of(model->grads()));
    EXPECT_EQ(ranges.front().begin,
              tied ? model->layout().tensor("norm.scale").range.begin : model->layout().tensor("head").range.begin);
    EXPECT_EQ(ranges.back().begin, 0) << "the embedding comes last";
    EXPECT_GE(ranges.size(), static_cast<std::size_t>(2 * config.layers + 2));
    std::sort(ranges.begin(), ranges.end(), [](Range a, Range b) { return a.begin < b.begin; });
    std::int64_t covered = 0;
    for (const Range range : ranges) {
      EXPECT_EQ(range.begin, covered);
      covered = range.end;
    }
    EXPECT_EQ(covered, model->layout().size());
  }
}

TEST_P(ModelGradient, RepeatsBitForBit) {
  const ModelConfig config = small_config(GetParam());
  const Sample sample(config, 4, 9);
  const auto gradient = [&](const Stream& stream, int threads) {
    ops::set_threads(threads, stream);
    const auto model = make_model(config);
    model->forward_backward(sample.batch(), 1.0, stream);
    return copy_of(model->grads());
  };
  const Floats one = gradient(Stream(), 1);
  EXPECT_EQ(gradient(Stream(), 1), one);
  EXPECT_EQ(gradient(Stream(cpu_device), 1), one) << "on a worker thread";
  const Floats two = gradient(Stream(cpu_device), 2);
  EXPECT_EQ(gradient(Stream(cpu_device), 2), two);
  EXPECT_LT(relative_distance(two, one), 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Families, ModelGradient, ::testing::Values("gpt", "llama"),
                         [](const auto& param_info) { return param_info.param; });

}  // namespace
}  // namespace scape
