// Cross entropy of the next token, in nats:  loss_i = log Σ_j exp(z_ij) − z_i,target(i)
#pragma once

#include "scape/buffer.hpp"
#include "scape/stream.hpp"

namespace scape::ops {

/// mean_loss[0] = mean of the rows' losses; logits [rows, vocab], targets [rows], losses [rows] is scratch.
/// Throws Error(input) for a target outside [0, vocab).
void cross_entropy_forward(Span<double> mean_loss, Span<float> losses, Span<const float> logits, Span<const std::int32_t> targets,
                           std::int64_t rows, std::int64_t vocab, const Stream& stream);

/// The same, and replaces the logits by `scale` times the gradient of the mean loss:
/// dz_ij = scale/rows · (softmax(z_i)_j − [j = target(i)]).
void cross_entropy_forward_backward(Span<double> mean_loss, Span<float> losses, Span<float> logits,
                                    Span<const std::int32_t> targets, std::int64_t rows, std::int64_t vocab, double scale,
                                    const Stream& stream);

}  // namespace scape::ops
