// The transformer, forward and backward by hand. The residual stream x lives in one buffer that every block adds to; a norm
// keeps its normalised input, which is all that its backward pass needs. Shapes: B sequences of T tokens, R = B·T rows,
// C width, F ffn, H heads, V vocab.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "model/model.hpp"
#include "ops/activation.hpp"
#include "ops/attention.hpp"
#include "ops/bf16.hpp"
#include "ops/cross_entropy.hpp"
#include "ops/embedding.hpp"
#include "ops/matmul.hpp"
#include "ops/norm.hpp"
#include "ops/rotary.hpp"
#include "scape/rng.hpp"

namespace scape {

namespace {

using ops::Bf16;
using ops::LinearShape;
using ops::Write;

struct LinearRanges {
  Range weight;
  Range bias;  // may be empty
  std::int64_t in;
  std::int64_t out;
};

struct NormRanges {
  Range scale;
  Range shift;  // may be empty
};

struct LayerRanges {
  NormRanges norm1, norm2;
  LinearRanges qkv, attention_out, ffn_in, ffn_out;
  Range matrices, vectors;  // all of the layer's
};

struct NormActivations {
  Span<float> normalised;  // [R, C]
  Span<float> inverse;     // [R]
  Span<float> output;      // [R, C]
};

struct LayerActivations {
  Span<float> input;  // [R, C] with recomputation; all else is then the same memory for every layer
  NormActivations norm1, norm2;
  Span<float> qkv;             // [R, (H + 2·kv)·s], turned when positions are rotary
  Span<float> attention_kept;  // P or L, see ops/attention.hpp
  Span<float> attention;       // [R, C]
  Span<float> hidden;          // [R, F], SwiGLU [R, 2F]
  Span<float> activated;       // [R, F]
};

// Cuts spans off one allocation; without memory it only counts.
class Carver {
 public:
  Carver() = default;
  explicit Carver(Span<float> memory) : data_(memory.data()), device_(memory.device()) {}
  Span<float> take(std::int64_t size) {
    Span<float> part{data_ == nullptr ? nullptr : data_ + used_, size, device_};
    used_ += (size + 15) / 16 * 16;  // whole cache lines
    return part;
  }
  Span<Bf16> take_narrow(std::int64_t size) { return {reinterpret_cast<Bf16*>(take((size + 1) / 2).data()), size, device_}; }
  [[nodiscard]] std::int64_t used() const { return used_; }

 private:
  float* data_ = nullptr;
  Device device_{};
  std::int64_t used_ = 0;
};

ops::AttentionShape attention_shape(const ModelConfig& config, std::int64_t sequences, std::int64_t length) {
  return {sequences, length, config.heads, config.kv_heads, config.head_size()};
}

// The matrices that take part in products; embeddings that are only looked up come before them.
Range product_weights(const ModelConfig& config, const ParameterLayout& layout) {
  const ParameterTensor& first = layout.tensor(config.tied_embedding ? "embedding" : "layers.0.attention.qkv");
  return {first.range.begin, layout.runs().front().range.end};
}

// Everything between a batch and its loss and gradient, for one shape of batch.
struct Workspace {
  std::vector<LayerActivations> layers;
  NormActivations final;
  Span<float> x, logits, losses;                       // [R, C], [R, V], [R]
  Span<float> dx, dbranch, dqkv, dhidden, dactivated;  // gradients of x, of a branch's input, of qkv, hidden, activated
  Span<float> attention_scratch;
  Span<Bf16> narrow_x, narrow_dy;  // the factors of one product, with compute = bf16

  Workspace() = default;
  Workspace(Carver& memory, const ModelConfig& config, std::int64_t sequences, std::int64_t length)
      : layers(static_cast<std::size_t>(config.layers)) {
    const std::int64_t rows = sequences * length;
    const std::int64_t stream_size = rows * config.width;
    const ops::AttentionShape attention = attention_shape(config, sequences, length);
    const auto norm = [&] { return NormActivations{memory.take(stream_size), memory.take(rows), memory.take(stream_size)}; };
    const auto layer = [&] {
      return LayerActivations{.input = {},
                              .norm1 = norm(),
                              .norm2 = norm(),
                              .qkv = memory.take(rows * config.qkv_width()),
                              .attention_kept = memory.take(attention.kept()),
                              .attention = memory.take(stream_size),
                              .hidden = memory.take(rows * config.ffn_in_width()),
                              .activated = memory.take(rows * config.ffn)};
    };
    if (config.recompute == Recompute::layer) {
      std::fill(layers.begin(), layers.end(), layer());
      for (LayerActivations& a : layers) a.input = memory.take(stream_size);
    } else {
      std::generate(layers.begin(), layers.end(), layer);
    }
    final = norm();
    x = memory.take(stream_size);
    logits = memory.take(rows * config.vocab);
    losses = memory.take(rows);
    dx = memory.take(stream_size);
    dbranch = memory.take(stream_size);
    dqkv = memory.take(rows * config.qkv_width());
    dhidden = memory.take(rows * config.ffn_in_width());
    dactivated = config.activation == Activation::swiglu ? memory.take(rows * config.ffn) : dhidden;
    attention_scratch = memory.take(attention.scratch());
    if (config.compute == Compute::bf16) {
      narrow_x = memory.take_narrow(rows * std::max(config.width, config.ffn));
      narrow_dy = memory.take_narrow(rows * std::max({config.width, config.qkv_width(), config.ffn_in_width(), config.vocab}));
    }
  }
};

class Transformer final : public Model {
 public:
  Transformer(const ModelConfig& config, Device device)
      : config_(config),
        layout_(parameter_layout(config)),
        params_(layout_.size(), device),
        grads_(layout_.size(), device),
        loss_(1, device),
        product_weights_(product_weights(config_, layout_)),
        narrow_weights_(config_.compute == Compute::bf16 ? product_weights_.size() : 0, device) {
    find_tensors();
    initialise();
    if (config_.positions == Positions::rotary) make_rotary_table(device);
  }

  [[nodiscard]] const ModelConfig& config() const override { return config_; }
  [[nodiscard]] const ParameterLayout& layout() const override { return layout_; }
  [[nodiscard]] Span<float> params() override { return params_; }
  [[nodiscard]] Span<float> grads() override { return grads_; }

  double forward_backward(const Batch& batch, double gradient_scale, const Stream& stream,
                          const GradientsReady& gradients_ready) override {
    check(batch, true);
    forward(batch, stream);
    ops::cross_entropy_forward_backward(loss_, work_.losses, work_.logits, batch.targets, batch.tokens(), config_.vocab,
                                        gradient_scale, stream);
    backward(
        batch, stream, gradients_ready ? gradients_ready : [](Range) {});
    return read_loss(stream);
  }

  [[nodiscard]] double evaluate(const Batch& batch, const Stream& stream) override {
    check(batch, true);
    forward(batch, stream);
    ops::cross_entropy_forward(loss_, work_.losses, work_.logits, batch.targets, batch.tokens(), config_.vocab, stream);
    return read_loss(stream);
  }

  void logits(const Batch& batch, Span<float> out, const Stream& stream) override {
    check(batch, false);
    forward(batch, stream);
    copy(out, work_.logits, stream);
  }

 private:
  // ---- set-up

  Range find(const std::string& name) const { return layout_.tensor(name).range; }

  void find_tensors() {
    const auto norm = [&](const std::string& name) {
      return NormRanges{find(name + ".scale"), config_.biases ? find(name + ".shift") : Range{}};
    };
    const auto linear = [&](const std::string& name) {
      const ParameterTensor& weight = layout_.tensor(name);
      return LinearRanges{weight.range, config_.biases ? find(name + ".bias") : Range{}, weight.shape[1], weight.shape[0]};
    };
    embedding_ = find("embedding");
    if (config_.positions == Positions::learned) positions_ = find("positions");
    for (std::int64_t i = 0; i < config_.layers; ++i) {
      const std::string prefix = "layers." + std::to_string(i) + ".";
      LayerRanges layer{.norm1 = norm(prefix + "norm1"),
                        .norm2 = norm(prefix + "norm2"),
                        .qkv = linear(prefix + "attention.qkv"),
                        .attention_out = linear(prefix + "attention.out"),
                        .ffn_in = linear(prefix + "ffn.in"),
                        .ffn_out = linear(prefix + "ffn.out"),
                        .matrices = {},
                        .vectors = {}};
      layer.matrices = {layer.qkv.weight.begin, layer.ffn_out.weight.end};
      layer.vectors = {layer.norm1.scale.begin, config_.biases ? layer.ffn_out.bias.end : layer.norm2.scale.end};
      layers_.push_back(layer);
    }
    head_ = config_.tied_embedding ? embedding_ : find("head");
    final_norm_ = norm("norm");
  }

  // Matrices N(0, init_std²), one generator stream per tensor; scales 1; shifts and biases 0.
  void initialise() {
    const double residual_std = config_.init_std / std::sqrt(2.0 * static_cast<double>(config_.layers));
    std::uint64_t index = 0;
    for (const ParameterTensor& tensor : layout_.tensors()) {
      const bool into_residual = tensor.name.ends_with("attention.out") || tensor.name.ends_with("ffn.out");
      const auto deviation = static_cast<float>(into_residual ? residual_std : config_.init_std);
      Rng rng(static_cast<std::uint64_t>(config_.init_seed), index++);
      std::vector<float> values(static_cast<std::size_t>(tensor.range.size()));
      if (tensor.role == TensorRole::matrix) {
        std::generate(values.begin(), values.end(), [&] { return deviation * rng.normal(); });
      } else if (tensor.name.ends_with(".scale")) {
        std::fill(values.begin(), values.end(), 1.0F);
      }
      upload(part(params_, tensor.range), values);
    }
  }

  void make_rotary_table(Device device) {
    const std::int64_t size = config_.context * config_.head_size() / 2;
    std::vector<float> cosine(static_cast<std::size_t>(size));
    std::vector<float> sine(cosine.size());
    ops::rotary_table(std::span(cosine), std::span(sine), config_.context, config_.head_size(), config_.rope_base);
    cosine_ = Buffer<float>(size, device);
    sine_ = Buffer<float>(size, device);
    upload(cosine_, cosine);
    upload(sine_, sine);
  }

  static void upload(Span<float> to, std::span<const float> from) {
    const Stream stream = to.device().kind == DeviceKind::cpu ? Stream() : Stream(to.device());
    copy(to, from, stream);
    stream.synchronize();
  }

  void check(const Batch& batch, bool with_targets) const {
    const std::int64_t tokens = batch.tokens();
    require(batch.sequences >= 1 && batch.length >= 1 && batch.inputs.size() == tokens &&
                (batch.targets.size() == tokens || (!with_targets && batch.targets.empty())),
            ErrorKind::usage, "a batch's sequences x length differs from its number of token ids, or is zero");
    if (batch.length > config_.context) {
      throw Error(ErrorKind::usage, "a batch of length " + std::to_string(batch.length) + " exceeds the model's context of " +
                                        std::to_string(config_.context));
    }
  }

  // Points every activation into the memory, which grows to the largest batch seen.
  void lay_out(const Batch& batch, const Stream& stream) {
    if (batch.sequences == sequences_ && batch.length == length_) return;
    Carver count;
    const Workspace counted(count, config_, batch.sequences, batch.length);
    if (count.used() > memory_.size()) {
      stream.synchronize();
      memory_ = Buffer<float>();
      memory_ = Buffer<float>(count.used(), params_.device());
    }
    Carver memory(memory_.span());
    work_ = Workspace(memory, config_, batch.sequences, batch.length);
    sequences_ = batch.sequences;
    length_ = batch.length;
  }

  // ---- pieces with their parameters filled in

  [[nodiscard]] static Span<float> part(const Buffer<float>& of, Range range) {
    return range.empty() ? Span<float>() : of.span().subspan(range.begin, range.size());
  }
  [[nodiscard]] Span<const float> param(Range range) const { return part(params_, range); }
  [[nodiscard]] Span<float> grad(Range range) const { return part(grads_, range); }

  [[nodiscard]] ops::NormShape norm_shape() const {
    return {sequences_ * length_, config_.width, config_.norm == Norm::layer_norm, static_cast<float>(config_.norm_epsilon)};
  }
  [[nodiscard]] ops::EmbeddingShape embedding_shape() const { return {sequences_, length_, config_.width, config_.vocab}; }
  [[nodiscard]] ops::AttentionShape attention_shape() const { return scape::attention_shape(config_, sequences_, length_); }
  // Query and key heads, which lie side by side.
  [[nodiscard]] ops::RotaryShape rotary_shape() const {
    return {sequences_, length_, config_.heads + config_.kv_heads, config_.head_size(), attention_shape().qkv_width()};
  }
  [[nodiscard]] LinearShape linear_shape(const LinearRanges& r) const { return {sequences_ * length_, r.in, r.out}; }
  [[nodiscard]] LinearRanges head() const { return {head_, {}, config_.width, config_.vocab}; }

  [[nodiscard]] Span<const Bf16> narrow_weight(const LinearRanges& r) const {
    return narrow_weights_.span().subspan(r.weight.begin - product_weights_.begin, r.weight.size());
  }
  [[nodiscard]] static Span<const Bf16> narrow(Span<Bf16> memory, Span<const float> values, const Stream& stream) {
    const Span<Bf16> to = memory.subspan(0, values.size());
    ops::narrow(to, values, stream);
    return to;
  }

  void linear_forward(Span<float> y, Span<const float> x, const LinearRanges& r, Write write, const Stream& stream) {
    if (config_.compute == Compute::bf16) {
      ops::linear_forward(y, narrow(work_.narrow_x, x, stream), narrow_weight(r), param(r.bias), linear_shape(r), write, stream);
    } else {
      ops::linear_forward(y, x, param(r.weight), param(r.bias), linear_shape(r), write, stream);
    }
  }
  void linear_backward(Span<float> dx, Span<const float> dy, Span<const float> x, const LinearRanges& r, const Stream& stream) {
    if (config_.compute == Compute::bf16) {
      const Span<const Bf16> narrow_dy = narrow(work_.narrow_dy, dy, stream);
      ops::linear_backward_weight(grad(r.weight), narrow_dy, narrow(work_.narrow_x, x, stream), linear_shape(r), stream);
      ops::linear_backward_input(dx, narrow_dy, narrow_weight(r), linear_shape(r), stream);
    } else {
      ops::linear_backward_weight(grad(r.weight), dy, x, linear_shape(r), stream);
      ops::linear_backward_input(dx, dy, param(r.weight), linear_shape(r), stream);
    }
    if (!r.bias.empty()) ops::linear_backward_bias(grad(r.bias), dy, linear_shape(r), stream);
  }
  void norm_forward(const NormActivations& a, Span<const float> x, const NormRanges& r, const Stream& stream) {
    ops::norm_forward(a.output, a.normalised, a.inverse, x, param(r.scale), param(r.shift), norm_shape(), stream);
  }
  void norm_backward(Span<float> dx, Span<const float> dy, const NormActivations& a, const NormRanges& r, const Stream& stream) {
    ops::norm_backward(dx, grad(r.scale), grad(r.shift), dy, a.normalised, a.inverse, param(r.scale), norm_shape(), stream);
  }

  // ---- forward and backward

  void forward(const Batch& batch, const Stream& stream) {
    lay_out(batch, stream);
    if (config_.compute == Compute::bf16) ops::narrow(narrow_weights_, param(product_weights_), stream);
    ops::embedding_forward(work_.x, batch.inputs, param(embedding_), param(positions_), embedding_shape(), stream);
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      if (config_.recompute == Recompute::layer) copy(work_.layers[i].input, work_.x, stream);
      forward_layer(i, stream);
      linear_forward(work_.x, work_.layers[i].activated, layers_[i].ffn_out, Write::add, stream);
    }
    norm_forward(work_.final, work_.x, final_norm_, stream);
    linear_forward(work_.logits, work_.final.output, head(), Write::assign, stream);
  }

  // All that the backward pass needs of a layer, from its input in work_.x: everything but its last product.
  void forward_layer(std::size_t i, const Stream& stream) {
    const LayerRanges& r = layers_[i];
    const LayerActivations& a = work_.layers[i];
    norm_forward(a.norm1, work_.x, r.norm1, stream);
    linear_forward(a.qkv, a.norm1.output, r.qkv, Write::assign, stream);
    if (config_.positions == Positions::rotary) ops::rotary_forward(a.qkv, cosine_, sine_, rotary_shape(), stream);
    ops::attention_forward(a.attention, a.attention_kept, work_.attention_scratch, a.qkv, attention_shape(), stream);
    linear_forward(work_.x, a.attention, r.attention_out, Write::add, stream);

    norm_forward(a.norm2, work_.x, r.norm2, stream);
    linear_forward(a.hidden, a.norm2.output, r.ffn_in, Write::assign, stream);
    if (config_.activation == Activation::gelu) {
      ops::gelu_forward(a.activated, a.hidden, stream);
    } else {
      ops::swiglu_forward(a.activated, a.hidden, sequences_ * length_, config_.ffn, stream);
    }
  }

  // From dlogits in work_.logits. work_.dx is the gradient of the residual stream; every branch adds to it through its norm.
  void backward(const Batch& batch, const Stream& stream, const GradientsReady& ready) {
    linear_backward(work_.dbranch, work_.logits, work_.final.output, head(), stream);
    if (!config_.tied_embedding) ready(head_);
    zero(work_.dx, stream);
    norm_backward(work_.dx, work_.dbranch, work_.final, final_norm_, stream);
    ready({final_norm_.scale.begin, layout_.size()});

    for (std::size_t i = layers_.size(); i-- > 0;) {
      const LayerRanges& r = layers_[i];
      const LayerActivations& a = work_.layers[i];
      if (config_.recompute == Recompute::layer && i + 1 < layers_.size()) {
        copy(work_.x, a.input, stream);
        forward_layer(i, stream);
      }
      linear_backward(work_.dactivated, work_.dx, a.activated, r.ffn_out, stream);
      if (config_.activation == Activation::gelu) {
        ops::gelu_backward(work_.dhidden, work_.dactivated, a.hidden, stream);
      } else {
        ops::swiglu_backward(work_.dhidden, work_.dactivated, a.hidden, batch.tokens(), config_.ffn, stream);
      }
      linear_backward(work_.dbranch, work_.dhidden, a.norm2.output, r.ffn_in, stream);
      norm_backward(work_.dx, work_.dbranch, a.norm2, r.norm2, stream);

      linear_backward(work_.dbranch, work_.dx, a.attention, r.attention_out, stream);
      ops::attention_backward(work_.dqkv, work_.dbranch, a.attention, a.qkv, a.attention_kept, work_.attention_scratch,
                              attention_shape(), stream);
      if (config_.positions == Positions::rotary) ops::rotary_backward(work_.dqkv, cosine_, sine_, rotary_shape(), stream);
      linear_backward(work_.dbranch, work_.dqkv, a.norm1.output, r.qkv, stream);
      norm_backward(work_.dx, work_.dbranch, a.norm1, r.norm1, stream);
      ready(r.matrices);
      ready(r.vectors);
    }
    ops::embedding_backward(grad(embedding_), grad(positions_), work_.dx, batch.inputs, embedding_shape(), stream);
    ready({0, layers_.front().matrices.begin});
  }

  [[nodiscard]] double read_loss(const Stream& stream) {
    copy(host_loss_.span(), loss_, stream);
    stream.synchronize();
    return host_loss_.host()[0];
  }

  ModelConfig config_;
  ParameterLayout layout_;
  Buffer<float> params_;
  Buffer<float> grads_;
  Buffer<float> cosine_;  // [context, head_size/2]
  Buffer<float> sine_;
  Buffer<double> loss_;
  PinnedBuffer<double> host_loss_{1, params_.device()};

  Range product_weights_;
  Buffer<Bf16> narrow_weights_;  // product_weights_ as of this forward pass, with compute = bf16

  Range embedding_, positions_, head_;  // positions_ may be empty; head_ is embedding_ when tied
  std::vector<LayerRanges> layers_;
  NormRanges final_norm_;

  Buffer<float> memory_;
  Workspace work_;
  std::int64_t sequences_ = 0;  // the shape that work_ is laid out for
  std::int64_t length_ = 0;
};

}  // namespace

ModelMemory model_memory(const ModelConfig& config, std::int64_t sequences, std::int64_t length) {
  constexpr std::int64_t bytes = sizeof(float);
  const ParameterLayout layout = parameter_layout(config);
  const std::int64_t parameters = layout.size() * bytes;
  const std::int64_t narrow = config.compute == Compute::bf16 ? product_weights(config, layout).size() : 0;
  const std::int64_t tables = config.positions == Positions::rotary ? config.context * config.head_size() : 0;
  Carver count;
  const Workspace counted(count, config, sequences, length);
  return {parameters, parameters, narrow * std::int64_t{sizeof(Bf16)}, (count.used() + tables) * bytes};
}

std::unique_ptr<Model> make_model(const ModelConfig& config, Device device) {
  require(device.kind == DeviceKind::cpu, ErrorKind::usage,
          "models run on the CPU only: the CUDA operators are not part of this build");
  require(config.compute != Compute::bf16 || ops::bf16_products(device), ErrorKind::usage,
          "compute=bf16: there are no bfloat16 matrix products for this processor (on x86, oneDNN has them from AVX-512 on)");
  return std::make_unique<Transformer>(config, device);
}

}  // namespace scape
