// Layer normalisation (Ba et al., 2016) and its root-mean-square form (Zhang & Sennrich, 2019), each row by itself:
//   x̂ = (x − mean(x)) / √(var(x) + ε)      or, not centred,   x̂ = x / √(mean(x²) + ε)
//   y = x̂ · scale + shift
#pragma once

#include "scape/buffer.hpp"
#include "scape/stream.hpp"

namespace scape::ops {

struct NormShape {
  std::int64_t rows;
  std::int64_t width;
  bool centred;  // true: LayerNorm, false: RMSNorm
  float epsilon;
};

/// Writes y and, for the backward pass, x̂ and 1/√(…).   y, normalised, x [rows, width], inverse [rows], scale [width], shift
/// [width] or empty
void norm_forward(Span<float> y, Span<float> normalised, Span<float> inverse, Span<const float> x, Span<const float> scale,
                  Span<const float> shift, NormShape shape, const Stream& stream);

/// With h = dy · scale:  dx += inverse · (h − mean(h) − x̂ · mean(h·x̂)), without mean(h) when not centred;
/// dscale += Σ_rows dy·x̂;  dshift += Σ_rows dy unless empty.
void norm_backward(Span<float> dx, Span<float> dscale, Span<float> dshift, Span<const float> dy, Span<const float> normalised,
                   Span<const float> inverse, Span<const float> scale, NormShape shape, const Stream& stream);

}  // namespace scape::ops
