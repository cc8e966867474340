// Models to and from Hugging Face's form: what is written against the fixtures of an independent implementation and, where it is
// installed, against transformers itself; what comes back bit for bit; what is refused.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/wait.h>

#include <bit>
#include <cstring>

#include "data_support.hpp"
#include "exchange/hugging_face.hpp"
#include "parity_fixture.hpp"

namespace scape {
namespace {

namespace fs = std::filesystem;
using scape::testing::message_of;
using scape::testing::read_bytes;
using scape::testing::TemporaryFolder;
using scape::testing::write_bytes;
using ::testing::HasSubstr;

// The numbers of a tensor in a file.
Floats values(const SafetensorsFile& file, const std::string& name, const std::vector<std::int64_t>& shape) {
  const StoredTensor* tensor = file.find(name);
  if (tensor == nullptr) {
    ADD_FAILURE() << "no tensor " << name;
    return {};
  }
  EXPECT_EQ(tensor->shape, shape) << name;
  EXPECT_EQ(tensor->dtype, "F32") << name;
  Floats found(tensor->bytes.size() / sizeof(float));
  std::memcpy(found.data(), tensor->bytes.data(), tensor->bytes.size());
  return found;
}

Floats transposed(const Floats& matrix, std::size_t rows) {
  const std::size_t columns = matrix.size() / rows;
  Floats result(matrix.size());
  for (std::size_t i = 0; i < matrix.size(); ++i) result[i % columns * rows + i / columns] = matrix[i];
  return result;
}

Floats rows(const Floats& matrix, std::ptrdiff_t columns, std::ptrdiff_t begin, std::ptrdiff_t end) {
  return {matrix.begin() + begin * columns, matrix.begin() + end * columns};
}

Floats logits_of(Model& model, const Sample& sample) {
  Floats logits(sample.inputs.size() * static_cast<std::size_t>(model.config().vocab));
  model.logits({span_of(sample.inputs), {}, sample.sequences, sample.length}, span_of(logits), Stream());
  return logits;
}

// A model with random parameters in a checkpoint of its own.
struct Saved {
  TemporaryFolder folder;
  ModelConfig config;
  Floats params;
  explicit Saved(const ModelConfig& of) : config(of), params(random_floats(parameter_layout(of).size(), 3, 0.2F)) { save(); }
  explicit Saved(const ParityFixture& fixture) : config(fixture.config()), params(fixture.params()) { save(); }
  [[nodiscard]] SavedModel model() const { return SavedModel::open(folder / "model"); }
  /// Exported as the folder `name`.
  fs::path hugging_face(const std::string& name = "hf") const {
    export_hugging_face(model(), nullptr, folder / name);
    return folder / name;
  }

 private:
  void save() { save_model(config, params, {}, folder / "model"); }
};

void expect_same_model(const fs::path& checkpoint, const Saved& saved) {
  const SavedModel found = SavedModel::open(checkpoint);
  const Floats params = found.params();
  ASSERT_EQ(params.size(), saved.params.size());
  EXPECT_EQ(std::memcmp(params.data(), saved.params.data(), params.size() * sizeof(float)), 0);
  ModelConfig expected = saved.config;
  ModelConfig read = found.config;
  read.init_seed = expected.init_seed;  // of no meaning to others
  OptionTable a, b;
  expected.declare(a);
  read.declare(b);
  for (std::size_t i = 0; i < a.options().size(); ++i) {
    EXPECT_EQ(to_string(b.options()[i].value()), to_string(a.options()[i].value())) << a.options()[i].name;
  }
}

TEST(HuggingFace, WritesTheTensorsOfGpt2) {
  const ParityFixture fixture("gpt");
  const Saved saved(fixture);
  const SafetensorsFile file = SafetensorsFile::open(saved.hugging_face() / "model.safetensors");
  const std::int64_t w = 24, f = 32;
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.tensors().size(), 2U + 2 * 12 + 2);
  EXPECT_EQ(values(file, "transformer.wte.weight", {29, w}), fixture.floats("params/embedding"));
  EXPECT_EQ(values(file, "transformer.wpe.weight", {12, w}), fixture.floats("params/positions"));
  EXPECT_EQ(values(file, "transformer.h.1.attn.c_attn.weight", {w, 3 * w}),
            transposed(fixture.floats("params/layers.1.attention.qkv"), 3 * w));
  EXPECT_EQ(values(file, "transformer.h.1.attn.c_attn.bias", {3 * w}), fixture.floats("params/layers.1.attention.qkv.bias"));
  EXPECT_EQ(values(file, "transformer.h.0.mlp.c_fc.weight", {w, f}), transposed(fixture.floats("params/layers.0.ffn.in"), f));
  EXPECT_EQ(values(file, "transformer.h.0.mlp.c_proj.weight", {f, w}), transposed(fixture.floats("params/layers.0.ffn.out"), w));
  EXPECT_EQ(values(file, "transformer.h.0.ln_2.bias", {w}), fixture.floats("params/layers.0.norm2.shift"));
  EXPECT_EQ(values(file, "transformer.ln_f.weight", {w}), fixture.floats("params/norm.scale"));
}

TEST(HuggingFace, WritesTheTensorsOfLlama) {
  const ParityFixture fixture("llama");
  const Saved saved(fixture);
  const SafetensorsFile file = SafetensorsFile::open(saved.hugging_face() / "model.safetensors");
  const std::int64_t w = 24, f = 20;  // 6 heads of size 4, 2 of them with keys and values
  const Floats qkv = fixture.floats("params/layers.1.attention.qkv");
  const Floats in = fixture.floats("params/layers.0.ffn.in");
  EXPECT_EQ(file.tensors().size(), 1U + 2 * 9 + 2);
  EXPECT_EQ(values(file, "model.layers.1.self_attn.q_proj.weight", {24, w}), rows(qkv, w, 0, 24));
  EXPECT_EQ(values(file, "model.layers.1.self_attn.k_proj.weight", {8, w}), rows(qkv, w, 24, 32));
  EXPECT_EQ(values(file, "model.layers.1.self_attn.v_proj.weight", {8, w}), rows(qkv, w, 32, 40));
  EXPECT_EQ(values(file, "model.layers.0.mlp.gate_proj.weight", {f, w}), rows(in, w, 0, 20));
  EXPECT_EQ(values(file, "model.layers.0.mlp.up_proj.weight", {f, w}), rows(in, w, 20, 40));
  EXPECT_EQ(values(file, "model.layers.0.post_attention_layernorm.weight", {w}), fixture.floats("params/layers.0.norm2.scale"));
  EXPECT_EQ(values(file, "lm_head.weight", {29, w}), fixture.floats("params/head"));
}

ModelConfig family_member(const std::string& name) {
  ModelConfig config = small_config(name.starts_with("llama") ? "llama" : "gpt");
  if (name == "gpt_untied") config.tied_embedding = false;
  if (name == "llama_tied") config.tied_embedding = true;
  if (name.starts_with("llama")) config.rope_base = 500000;
  config.norm_epsilon = 3e-6;
  config.init_std = 0.02;
  return config;
}

class Exchange : public ::testing::TestWithParam<std::string> {};

TEST_P(Exchange, ComesBackBitForBit) {
  const Saved saved(family_member(GetParam()));
  import_hugging_face(saved.hugging_face(), saved.folder / "back");
  expect_same_model(saved.folder / "back", saved);
  export_hugging_face(SavedModel::open(saved.folder / "back"), nullptr, saved.folder / "again");
  for (const char* file : {"model.safetensors", "config.json"}) {
    EXPECT_EQ(read_bytes(saved.folder / "again" / file), read_bytes(saved.folder / "hf" / file)) << file;
  }
}

TEST_P(Exchange, TransformersComputesTheSame) {
  const Saved saved(family_member(GetParam()));
  const fs::path exported = saved.hugging_face();
  const Sample sample(saved.config, 3, 9);
  const Floats logits = logits_of(*saved.model().load(), sample);
  write_safetensors(saved.folder / "expected", {{{"ids", "I32", {3, 9}, std::as_bytes(std::span(sample.inputs))},
                                                 {"logits", "F32", {3, 9, saved.config.vocab}, std::as_bytes(std::span(logits))}}});
  const char* python = std::getenv("SCAPE_TEST_PYTHON");
  const std::string command = fmt::format("{} {} {} {} {} > {} 2>&1", python != nullptr ? python : "/usr/bin/python3",
                                          TRANSFORMERS_SCRIPT, exported.string(), (saved.folder / "expected").string(),
                                          (saved.folder / "copy").string(), (saved.folder / "told").string());
  const int status = std::system(command.c_str());
  const std::string told = read_bytes(saved.folder / "told");
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "no transformers to compare with: " << told;
  ASSERT_EQ(status, 0) << told;
  EXPECT_TRUE(fs::exists(saved.folder / "copy" / "model.safetensors.index.json"));
  import_hugging_face(saved.folder / "copy", saved.folder / "back");
  expect_same_model(saved.folder / "back", saved);
}

INSTANTIATE_TEST_SUITE_P(Members, Exchange, ::testing::Values("gpt", "gpt_untied", "llama", "llama_tied"),
                         [](const auto& param_info) { return param_info.param; });

TEST(HuggingFace, AnImportedModelComputesWhatTheFixturesSay) {
  for (const char* name : {"gpt", "llama"}) {
    const ParityFixture fixture(name);
    const Saved saved(fixture);
    import_hugging_face(saved.hugging_face(), saved.folder / "back");
    const Floats logits = logits_of(*SavedModel::open(saved.folder / "back").load(), fixture.sample());
    EXPECT_LT(relative_distance(logits, fixture.floats("logits")), 1e-4) << name;
  }
}

TEST(HuggingFace, TheTokenizerGoesWithTheModel) {
  const TemporaryFolder folder;
  ModelConfig config = small_config("llama");
  config.vocab = 300;
  Floats params = random_floats(parameter_layout(config).size(), 1);
  save_model(config, params, {}, folder / "model");
  const SavedModel saved = SavedModel::open(folder / "model");
  EXPECT_THAT(message_of(ErrorKind::usage, [&] { (void)saved.tokenizer("", ""); }), HasSubstr("names no tokens: give --data"));
  write_bytes(folder / "sp.model", scape::testing::small_model());
  const Tokenizer tokenizer((folder / "sp.model").string());
  export_hugging_face(saved, &tokenizer, folder / "hf/");
  EXPECT_EQ(read_bytes(folder / "hf/tokenizer.model"), scape::testing::small_model());
  EXPECT_THAT(read_bytes(folder / "hf/config.json"), HasSubstr("\"eos_token_id\": 2"));
  import_hugging_face(folder / "hf", folder / "back");
  EXPECT_EQ(SavedModel::open(folder / "back").tokenizer("", "").model(), scape::testing::small_model());

  config.vocab = 299;
  params.resize(static_cast<std::size_t>(parameter_layout(config).size()));
  save_model(config, params, {}, folder / "small");
  EXPECT_THAT(message_of(ErrorKind::input, [&] { (void)SavedModel::open(folder / "small").tokenizer(folder / "sp.model", ""); }),
              HasSubstr("token ids reach 299, but the model's vocab is 299"));
}

TEST(HuggingFace, ExportRefuses) {
  ModelConfig config = small_config("gpt");
  config.positions = Positions::rotary;
  const Saved rotary(config);
  EXPECT_THAT(
      message_of(ErrorKind::usage, [&] { rotary.hugging_face(); }),
      HasSubstr("GPT2LMHeadModel wants positions=learned, LlamaForCausalLM norm=rms_norm, activation=swiglu, biases=false"));
  EXPECT_THAT(rotary.folder.entries(), ::testing::ElementsAre("model"));
  config = small_config("gpt");
  config.kv_heads = 2;
  const Saved grouped(config);
  EXPECT_THAT(message_of(ErrorKind::usage, [&] { grouped.hugging_face(); }), HasSubstr("GPT2LMHeadModel wants kv_heads=heads,"));

  const Saved saved(small_config("llama"));
  write_bytes(saved.folder / "file", "x");
  EXPECT_THAT(message_of(ErrorKind::usage, [&] { saved.hugging_face("file"); }), HasSubstr("file: exists and is no empty folder"));
  EXPECT_THAT(message_of(ErrorKind::input, [&] { saved.hugging_face("file/hf"); }), HasSubstr("file/hf: cannot be made"));
  EXPECT_THAT(message_of(ErrorKind::usage, [&] { saved.hugging_face("model"); }), HasSubstr("exists and is no empty folder"));
}

// A folder of an exported model whose files a test changes.
struct Edited {
  Saved saved;
  fs::path folder;
  explicit Edited(const std::string& family) : saved(family_member(family)), folder(saved.hugging_face()) {}

  void config(const std::string& from, const std::string& to) const {
    std::string text = read_bytes(folder / "config.json");
    const auto at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    write_bytes(folder / "config.json", text.replace(at, from.size(), to));
  }
  /// The tensors written anew as `edit` leaves them.
  template <class Edit>
  void tensors(const Edit& edit) const {
    const SafetensorsFile file = SafetensorsFile::open(folder / "model.safetensors");
    std::vector<StoredTensor> all = file.tensors();
    edit(all);
    write_safetensors(folder / "changed", all);
    fs::rename(folder / "changed", folder / "model.safetensors");
  }
  [[nodiscard]] std::string refusal() const {
    const std::string message = message_of(ErrorKind::input, [&] { import_hugging_face(folder, saved.folder / "in"); });
    EXPECT_FALSE(fs::exists(saved.folder / "in"));
    return message;
  }
};

StoredTensor* find(std::vector<StoredTensor>& tensors, const std::string& name) {
  return &*std::ranges::find(tensors, name, &StoredTensor::name);
}

TEST(HuggingFace, ReadsHalvesAndOldNames) {
  const Edited edited("gpt");
  // bfloat16 1, −2 and a subnormal half 2^-24, −65504, infinity
  const std::vector<std::uint16_t> bfloats{0x3f80, 0xc000}, halves{0x0001, 0xfbff, 0x7c00};
  std::vector<std::uint16_t> scale(24), shift(24);
  std::ranges::copy(bfloats, scale.begin());
  std::ranges::copy(halves, shift.begin());
  const Floats mask(9 * 9);
  edited.tensors([&](std::vector<StoredTensor>& all) {
    *find(all, "transformer.ln_f.weight") = {"transformer.ln_f.weight", "BF16", {24}, std::as_bytes(std::span(scale))};
    *find(all, "transformer.ln_f.bias") = {"transformer.ln_f.bias", "F16", {24}, std::as_bytes(std::span(shift))};
    all.push_back({"lm_head.weight", "F32", {17, 24}, find(all, "transformer.wte.weight")->bytes});
    for (StoredTensor& tensor : all) tensor.name = tensor.name.substr(tensor.name.starts_with("transformer.") ? 12 : 0);
    all.push_back({"h.0.attn.bias", "F32", {1, 1, 9, 9}, std::as_bytes(std::span(mask))});
  });
  import_hugging_face(edited.folder, edited.saved.folder / "in");
  const SavedModel found = SavedModel::open(edited.saved.folder / "in");
  const Floats params = found.params();
  const ParameterLayout layout = parameter_layout(found.config);
  const auto at = [&](const char* name, std::int64_t i) {
    return params[static_cast<std::size_t>(layout.tensor(name).range.begin + i)];
  };
  EXPECT_EQ(at("norm.scale", 0), 1.0F);
  EXPECT_EQ(at("norm.scale", 1), -2.0F);
  EXPECT_EQ(at("norm.shift", 0), std::ldexp(1.0F, -24));
  EXPECT_EQ(at("norm.shift", 1), -65504.0F);
  EXPECT_EQ(at("norm.shift", 2), INFINITY);
  EXPECT_EQ(at("embedding", 5), edited.saved.params[5]);
}

TEST(HuggingFace, ImportRefusesSettings) {
  const std::vector<std::array<std::string, 4>> cases{
      {"gpt", "\"n_layer\": 2", "\"n_layers\": 2", "config.json: 'n_layer' is missing"},
      {"gpt", "\"n_layer\": 2", "\"n_layer\": \"two\"", "'n_layer' has a value of another type"},
      {"gpt", "\"n_layer\": 2", "\"n_layer\": 900000000000", "has 28 tensors, too few for 900000000000 layers"},
      {"gpt", "\"n_layer\": 2", "\"n_layer\": 3", "has no tensor 'transformer.h.2.ln_1.weight'"},
      {"gpt", "\"n_layer\": 2", "\"n_layer\": 1", "'transformer.h.1.attn.c_attn.bias' is no tensor of this model"},
      {"gpt", "\"n_head\": 6", "\"n_head\": 5", "'heads' (5) must divide width (24)"},
      {"gpt", "\"n_embd\": 24", "\"n_embd\": 36", "'transformer.wte.weight' has the shape [17, 24], config.json wants [17, 36]"},
      {"gpt", "gelu_new", "relu", "'activation_function' is not gelu_new"},
      {"gpt", "\"n_head\"", "\"scale_attn_by_inverse_layer_idx\": true, \"n_head\"",
       "'scale_attn_by_inverse_layer_idx' is not false"},
      {"gpt", "\"model_type\": \"gpt2\"", "\"model_type\": \"opt\"", "'model_type' is 'opt', neither gpt2 nor llama"},
      {"gpt", "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false", "has no tensor 'lm_head.weight'"},
      {"gpt_untied", "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true", "is not the token embedding"},
      {"gpt", "{", "", "config.json: cannot be read"},
      {"llama", "\"attention_bias\": false", "\"attention_bias\": true", "'attention_bias' is not false"},
      {"llama", "\"head_dim\": 4", "\"head_dim\": 8", "'head_dim' is not 4"},
      {"llama", "\"rms", "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}, \"rms", "'rope_scaling' is not default"},
      {"llama", "\"rms", "\"rope_scaling\": {\"rope_type\": \"llama3\"}, \"rms", "'rope_scaling' is not default"},
      {"llama", "silu", "gelu", "'hidden_act' is not silu"},
  };
  for (const auto& [family, from, to, message] : cases) {
    const Edited edited(family);
    edited.config(from, to);
    EXPECT_THAT(edited.refusal(), HasSubstr(message)) << to;
  }
}

TEST(HuggingFace, ImportRefusesFiles) {
  {
    const Edited edited("llama");
    edited.tensors([](auto& all) { all.erase(all.begin()); });
    EXPECT_THAT(edited.refusal(), HasSubstr("has no tensor 'model.embed_tokens.weight'"));
  }
  {
    const Edited edited("llama");
    edited.tensors([](auto& all) { find(all, "model.norm.weight")->dtype = "I32"; });
    EXPECT_THAT(edited.refusal(), HasSubstr("'model.norm.weight' is I32, this program reads F32, F16 and BF16"));
  }
  {
    const Edited edited("llama");
    fs::remove(edited.folder / "config.json");
    EXPECT_THAT(edited.refusal(), HasSubstr("config.json: cannot be read"));
    fs::remove_all(edited.folder);
    EXPECT_THAT(edited.refusal(), HasSubstr("hf: is no folder"));
  }
  {
    const Edited edited("llama");
    fs::resize_file(edited.folder / "model.safetensors", 1000);
    EXPECT_THAT(edited.refusal(), HasSubstr("model.safetensors: "));
    fs::rename(edited.folder / "model.safetensors", edited.folder / "pytorch_model.bin");
    EXPECT_THAT(edited.refusal(), HasSubstr("safe_serialization=True"));
  }
  {
    const Edited edited("llama");
    const fs::path index = edited.folder / "model.safetensors.index.json";
    write_bytes(index, R"({"weight_map": {"x": "../model.safetensors"}})");
    EXPECT_THAT(edited.refusal(), HasSubstr("'../model.safetensors' is not the name of a file beside it"));
    write_bytes(index, R"({"weight_map": {"x": "model.safetensors"}})");
    EXPECT_THAT(edited.refusal(), HasSubstr("index.json: 'x' is not in model.safetensors"));
    write_bytes(index, R"({"weight_map": {"x": "other.safetensors"}})");
    EXPECT_THAT(edited.refusal(), HasSubstr("other.safetensors: cannot be opened"));
    write_bytes(index, R"({"weights": 1})");
    EXPECT_THAT(edited.refusal(), HasSubstr("index.json: cannot be read"));
    fs::copy_file(edited.folder / "model.safetensors", edited.folder / "more.safetensors");
    write_bytes(index, R"({"weight_map": {"model.norm.weight": "model.safetensors", "lm_head.weight": "more.safetensors"}})");
    EXPECT_THAT(edited.refusal(), HasSubstr("is in another file, too"));
  }
  const Saved saved(small_config("llama"));
  EXPECT_THAT(message_of(ErrorKind::usage, [&] { import_hugging_face(saved.hugging_face(), saved.folder / "model"); }),
              HasSubstr("model: holds checkpoints"));
}

}  // namespace
}  // namespace scape
