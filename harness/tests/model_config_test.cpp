// Presets, validation, parameter layout and FLOPs.
#include <gmock/gmock.h>

#include "message_of.hpp"
#include "model_test_support.hpp"

namespace scape {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;

TEST(ModelConfig, PresetsHaveTheirParameterCounts) {
  // V·C + T·C + L·(12 C² + 13 C) + 2 C
  const auto gpt = [](std::int64_t v, std::int64_t t, std::int64_t l, std::int64_t c) {
    return v * c + t * c + l * (12 * c * c + 13 * c) + 2 * c;
  };
  // 2·V·C + L·(2 C² + 2·C·kv·s + 3·C·F + 2 C) + C
  const auto llama = [](std::int64_t v, std::int64_t l, std::int64_t c, std::int64_t kv, std::int64_t head, std::int64_t f) {
    return 2 * v * c + l * (2 * c * c + 2 * c * kv * head + 3 * c * f + 2 * c) + c;
  };
  const std::vector<std::pair<std::string, std::int64_t>> expected{{"gpt-nano", gpt(256, 64, 3, 96)},
                                                                   {"gpt-mini", gpt(256, 128, 4, 192)},
                                                                   {"gpt2-124m", 124'439'808},
                                                                   {"gpt-345m", 354'823'168},
                                                                   {"llama-nano", llama(256, 3, 96, 1, 32, 256)},
                                                                   {"llama-mini", llama(256, 4, 192, 2, 32, 512)},
                                                                   {"llama-60m", 58'073'600},
                                                                   {"llama-130m", 134'105'856},
                                                                   {"llama-500m", llama(32000, 16, 1536, 8, 96, 4096)},
                                                                   {"llama-1.8b", llama(32000, 24, 2560, 8, 80, 6912)}};
  std::vector<std::pair<std::string, std::int64_t>> found;
  for (const std::string& name : model_presets()) found.emplace_back(name, parameter_layout(model_config(name)).size());
  EXPECT_EQ(found, expected);
  EXPECT_EQ(gpt(50257, 1024, 12, 768), 124'439'808) << "as published";
  EXPECT_EQ(llama(32000, 8, 512, 8, 64, 1376), 58'073'600);
}

TEST(ModelConfig, UnknownPresetNamesTheNearest) {
  EXPECT_EQ(message_of(ErrorKind::usage, [] { (void)model_config("lama-nano"); }),
            "no model 'lama-nano'; did you mean 'llama-nano'?");
}

TEST(ModelConfig, ValidationNamesTheSetting) {
  const auto error_of = [](const std::function<void(ModelConfig&)>& change) {
    ModelConfig config = model_config("llama-nano");
    change(config);
    return message_of(ErrorKind::usage, [&] { config.validate(); });
  };
  EXPECT_THAT(error_of([](ModelConfig& c) { c.heads = 5; }), HasSubstr("'heads' (5) must divide width (96)"));
  EXPECT_THAT(error_of([](ModelConfig& c) { c.kv_heads = 2; }), HasSubstr("'kv_heads' (2) must divide heads (3)"));
  EXPECT_THAT(error_of([](ModelConfig& c) { c.layers = 0; }), HasSubstr("'layers' must be at least 1, not 0"));
  EXPECT_THAT(error_of([](ModelConfig& c) { c.heads = c.kv_heads = 32; }),
              HasSubstr("'positions' rotary needs an even head size, not 3"));
  EXPECT_THAT(error_of([](ModelConfig& c) { c.norm_epsilon = 0; }), HasSubstr("'norm_epsilon'"));
  EXPECT_THAT(error_of([](ModelConfig& c) { c.init_std = -1; }), HasSubstr("'init_std'"));
  EXPECT_THAT(message_of(ErrorKind::usage,
                         [] {
                           (void)make_model(model_config("gpt-nano"), {DeviceKind::cuda, 0});
                         }),
              HasSubstr("CPU"));
}

TEST(ModelConfig, EverySettingIsAnOption) {
  ModelConfig config = model_config("gpt-nano");
  OptionTable table;
  config.declare(table);
  for (const char* setting : {"layers=2", "norm=rms_norm", "positions=rotary", "activation=swiglu", "tied_embedding=false",
                              "biases=false", "rope_base=5e5", "kv_heads=1"}) {
    table.set(parse_setting(setting, "--set"));
  }
  EXPECT_EQ(config.layers, 2);
  EXPECT_EQ(config.rope_base, 5e5);
  const ParameterLayout layout = parameter_layout(config);
  std::vector<std::string> names;
  for (const ParameterTensor& tensor : layout.tensors()) names.push_back(tensor.name);
  EXPECT_THAT(names, ElementsAre("embedding", "layers.0.attention.qkv", "layers.0.attention.out", "layers.0.ffn.in",
                                 "layers.0.ffn.out", "layers.1.attention.qkv", "layers.1.attention.out", "layers.1.ffn.in",
                                 "layers.1.ffn.out", "head", "layers.0.norm1.scale", "layers.0.norm2.scale", "layers.1.norm1.scale",
                                 "layers.1.norm2.scale", "norm.scale"));
  ASSERT_EQ(layout.runs().size(), 2U) << "matrices, then vectors";
  EXPECT_EQ(layout.runs()[1].role, TensorRole::vector);
  EXPECT_EQ(layout.runs()[1].range, (Range{layout.size() - 5 * 96, layout.size()}));
}

TEST(ModelConfig, FlopsCountMatrixProductsAndAttention) {
  const double gpt = 6.0 * (256 * 96 + 3 * 12 * 96 * 96) + 12.0 * 3 * 96 * 64;
  EXPECT_DOUBLE_EQ(flops_per_token(model_config("gpt-nano")), gpt);
  const double llama = 6.0 * (256 * 96 + 3 * (2 * 96 * 96 + 2 * 96 * 32 + 3 * 96 * 256)) + 12.0 * 3 * 96 * 64;
  EXPECT_DOUBLE_EQ(flops_per_token(model_config("llama-nano")), llama);
}

TEST(ModelConfig, CountsBeyond32BitsAreExact) {
  ModelConfig config = model_config("llama-1.8b");
  config.layers = 96;
  const ParameterLayout layout = parameter_layout(config);
  const std::int64_t layer = 2 * 2560 * 2560 + 2 * 2560 * 640 + 3 * 2560 * 6912 + 2 * 2560;
  EXPECT_EQ(layout.size(), 2 * 32000 * 2560 + 96 * layer + 2560);
  EXPECT_GT(layout.size(), std::int64_t{3} << 31);
  EXPECT_EQ(layout.tensors().back().range.end, layout.size());
  for (std::size_t i = 1; i < layout.tensors().size(); ++i) {
    EXPECT_EQ(layout.tensors()[i].range.begin, layout.tensors()[i - 1].range.end);
  }
  const ModelMemory memory = model_memory(config, 64, 4096);
  EXPECT_EQ(memory.parameters, 4 * layout.size());
  EXPECT_GT(memory.activations, std::int64_t{4} * 64 * 4096 * 32000) << "logits alone";
  EXPECT_GT(flops_per_token(config), 6.0 * 96 * static_cast<double>(layer));
}

TEST(ModelConfig, InitialisationFollowsTheRoles) {
  const ModelConfig config = model_config("gpt-nano");
  const auto model = make_model(config);
  const auto twin = make_model(config);
  EXPECT_EQ(copy_of(model->params()), copy_of(twin->params()));
  for (const ParameterTensor& tensor : model->layout().tensors()) {
    const Floats values = copy_of(model->params().subspan(tensor.range.begin, tensor.range.size()));
    if (tensor.role == TensorRole::vector) {
      const float expected = tensor.name.ends_with(".scale") ? 1.0F : 0.0F;
      EXPECT_TRUE(std::all_of(values.begin(), values.end(), [&](float v) { return v == expected; })) << tensor.name;
    } else {
      const bool into_residual = tensor.name.ends_with("attention.out") || tensor.name.ends_with("ffn.out");
      const double expected = into_residual ? 0.02 / std::sqrt(6.0) : 0.02;
      EXPECT_NEAR(std::sqrt(inner(values, values) / static_cast<double>(values.size())), expected, 0.05 * expected) << tensor.name;
    }
  }
  ModelConfig other = config;
  other.init_seed = 1;
  EXPECT_NE(copy_of(model->params()), copy_of(make_model(other)->params()));
}

}  // namespace
}  // namespace scape
