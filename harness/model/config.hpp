// What a transformer is made of. GPT (Radford et al., 2019) and Llama (Touvron et al., 2023) are settings of one family:
// pre-norm blocks  x += attention(norm(x)),  x += ffn(norm(x)),  a final norm and an output projection.
// Presets are rows of one table in config.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "scape/config.hpp"
#include "scape/parameters.hpp"

namespace scape {

enum class Norm { layer_norm, rms_norm };
enum class Positions { learned, rotary };
enum class Activation { gelu, swiglu };  // gelu is GPT-2's tanh form; swiglu is silu(gate)·up
/// Of the factors of the matrix products with weights. bf16: weights and activations are rounded just before a product; its sums,
/// the weights that are trained, every gradient, attention, norms and loss are fp32.
enum class Compute { fp32, bf16 };
/// What the backward pass computes again (Chen et al., arXiv 1604.06174). layer: only the input of each layer is kept; a layer's
/// other activations are made a second time when its turn comes, with the same bits.
enum class Recompute { none, layer };

struct ModelConfig {
  std::int64_t vocab = 256;   // token ids are in [0, vocab)
  std::int64_t context = 64;  // longest sequence
  std::int64_t layers = 3;
  std::int64_t width = 96;    // size of the residual stream
  std::int64_t heads = 3;     // query heads; head size = width / heads
  std::int64_t kv_heads = 3;  // key and value heads; each serves heads / kv_heads query heads
  std::int64_t ffn = 384;     // hidden width of the feed-forward block
  Norm norm = Norm::layer_norm;
  Positions positions = Positions::learned;
  Activation activation = Activation::gelu;
  bool tied_embedding = true;  // the output projection is the token embedding
  bool biases = true;          // on every linear layer except the output projection; shifts on norms
  double norm_epsilon = 1e-5;
  double rope_base = 10000;
  double init_std = 0.02;  // matrices N(0, init_std²); projections into the residual stream divided by √(2·layers)
  std::int64_t init_seed = 1234;
  Compute compute = Compute::fp32;
  Recompute recompute = Recompute::none;

  [[nodiscard]] std::int64_t head_size() const { return width / heads; }
  /// Rows of the fused projection of a token's query heads, key heads and value heads, in this order.
  [[nodiscard]] std::int64_t qkv_width() const { return (heads + 2 * kv_heads) * head_size(); }
  /// Rows of the first matrix of the feed-forward block; with swiglu those of the gate, then those of up.
  [[nodiscard]] std::int64_t ffn_in_width() const { return activation == Activation::swiglu ? 2 * ffn : ffn; }
  /// Declares every setting under its member's name.
  void declare(OptionTable& table);
  /// Throws Error(usage) naming the setting that cannot be meant.
  void validate() const;
};

/// A preset by name. Throws Error(usage) naming the nearest preset when there is none of this name.
[[nodiscard]] ModelConfig model_config(std::string_view preset);
[[nodiscard]] std::vector<std::string> model_presets();

/// Names, shapes and coordinates of the parameters, nothing allocated. All matrices come first: token embedding, learned
/// positions, the layers in order, untied output projection; then all vectors: the layers in order, final norm.
[[nodiscard]] ParameterLayout parameter_layout(const ModelConfig& config);

/// Forward and backward of one token at full context, as model FLOPs utilisation is usually reckoned (Chowdhery et al.,
/// PaLM, 2022, appendix B):  6·P + 12·layers·width·context  with P the parameters that take part in matrix products (every
/// matrix but looked-up embeddings; a tied embedding counts once, as output projection). The attention term counts the
/// full square although causal attention needs half.
[[nodiscard]] double flops_per_token(const ModelConfig& config);

}  // namespace scape
