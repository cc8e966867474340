// Language models as the trainer sees them: one flat vector of parameters, one of gradients, and a step that computes
// loss and gradient. Everything behind it (make_model) is one transformer class; ModelConfig says which family member.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "model/config.hpp"
#include "scape/buffer.hpp"
#include "scape/parameters.hpp"
#include "scape/stream.hpp"

namespace scape {

/// `sequences` rows of `length` token ids each, row-major, on the model's device; targets are the inputs' successors.
struct Batch {
  Span<const std::int32_t> inputs;   // [sequences, length]
  Span<const std::int32_t> targets;  // [sequences, length]
  std::int64_t sequences = 0;
  std::int64_t length = 0;
  [[nodiscard]] std::int64_t tokens() const { return sequences * length; }
};

/// Called on the thread that called forward_backward, when everything that completes the gradient of a range of coordinates is
/// queued on the stream: work ordered behind this point of the stream (record an Event there) sees the final gradient.
using GradientsReady = std::function<void(Range)>;

class Model {
 public:
  virtual ~Model() = default;

  [[nodiscard]] virtual const ModelConfig& config() const = 0;
  [[nodiscard]] virtual const ParameterLayout& layout() const = 0;
  [[nodiscard]] virtual Span<float> params() = 0;  // [layout().size()], initialised
  [[nodiscard]] virtual Span<float> grads() = 0;   // [layout().size()], zero at first

  /// Adds gradient_scale · ∂(mean token loss)/∂params to grads() and returns the mean token loss (nats, not scaled). With A
  /// micro-batches accumulated, pass 1/A. Blocks until the loss is known, so the batch may be reused on return.
  /// `gradients_ready` gets disjoint ranges, the last layer first, that together cover [0, layout().size()) exactly once.
  /// Throws Error(usage) if the batch does not fit the model (length above the context), Error(input) for a token id outside
  /// the vocabulary.
  virtual double forward_backward(const Batch& batch, double gradient_scale, const Stream& stream,
                                  const GradientsReady& gradients_ready = {}) = 0;

  /// Mean token loss (nats); touches no gradient. Blocks and throws as forward_backward does.
  [[nodiscard]] virtual double evaluate(const Batch& batch, const Stream& stream) = 0;

  /// Logits of every position into `out` [sequences, length, vocab], ordered on `stream`; batch.targets may be empty.
  virtual void logits(const Batch& batch, Span<float> out, const Stream& stream) = 0;

  /// Sets grads() to zero, ordered on `stream`.
  void zero_grads(const Stream& stream) { zero(grads(), stream); }
  /// Floating-point operations of one training token at full context; see flops_per_token(const ModelConfig&).
  [[nodiscard]] double flops_per_token() const { return scape::flops_per_token(config()); }
};

/// A freshly initialised model: the same bits for the same config on every rank. Throws Error(usage) for a config that is
/// not valid, a device without model code, or compute = bf16 where there are no such products.
[[nodiscard]] std::unique_ptr<Model> make_model(const ModelConfig& config, Device device = cpu_device);

/// Bytes on one rank of a model that computes batches of `sequences` rows of `length` tokens; nothing is allocated.
struct ModelMemory {
  std::int64_t parameters = 0;
  std::int64_t gradients = 0;
  std::int64_t narrow_weights = 0;  // copy in bfloat16 for the products
  std::int64_t activations = 0;     // what the backward pass needs, its own gradients and scratch, and tables
};
[[nodiscard]] ModelMemory model_memory(const ModelConfig& config, std::int64_t sequences, std::int64_t length);

}  // namespace scape
