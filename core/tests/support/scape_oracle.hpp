// SCAPE in replicated form (arXiv 2607.01678) in double precision, plain loops, all ranks in one process: the steps of the
// algorithm as they are written down, to hold the real one against. Nothing of the implementation is used here.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

namespace scape::testing {

class ScapeOracle {
 public:
  using Vector = std::vector<double>;

  struct Tensor {
    std::size_t begin = 0, end = 0;
    bool matrix = true;  // sparse and decaying; a vector is always on the mask and does not decay
  };
  struct Settings {
    std::vector<Tensor> tensors;                  // cover [0, W)
    std::vector<std::size_t> owners;              // [N + 1] rank r chooses the masks of [owners[r], owners[r + 1])
    std::function<double(std::int64_t)> density;  // d of the mask whose first use is step t
    std::int64_t mask_delay = 1, mask_refresh = 1;
    double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1, clip_norm = 1;
    enum { scape, official, none } bias_correction = scape;
    double residual_scale = 1;  // part of c that stays off the mask
    bool clip_local = false;    // clip each rank's g instead of the recovered gradient
  };

  ScapeOracle(Settings settings, Vector parameters)
      : s(std::move(settings)),
        ranks(s.owners.size() - 1),
        theta(std::move(parameters)),
        m(theta.size()),
        e(ranks, Vector(theta.size())),
        mask(theta.size(), true) {}

  // One step with the gradient g[r] of each rank.
  void step(const std::vector<Vector>& g, double learning_rate) {
    const std::size_t size = theta.size();
    const auto n = static_cast<double>(ranks);
    ++t;
    previous_mask = mask;

    // 1. c = β1 m + (1−β1) g + e on each rank
    const auto clip_factor = [&](double norm) { return s.clip_norm > 0 && norm > s.clip_norm ? s.clip_norm / norm : 1; };
    local_norms.assign(ranks, 0);
    std::vector<Vector> c(ranks, Vector(size));
    for (std::size_t r = 0; r < ranks; ++r) {
      local_norms[r] = std::sqrt(std::inner_product(g[r].begin(), g[r].end(), g[r].begin(), 0.0));
      const double clip = s.clip_local ? clip_factor(local_norms[r]) : 1;
      for (std::size_t j = 0; j < size; ++j) c[r][j] = s.beta1 * m[j] + (1 - s.beta1) * clip * g[r][j] + e[r][j];
    }
    // 4. every mask_refresh steps a new mask, used mask_delay steps later; the newest whose time has come is in use
    if ((t - 1) % s.mask_refresh == 0) pending.push_back({t + s.mask_delay, choose(c)});
    while (!pending.empty() && pending.front().first_use <= t) {
      mask = std::move(pending.front().mask);
      pending.pop_front();
    }
    // 3. b = mean of c on the mask   5. ĝ = (b − β1 m)/(1−β1), its norm
    Vector gradient(size);
    double squares = 0;
    for (std::size_t j = 0; j < size; ++j) {
      if (!mask[j]) continue;
      double b = 0;
      for (std::size_t r = 0; r < ranks; ++r) b += c[r][j] / n;
      gradient[j] = (b - s.beta1 * m[j]) / (1 - s.beta1);
      squares += gradient[j] * gradient[j];
    }
    gradient_norm = std::sqrt(squares);
    const double clip = s.clip_local ? 1 : clip_factor(gradient_norm);
    // 2. residual   5. m   6. θ
    const double c1 = s.bias_correction == Settings::none ? 1 : 1 - std::pow(s.beta1, static_cast<double>(t));
    const double c2 = s.bias_correction == Settings::scape ? 1 - std::pow(s.beta2, static_cast<double>(t)) : 1;
    for (const Tensor& tensor : s.tensors) {
      const double decay = tensor.matrix ? s.weight_decay : 0;
      for (std::size_t j = tensor.begin; j < tensor.end; ++j) {
        for (std::size_t r = 0; r < ranks; ++r) e[r][j] = mask[j] ? 0 : s.residual_scale * c[r][j];
        if (!mask[j]) {
          m[j] = 0;
          theta[j] -= learning_rate * decay * theta[j];
          continue;
        }
        const double clipped = clip * gradient[j];
        const double previous = s.bias_correction == Settings::official ? m[j] / c1 : m[j];
        const double v = s.beta2 * previous * previous + (1 - s.beta2) * clipped * clipped;
        m[j] = s.beta1 * m[j] + (1 - s.beta1) * clipped;
        theta[j] -= learning_rate * (m[j] / c1 / (std::sqrt(v / c2) + s.epsilon) + decay * theta[j]);
      }
    }
  }

  Settings s;
  std::size_t ranks;
  std::int64_t t = 0;
  Vector theta, m;
  std::vector<Vector> e;  // [N][W]
  std::vector<bool> mask, previous_mask;
  double gradient_norm = 0;  // of the recovered gradient
  Vector local_norms;        // [N] of each rank's gradient
  // Smallest relative distance between the last element chosen and the first one not chosen, in the last mask made: where it is
  // near the rounding of a float, an implementation in float may choose otherwise and still be right.
  double margin = std::numeric_limits<double>::infinity();

 private:
  struct Pending {
    std::int64_t first_use;
    std::vector<bool> mask;
  };
  std::deque<Pending> pending;

  // Each owner's k = max(1, ⌊d·n⌋) largest |c| of the n coordinates that it owns of each matrix, from its own c.
  std::vector<bool> choose(const std::vector<Vector>& c) {
    margin = std::numeric_limits<double>::infinity();
    std::vector<bool> chosen(theta.size());
    for (std::size_t r = 0; r < ranks; ++r) {
      for (const Tensor& tensor : s.tensors) {
        const std::size_t begin = std::max(tensor.begin, s.owners[r]);
        const std::size_t end = std::min(tensor.end, s.owners[r + 1]);
        if (begin >= end) continue;
        const auto n = static_cast<double>(end - begin);
        const auto k =
            tensor.matrix ? static_cast<std::size_t>(std::max(1.0, std::floor(s.density(t + s.mask_delay) * n))) : end - begin;
        std::vector<std::size_t> order(end - begin);
        std::iota(order.begin(), order.end(), begin);
        std::stable_sort(order.begin(), order.end(),
                         [&](std::size_t a, std::size_t b) { return std::abs(c[r][a]) > std::abs(c[r][b]); });
        for (std::size_t i = 0; i < k; ++i) chosen[order[i]] = true;
        if (k == order.size()) continue;
        const double last = std::abs(c[r][order[k - 1]]);
        margin = std::min(margin, (last - std::abs(c[r][order[k]])) / last);
      }
    }
    return chosen;
  }
};

}  // namespace scape::testing
