// Cross entropy on the CPU.
#include "ops/cross_entropy.hpp"

#include <cmath>
#include <string>

#include "ops/cpu/loops.hpp"

namespace scape::ops {

namespace {

void check_targets(const std::int32_t* targets, std::int64_t rows, std::int64_t vocab) {
  for (std::int64_t i = 0; i < rows; ++i) {
    if (targets[i] >= 0 && targets[i] < vocab) continue;
    throw Error(ErrorKind::input, "target id " + std::to_string(targets[i]) + " at position " + std::to_string(i) +
                                      " of the batch is outside the vocabulary of " + std::to_string(vocab));
  }
}

double mean(const float* losses, std::int64_t rows) {
  double total = 0;
  for (std::int64_t i = 0; i < rows; ++i) total += losses[i];
  return total / static_cast<double>(rows);
}

}  // namespace

void cross_entropy_forward(Span<double> mean_loss, Span<float> losses, Span<const float> logits, Span<const std::int32_t> targets,
                           std::int64_t rows, std::int64_t vocab, const Stream& stream) {
  stream.enqueue([=, result = mean_loss.host().data(), losses = losses.host().data(), logits = logits.host().data(),
                  targets = targets.host().data()] {
    check_targets(targets, rows, vocab);
    for_rows(rows, vocab, [=](std::int64_t row) {
      const float* z = logits + row * vocab;
      const float largest = maximum(z, vocab);
      float total = 0;
#pragma omp simd reduction(+ : total)
      for (std::int64_t j = 0; j < vocab; ++j) total += exponential(z[j] - largest);
      losses[row] = std::log(total) + (largest - z[targets[row]]);
    });
    *result = mean(losses, rows);
  });
}

void cross_entropy_forward_backward(Span<double> mean_loss, Span<float> losses, Span<float> logits,
                                    Span<const std::int32_t> targets, std::int64_t rows, std::int64_t vocab, double scale,
                                    const Stream& stream) {
  stream.enqueue([=, result = mean_loss.host().data(), losses = losses.host().data(), logits = logits.host().data(),
                  targets = targets.host().data()] {
    check_targets(targets, rows, vocab);
    const auto weight = static_cast<float>(scale / static_cast<double>(rows));
    for_rows(rows, vocab, [=](std::int64_t row) {
      float* z = logits + row * vocab;
      const float largest = maximum(z, vocab);
      const float target = z[targets[row]];
      float total = 0;
#pragma omp simd reduction(+ : total)
      for (std::int64_t j = 0; j < vocab; ++j) {
        z[j] = exponential(z[j] - largest);
        total += z[j];
      }
      losses[row] = std::log(total) + (largest - target);
      const float factor = weight / total;
#pragma omp simd
      for (std::int64_t j = 0; j < vocab; ++j) z[j] *= factor;
      z[targets[row]] -= weight;
    });
    *result = mean(losses, rows);
  });
}

}  // namespace scape::ops
