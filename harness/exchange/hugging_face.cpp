#include "exchange/hugging_face.hpp"

#include <simdjson.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>
#include <set>

#include "io/file.hpp"
#include "scape/error.hpp"

namespace scape {

namespace {

namespace fs = std::filesystem;
namespace dom = simdjson::dom;

constexpr const char* config_file = "config.json";
constexpr const char* weights_file = "model.safetensors";
constexpr const char* index_file = "model.safetensors.index.json";

bool is_llama(const ModelConfig& config) {
  return config.positions == Positions::rotary;
}

// ---- tensors: one table for both directions

// A tensor there, and the coordinates here that it is.
struct Piece {
  std::string name;
  std::vector<std::int64_t> shape;  // there
  Range range;
  bool transposed = false;
};

class Pieces {
 public:
  explicit Pieces(const ModelConfig& config) : layout_(parameter_layout(config)) {
    is_llama(config) ? add_llama(config) : add_gpt2(config);
    std::int64_t covered = 0;
    for (const Piece& piece : pieces_) covered += piece.range.size();
    require(covered == layout_.size(), ErrorKind::internal, "exchange: the tensors do not cover the parameters");
  }
  [[nodiscard]] const std::vector<Piece>& all() const { return pieces_; }
  [[nodiscard]] std::int64_t parameters() const { return layout_.size(); }

 private:
  void add(const std::string& name, const std::string& ours) {
    const ParameterTensor& tensor = layout_.tensor(ours);
    pieces_.push_back({name, tensor.shape, tensor.range});
  }
  // Its next rows.
  void add_rows(const std::string& name, const std::string& ours, std::int64_t& row, std::int64_t rows) {
    const ParameterTensor& tensor = layout_.tensor(ours);
    const std::int64_t columns = tensor.shape[1];
    const std::int64_t begin = tensor.range.begin + row * columns;
    pieces_.push_back({name, {rows, columns}, {begin, begin + rows * columns}});
    row += rows;
  }

  void add_gpt2(const ModelConfig& config) {
    const auto with_bias = [&](const std::string& name, const std::string& ours, const char* weight, const char* bias) {
      add(name + ".weight", ours + weight);
      add(name + ".bias", ours + bias);
    };
    const auto linear = [&](const std::string& name, const std::string& ours) {
      const std::size_t weight = pieces_.size();
      with_bias(name, ours, "", ".bias");
      std::ranges::reverse(pieces_[weight].shape);
      pieces_[weight].transposed = true;
    };
    const auto norm = [&](const std::string& name, const std::string& ours) { with_bias(name, ours, ".scale", ".shift"); };
    add("transformer.wte.weight", "embedding");
    add("transformer.wpe.weight", "positions");
    for (std::int64_t i = 0; i < config.layers; ++i) {
      const std::string name = fmt::format("transformer.h.{}.", i);
      const std::string ours = fmt::format("layers.{}.", i);
      norm(name + "ln_1", ours + "norm1");
      linear(name + "attn.c_attn", ours + "attention.qkv");
      linear(name + "attn.c_proj", ours + "attention.out");
      norm(name + "ln_2", ours + "norm2");
      linear(name + "mlp.c_fc", ours + "ffn.in");
      linear(name + "mlp.c_proj", ours + "ffn.out");
    }
    norm("transformer.ln_f", "norm");
    if (!config.tied_embedding) add("lm_head.weight", "head");
  }

  void add_llama(const ModelConfig& config) {
    add("model.embed_tokens.weight", "embedding");
    for (std::int64_t i = 0; i < config.layers; ++i) {
      const std::string name = fmt::format("model.layers.{}.", i);
      const std::string ours = fmt::format("layers.{}.", i);
      add(name + "input_layernorm.weight", ours + "norm1.scale");
      std::int64_t row = 0;
      add_rows(name + "self_attn.q_proj.weight", ours + "attention.qkv", row, config.heads * config.head_size());
      add_rows(name + "self_attn.k_proj.weight", ours + "attention.qkv", row, config.kv_heads * config.head_size());
      add_rows(name + "self_attn.v_proj.weight", ours + "attention.qkv", row, config.kv_heads * config.head_size());
      add(name + "self_attn.o_proj.weight", ours + "attention.out");
      add(name + "post_attention_layernorm.weight", ours + "norm2.scale");
      row = 0;
      add_rows(name + "mlp.gate_proj.weight", ours + "ffn.in", row, config.ffn);
      add_rows(name + "mlp.up_proj.weight", ours + "ffn.in", row, config.ffn);
      add(name + "mlp.down_proj.weight", ours + "ffn.out");
    }
    add("model.norm.weight", "norm.scale");
    if (!config.tied_embedding) add("lm_head.weight", "head");
  }

  ParameterLayout layout_;
  std::vector<Piece> pieces_;
};

// to [columns, rows] ← the transpose of from [rows, columns].
void transpose(std::span<const float> from, std::span<float> to, std::int64_t rows, std::int64_t columns) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      to[static_cast<std::size_t>(c * rows + r)] = from[static_cast<std::size_t>(r * columns + c)];
    }
  }
}

std::span<const float> part(std::span<const float> params, Range range) {
  return params.subspan(static_cast<std::size_t>(range.begin), static_cast<std::size_t>(range.size()));
}

// ---- config.json

// Settings that a class wants otherwise than the model has them, as "positions=learned".
std::string obstacles(const ModelConfig& c, bool llama) {
  std::string text;
  const auto want = [&](bool fits, const char* setting) {
    if (!fits) text += (text.empty() ? "" : ", ") + std::string(setting);
  };
  want(c.norm == (llama ? Norm::rms_norm : Norm::layer_norm), llama ? "norm=rms_norm" : "norm=layer_norm");
  want(c.positions == (llama ? Positions::rotary : Positions::learned), llama ? "positions=rotary" : "positions=learned");
  want(c.activation == (llama ? Activation::swiglu : Activation::gelu), llama ? "activation=swiglu" : "activation=gelu");
  want(c.biases != llama, llama ? "biases=false" : "biases=true");
  want(llama || c.kv_heads == c.heads, "kv_heads=heads");
  return text;
}

std::string config_text(const ModelConfig& c, std::int32_t end_token) {
  const std::string end = end_token < 0 ? "null" : std::to_string(end_token);
  const std::string common = fmt::format(
      "  \"vocab_size\": {},\n  \"tie_word_embeddings\": {},\n  \"initializer_range\": {},\n  \"torch_dtype\": \"float32\",\n"
      "  \"bos_token_id\": null,\n  \"eos_token_id\": {},\n",
      c.vocab, c.tied_embedding, c.init_std, end);
  if (is_llama(c)) {
    return fmt::format(
        "{{\n  \"architectures\": [\"LlamaForCausalLM\"],\n  \"model_type\": \"llama\",\n{}"
        "  \"max_position_embeddings\": {},\n  \"num_hidden_layers\": {},\n  \"hidden_size\": {},\n  \"num_attention_heads\": {},\n"
        "  \"num_key_value_heads\": {},\n  \"head_dim\": {},\n  \"intermediate_size\": {},\n  \"hidden_act\": \"silu\",\n"
        "  \"rms_norm_eps\": {},\n  \"rope_theta\": {},\n  \"attention_bias\": false,\n  \"mlp_bias\": false\n}}\n",
        common, c.context, c.layers, c.width, c.heads, c.kv_heads, c.head_size(), c.ffn, c.norm_epsilon, c.rope_base);
  }
  return fmt::format(
      "{{\n  \"architectures\": [\"GPT2LMHeadModel\"],\n  \"model_type\": \"gpt2\",\n{}"
      "  \"n_positions\": {},\n  \"n_layer\": {},\n  \"n_embd\": {},\n  \"n_head\": {},\n  \"n_inner\": {},\n"
      "  \"activation_function\": \"gelu_new\",\n  \"layer_norm_epsilon\": {},\n"
      "  \"embd_pdrop\": 0.0,\n  \"attn_pdrop\": 0.0,\n  \"resid_pdrop\": 0.0\n}}\n",
      common, c.context, c.layers, c.width, c.heads, c.ffn, c.norm_epsilon);
}

// The fields of config.json; what is null counts as missing.
class Fields {
 public:
  explicit Fields(fs::path path) : path_(std::move(path)) {
    if (const auto error = parser_.load(path_.string()).get(root_))
      fail(path_, "cannot be read: {}", simdjson::error_message(error));
    if (!root_.is_object()) fail(path_, "is no JSON object");
  }
  [[nodiscard]] const fs::path& path() const { return path_; }

  template <class T>
  [[nodiscard]] std::optional<T> find(const std::string& key) const {
    dom::element value;
    if (root_.at_pointer("/" + key).get(value) != simdjson::SUCCESS || value.is_null()) return std::nullopt;
    T found{};
    if (value.get(found) != simdjson::SUCCESS) fail(path_, "'{}' has a value of another type than expected", key);
    return found;
  }
  template <class T>
  [[nodiscard]] T want(const std::string& key) const {
    const auto found = find<T>(key);
    if (!found) fail(path_, "'{}' is missing", key);
    return *found;
  }
  [[nodiscard]] std::string text(const std::string& key, std::string_view otherwise) const {
    return std::string(find<std::string_view>(key).value_or(otherwise));
  }
  /// Refuses the model unless the field is missing or has this value.
  template <class T>
  void only(const std::string& key, T value) const {
    if (find<T>(key).value_or(value) != value) fail(path_, "this model cannot be expressed here: '{}' is not {}", key, value);
  }

 private:
  fs::path path_;
  dom::parser parser_;
  dom::element root_;
};

ModelConfig read_gpt2(const Fields& fields) {
  ModelConfig c;
  c.context = fields.want<std::int64_t>("n_positions");
  c.layers = fields.want<std::int64_t>("n_layer");
  c.width = fields.want<std::int64_t>("n_embd");
  c.heads = fields.want<std::int64_t>("n_head");
  c.kv_heads = c.heads;
  c.ffn = fields.find<std::int64_t>("n_inner").value_or(4 * c.width);
  c.norm_epsilon = fields.find<double>("layer_norm_epsilon").value_or(1e-5);
  c.tied_embedding = fields.find<bool>("tie_word_embeddings").value_or(true);
  if (fields.text("activation_function", "gelu_new") != "gelu_pytorch_tanh") {
    fields.only<std::string_view>("activation_function", "gelu_new");
  }
  fields.only("scale_attn_weights", true);
  fields.only("scale_attn_by_inverse_layer_idx", false);
  fields.only("add_cross_attention", false);
  return c;
}

ModelConfig read_llama(const Fields& fields) {
  ModelConfig c;
  c.norm = Norm::rms_norm;
  c.positions = Positions::rotary;
  c.activation = Activation::swiglu;
  c.biases = false;
  c.context = fields.want<std::int64_t>("max_position_embeddings");
  c.layers = fields.want<std::int64_t>("num_hidden_layers");
  c.width = fields.want<std::int64_t>("hidden_size");
  c.heads = fields.want<std::int64_t>("num_attention_heads");
  c.kv_heads = fields.find<std::int64_t>("num_key_value_heads").value_or(c.heads);
  c.ffn = fields.want<std::int64_t>("intermediate_size");
  c.norm_epsilon = fields.find<double>("rms_norm_eps").value_or(1e-6);
  c.tied_embedding = fields.find<bool>("tie_word_embeddings").value_or(false);
  fields.only<std::string_view>("hidden_act", "silu");
  fields.only("attention_bias", false);
  fields.only("mlp_bias", false);
  if (c.heads > 0) fields.only<std::int64_t>("head_dim", c.width / c.heads);
  // transformers 5 has the base among the parameters of the positions; other positions than the plain ones have another rope_type.
  c.rope_base = fields.find<double>("rope_theta").value_or(fields.find<double>("rope_parameters/rope_theta").value_or(10000));
  fields.only<std::string_view>("rope_parameters/rope_type", "default");
  if (fields.find<dom::object>("rope_scaling") && fields.text("rope_scaling/rope_type", "") != "default") {
    fail(fields.path(), "this model cannot be expressed here: 'rope_scaling' is not default");
  }
  return c;
}

ModelConfig read_config(const fs::path& folder) {
  const Fields fields(folder / config_file);
  const std::string type = fields.text("model_type", "");
  if (type != "gpt2" && type != "llama") fail(fields.path(), "'model_type' is '{}', neither gpt2 nor llama", type);
  ModelConfig config = type == "llama" ? read_llama(fields) : read_gpt2(fields);
  config.vocab = fields.want<std::int64_t>("vocab_size");
  config.init_std = fields.find<double>("initializer_range").value_or(config.init_std);
  try {
    config.validate();
  } catch (const Error& error) {
    fail(fields.path(), "{}", error.what());
  }
  return config;
}

// ---- weights

float from_half(std::uint16_t half) {
  const float sign = (half & 0x8000U) != 0 ? -1.0F : 1.0F;
  const int exponent = half >> 10 & 31;
  const int mantissa = half & 1023;
  if (exponent == 31) return mantissa == 0 ? sign * INFINITY : NAN;
  return sign * (exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                               : std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25));
}

float from_bfloat(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

// A tensor of one of the files.
struct Found {
  fs::path file;
  StoredTensor tensor;

  [[nodiscard]] std::vector<float> values() const {
    const std::span<const std::byte> bytes = tensor.bytes;
    if (tensor.dtype == "F32") {
      std::vector<float> values(bytes.size() / sizeof(float));
      if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
      return values;
    }
    if (tensor.dtype != "F16" && tensor.dtype != "BF16") {
      fail(file, "'{}' is {}, this program reads F32, F16 and BF16", tensor.name, tensor.dtype);
    }
    std::vector<float> values(bytes.size() / sizeof(std::uint16_t));
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, bytes.data() + i * sizeof bits, sizeof bits);
      values[i] = tensor.dtype == "F16" ? from_half(bits) : from_bfloat(bits);
    }
    return values;
  }
};

// All tensors of a folder, by name.
class Weights {
 public:
  explicit Weights(const fs::path& folder) : folder_(folder) {
    if (fs::exists(folder / index_file)) {
      open_shards(folder / index_file);
    } else if (fs::exists(folder / weights_file)) {
      open(folder / weights_file);
    } else {
      fail(folder, "has no {}{}", weights_file,
           fs::exists(folder / "pytorch_model.bin") ? "; save it with safe_serialization=True instead of pytorch_model.bin" : "");
    }
  }
  [[nodiscard]] std::int64_t count() const { return std::ssize(tensors_); }

  /// The tensor of this name, or of this name without its first word, as a model without its head has it. It is then accounted for.
  const Found& take(const Piece& piece) {
    auto found = tensors_.find(piece.name);
    if (found == tensors_.end()) found = tensors_.find(piece.name.substr(piece.name.find('.') + 1));
    if (found == tensors_.end()) fail(folder_, "has no tensor '{}'", piece.name);
    const auto& [file, tensor] = found->second;
    if (tensor.shape != piece.shape) {
      fail(file, "'{}' has the shape [{}], {} wants [{}]", tensor.name, fmt::join(tensor.shape, ", "), config_file,
           fmt::join(piece.shape, ", "));
    }
    taken_.insert(found->first);
    return found->second;
  }

  /// Refuses what was not taken, but for the copies and tables that old versions of transformers wrote.
  void refuse_others(const Found& embedding) const {
    for (const auto& [name, found] : tensors_) {
      if (taken_.contains(name) || name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
          name.ends_with(".rotary_emb.inv_freq")) {
        continue;
      }
      if (name != "lm_head.weight") fail(found.file, "'{}' is no tensor of this model", name);
      if (!std::ranges::equal(found.tensor.bytes, embedding.tensor.bytes)) {
        fail(found.file, "'{}' is not the token embedding, although {} says tie_word_embeddings", name, config_file);
      }
    }
  }

 private:
  void open(const fs::path& path) {
    files_.push_back(SafetensorsFile::open(path));
    for (const StoredTensor& tensor : files_.back().tensors()) {
      if (!tensors_.emplace(tensor.name, Found{path, tensor}).second) fail(path, "'{}' is in another file, too", tensor.name);
    }
  }
  void open_shards(const fs::path& index) {
    std::map<std::string, std::string> places;
    try {
      dom::parser parser;
      const dom::object map = parser.load(index.string())["weight_map"];
      for (const auto& [name, file] : map) places[std::string(name)] = std::string(std::string_view(file));
    } catch (const simdjson::simdjson_error& error) {
      fail(index, "cannot be read: {}", error.what());
    }
    std::set<std::string> files;
    for (const auto& [name, file] : places) {
      if (fs::path(file).filename() != file) fail(index, "'{}' is not the name of a file beside it", file);
      files.insert(file);
    }
    for (const std::string& file : files) open(folder_ / file);
    for (const auto& [name, file] : places) {
      const auto found = tensors_.find(name);
      if (found == tensors_.end() || found->second.file != folder_ / file) fail(index, "'{}' is not in {}", name, file);
    }
  }

  fs::path folder_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, Found> tensors_;
  std::set<std::string> taken_;
};

std::vector<float> read_params(const fs::path& from, const ModelConfig& config) {
  Weights weights(from);
  if (weights.count() <= config.layers) fail(from, "has {} tensors, too few for {} layers", weights.count(), config.layers);
  const Pieces pieces(config);
  std::vector<const Found*> found;
  for (const Piece& piece : pieces.all()) found.push_back(&weights.take(piece));
  weights.refuse_others(*found.front());
  std::vector<float> params(static_cast<std::size_t>(pieces.parameters()));
  for (std::size_t i = 0; i < found.size(); ++i) {
    const Piece& piece = pieces.all()[i];
    const std::vector<float> values = found[i]->values();
    const auto to = std::span(params).subspan(static_cast<std::size_t>(piece.range.begin), values.size());
    if (piece.transposed) {
      transpose(values, to, piece.shape[0], piece.shape[1]);
    } else {
      std::ranges::copy(values, to.begin());
    }
  }
  return params;
}

// A folder that gets its name when it is complete, and else is gone.
class NewFolder {
 public:
  explicit NewFolder(const fs::path& path) : path_(path.has_filename() ? path : path.parent_path()) {
    work_ = fs::absolute(path_).parent_path() / (".unfinished-" + path_.filename().string());
    std::error_code failure;
    if (fs::exists(path_) && !(fs::is_directory(path_) && fs::is_empty(path_))) {
      throw Error(ErrorKind::usage, path_.string() + ": exists and is no empty folder");
    }
    fs::remove_all(work_, failure);
    if (!fs::create_directories(work_, failure)) fail(path_, "cannot be made: {}", failure.message());
  }
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  ~NewFolder() {
    std::error_code ignored;
    fs::remove_all(work_, ignored);
  }
  [[nodiscard]] fs::path operator/(const char* name) const { return work_ / name; }
  void complete() {
    std::error_code failure;
    fs::rename(work_, path_, failure);
    if (failure) fail(path_, "cannot be made: {}", failure.message());
  }

 private:
  fs::path path_, work_;
};

}  // namespace

void export_hugging_face(const SavedModel& model, const Tokenizer* tokenizer, const fs::path& out) {
  const ModelConfig& config = model.config;
  if (const std::string wanted = obstacles(config, is_llama(config)); !wanted.empty()) {
    throw Error(ErrorKind::usage,
                fmt::format("transformers has no class for this model: GPT2LMHeadModel wants {}, LlamaForCausalLM {}",
                            obstacles(config, false), obstacles(config, true)));
  }
  NewFolder folder(out);
  const std::vector<float> params = model.params();
  const Pieces pieces(config);
  std::vector<std::vector<float>> turned;
  std::vector<StoredTensor> tensors;
  for (const Piece& piece : pieces.all()) {
    std::span<const float> values = part(params, piece.range);
    if (piece.transposed) {
      transpose(values, turned.emplace_back(values.size()), piece.shape[1], piece.shape[0]);
      values = turned.back();
    }
    tensors.push_back({piece.name, "F32", piece.shape, std::as_bytes(values)});
  }
  write_safetensors(folder / weights_file, tensors, {{"format", "pt"}});
  write_text(folder / config_file, config_text(config, tokenizer == nullptr ? -1 : tokenizer->end_token()));
  if (tokenizer != nullptr && !tokenizer->model().empty()) write_text(folder / tokenizer_file, tokenizer->model());
  folder.complete();
}

void import_hugging_face(const fs::path& from, const fs::path& out) {
  if (!fs::is_directory(from)) fail(from, "is no folder");
  const ModelConfig config = read_config(from);
  std::vector<float> params = read_params(from, config);
  std::string tokenizer;
  if (fs::exists(from / tokenizer_file)) tokenizer = Tokenizer((from / tokenizer_file).string()).model();
  const fs::path checkpoint = save_model(config, params, {{"imported_from", fs::absolute(from).string()}}, out);
  if (tokenizer.empty()) return;
  try {
    write_text(checkpoint / tokenizer_file, tokenizer);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(checkpoint, ignored);
    throw;
  }
}

}  // namespace scape
