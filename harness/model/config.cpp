// Presets, validation and parameter layout of the transformer family.
#include "model/config.hpp"

#include "scape/error.hpp"

namespace scape {

namespace {

struct Shape {
  std::int64_t context;
  std::int64_t layers;
  std::int64_t width;
  std::int64_t heads;
  std::int64_t kv_heads;
  std::int64_t ffn;
  std::int64_t vocab;
  double norm_epsilon = 1e-5;
};

// GPT-2: layer norm, learned positions, GELU, tied embedding, biases.
ModelConfig gpt(const Shape& s) {
  return {.vocab = s.vocab,
          .context = s.context,
          .layers = s.layers,
          .width = s.width,
          .heads = s.heads,
          .kv_heads = s.kv_heads,
          .ffn = s.ffn,
          .norm_epsilon = s.norm_epsilon};
}

// Llama: RMS norm, rotary positions, SwiGLU, untied, no biases.
ModelConfig llama(const Shape& s) {
  ModelConfig config = gpt(s);
  config.norm = Norm::rms_norm;
  config.positions = Positions::rotary;
  config.activation = Activation::swiglu;
  config.tied_embedding = false;
  config.biases = false;
  return config;
}

struct Preset {
  const char* name;
  ModelConfig config;
};

// To add a model, add a row. The vocabulary of a token file replaces the one given here. Shapes from: GPT-2 (Radford et al., 2019;
// 345m is its "medium"), the Llamas of 60 and 130 million that ReLoRA (arXiv 2307.05695) and GaLore (arXiv 2403.03507) train, and
// the three models of SCAPE (arXiv 2607.01678).
const std::vector<Preset>& presets() {
  static const std::vector<Preset> table{
      // name               context layers width heads kv_heads ffn vocab
      {"gpt-nano", /*  */ gpt({64, 3, 96, 3, 3, 384, 256})},
      {"gpt-mini", /*  */ gpt({128, 4, 192, 6, 6, 768, 256})},
      {"gpt2-124m", /* */ gpt({1024, 12, 768, 12, 12, 3072, 50257})},
      {"gpt-345m", /*  */ gpt({1024, 24, 1024, 16, 16, 4096, 50257})},
      {"llama-nano", /**/ llama({64, 3, 96, 3, 1, 256, 256})},
      {"llama-mini", /**/ llama({128, 4, 192, 6, 2, 512, 256})},
      {"llama-60m", /* */ llama({1024, 8, 512, 8, 8, 1376, 32000, 1e-6})},
      {"llama-130m", /**/ llama({1024, 12, 768, 12, 12, 2048, 32000, 1e-6})},
      {"llama-500m", /**/ llama({4096, 16, 1536, 16, 8, 4096, 32000})},
      {"llama-1.8b", /**/ llama({4096, 24, 2560, 32, 8, 6912, 32000})},
  };
  return table;
}

void expect(bool condition, const std::string& setting, const std::string& reason) {
  if (!condition) throw Error(ErrorKind::usage, "model setting '" + setting + "' " + reason);
}

}  // namespace

std::vector<std::string> model_presets() {
  std::vector<std::string> names;
  for (const Preset& preset : presets()) names.emplace_back(preset.name);
  return names;
}

ModelConfig model_config(std::string_view name) {
  for (const Preset& preset : presets()) {
    if (name == preset.name) return preset.config;
  }
  throw Error(ErrorKind::usage,
              "no model '" + std::string(name) + "'; did you mean '" + nearest_name(name, model_presets()) + "'?");
}

void ModelConfig::declare(OptionTable& table) {
  table.add("vocab", vocab, "number of token ids", {.min = 1});
  table.add("context", context, "longest sequence, in tokens", {.min = 1});
  table.add("layers", layers, "transformer blocks", {.min = 1, .max = 10'000});
  table.add("width", width, "size of the residual stream", {.min = 1});
  table.add("heads", heads, "query heads; head size is width / heads", {.min = 1});
  table.add("kv_heads", kv_heads, "key and value heads, a divisor of heads", {.min = 1});
  table.add("ffn", ffn, "hidden width of the feed-forward block", {.min = 1});
  table.add("norm", norm, "normalisation", {{"layer_norm", Norm::layer_norm}, {"rms_norm", Norm::rms_norm}});
  table.add("positions", positions, "position coding", {{"learned", Positions::learned}, {"rotary", Positions::rotary}});
  table.add("activation", activation, "feed-forward activation", {{"gelu", Activation::gelu}, {"swiglu", Activation::swiglu}});
  table.add("tied_embedding", tied_embedding, "the output projection is the token embedding");
  table.add("biases", biases, "biases on linear layers and shifts on norms");
  table.add("norm_epsilon", norm_epsilon, "added to the variance in norms", {.above = 0});
  table.add("rope_base", rope_base, "base of the rotary frequencies", {.above = 1});
  table.add("init_std", init_std, "standard deviation of initial weights", {.above = 0});
  table.add("init_seed", init_seed, "seed of the initial weights", {.min = 0});
  table.add("compute", compute, "factors of the matrix products with weights; everything else is fp32",
            {{"fp32", Compute::fp32}, {"bf16", Compute::bf16}});
  table.add("recompute", recompute, "activations to make again in the backward pass instead of keeping them",
            {{"none", Recompute::none}, {"layer", Recompute::layer}});
}

void ModelConfig::validate() const {
  const std::pair<const char*, std::int64_t> sizes[] = {{"vocab", vocab}, {"context", context}, {"layers", layers},
                                                        {"width", width}, {"heads", heads},     {"kv_heads", kv_heads},
                                                        {"ffn", ffn}};
  for (const auto& [name, size] : sizes) expect(size >= 1, name, "must be at least 1, not " + std::to_string(size));
  expect(vocab <= std::int64_t{1} << 31, "vocab", "must fit 32-bit token ids");
  expect(width % heads == 0, "heads", "(" + std::to_string(heads) + ") must divide width (" + std::to_string(width) + ")");
  expect(heads % kv_heads == 0, "kv_heads", "(" + std::to_string(kv_heads) + ") must divide heads (" + std::to_string(heads) + ")");
  expect(positions != Positions::rotary || head_size() % 2 == 0, "positions",
         "rotary needs an even head size, not " + std::to_string(head_size()));
  expect(norm_epsilon > 0, "norm_epsilon", "must be positive");
  expect(rope_base > 1, "rope_base", "must be above 1");
  expect(init_std > 0, "init_std", "must be positive");
  expect(init_seed >= 0, "init_seed", "must not be negative");
}

ParameterLayout parameter_layout(const ModelConfig& c) {
  c.validate();
  ParameterLayout layout;
  const auto layer_name = [](std::int64_t layer) { return "layers." + std::to_string(layer) + "."; };

  const auto matrix = [&](const std::string& name, std::int64_t rows, std::int64_t columns) {
    layout.add(name, {rows, columns}, TensorRole::matrix);
  };
  matrix("embedding", c.vocab, c.width);
  if (c.positions == Positions::learned) matrix("positions", c.context, c.width);
  for (std::int64_t layer = 0; layer < c.layers; ++layer) {
    const std::string prefix = layer_name(layer);
    matrix(prefix + "attention.qkv", c.qkv_width(), c.width);
    matrix(prefix + "attention.out", c.width, c.width);
    matrix(prefix + "ffn.in", c.ffn_in_width(), c.width);
    matrix(prefix + "ffn.out", c.width, c.ffn);
  }
  if (!c.tied_embedding) matrix("head", c.vocab, c.width);

  const auto vector = [&](const std::string& name, std::int64_t size) { layout.add(name, {size}, TensorRole::vector); };
  const auto norm = [&](const std::string& name) {
    vector(name + ".scale", c.width);
    if (c.biases) vector(name + ".shift", c.width);
  };
  const auto bias = [&](const std::string& name, std::int64_t size) {
    if (c.biases) vector(name + ".bias", size);
  };
  for (std::int64_t layer = 0; layer < c.layers; ++layer) {
    const std::string prefix = layer_name(layer);
    norm(prefix + "norm1");
    bias(prefix + "attention.qkv", c.qkv_width());
    bias(prefix + "attention.out", c.width);
    norm(prefix + "norm2");
    bias(prefix + "ffn.in", c.ffn_in_width());
    bias(prefix + "ffn.out", c.width);
  }
  norm("norm");
  return layout;
}

double flops_per_token(const ModelConfig& config) {
  const ParameterLayout layout = parameter_layout(config);
  double in_products = 0;
  for (const ParameterTensor& tensor : layout.tensors()) {
    const bool looked_up = tensor.name == "positions" || (tensor.name == "embedding" && !config.tied_embedding);
    if (tensor.role == TensorRole::matrix && !looked_up) in_products += static_cast<double>(tensor.range.size());
  }
  return 6 * in_products +
         12 * static_cast<double>(config.layers) * static_cast<double>(config.width) * static_cast<double>(config.context);
}

}  // namespace scape
