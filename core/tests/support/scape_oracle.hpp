// SCAPE in replicated and sharded form (arXiv 2607.01678) in double precision, plain loops, all ranks in one process: the steps of
// the algorithm as they are written down, to hold the real one against. Nothing of the implementation is used here.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

namespace scape::testing {

class ScapeOracle {
 public:
  using Vector = std::vector<double>;

  struct Tensor {
    std::size_t begin = 0, end = 0;
    bool matrix = true;     // sparse and decaying; a vector is always on the mask and does not decay
    std::size_t block = 1;  // coordinates that share a normaliser
  };
  struct Settings {
    std::vector<Tensor> tensors;                  // cover [0, W)
    std::vector<std::size_t> owners;              // [N + 1] rank r chooses the masks of [owners[r], owners[r + 1])
    std::vector<std::size_t> tensor_owners;       // unless empty: rank tensor_owners[i] chooses those of tensor i instead
    std::function<double(std::int64_t)> density;  // d of the mask whose first use is step t
    std::int64_t mask_delay = 1, mask_refresh = 1;
    double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1, clip_norm = 1;
    enum { scape, official, none } bias_correction = scape;
    enum { candidate, raw_gradient, update, momentum, random } statistic = candidate;
    enum { tensor, shard, global } scope = tensor;
    std::function<double(std::int64_t, std::size_t)> random_number;  // of step t and a coordinate
    double residual_scale = 1;                                       // part of c that stays off the mask
    bool clip_local = false;                                         // clip each rank's g instead of the recovered gradient
    bool sharded = false;
    std::function<void(Vector&)> code;  // unless empty: what becomes of values that a rank sends to one owner; sharded form
    enum { no_scaling, linear, root } backlog_scaling = no_scaling;
    double backlog_cap = 1;
    bool block_normaliser = false;
  };

  ScapeOracle(Settings settings, Vector parameters)
      : s(std::move(settings)),
        ranks(s.owners.size() - 1),
        theta(std::move(parameters)),
        m(theta.size()),
        q(theta.size()),
        e(ranks, Vector(theta.size())),
        age(theta.size(), 1),
        block_v(theta.size()),
        mask(theta.size(), true) {}

  // One step with the gradient g[r] of each rank.
  void step(const std::vector<Vector>& g, double learning_rate) {
    const std::size_t size = theta.size();
    const auto n = static_cast<double>(ranks);
    ++t;
    previous_mask = mask;

    // 1. c = β1 m + (1−β1) g + e on each rank. Sharded: p = (1−β1) g + e is sent, and an owner chooses by c = β1 m + q + p
    const auto clip_factor = [&](double norm) { return s.clip_norm > 0 && norm > s.clip_norm ? s.clip_norm / norm : 1; };
    local_norms.assign(ranks, 0);
    std::vector<Vector> c(ranks, Vector(size)), sent = c;
    std::vector<Vector> clipped_g = g;  // as it enters c
    for (std::size_t r = 0; r < ranks; ++r) {
      local_norms[r] = std::sqrt(std::inner_product(g[r].begin(), g[r].end(), g[r].begin(), 0.0));
      const double clip = s.clip_local ? clip_factor(local_norms[r]) : 1;
      for (double& x : clipped_g[r]) x *= clip;
      for (std::size_t j = 0; j < size; ++j) {
        const double p = (1 - s.beta1) * clipped_g[r][j] + e[r][j];
        c[r][j] = s.beta1 * m[j] + q[j] + p;
        sent[r][j] = s.sharded ? p : c[r][j];
      }
    }
    // 4. every mask_refresh steps a new mask, used mask_delay steps later; the newest whose time has come is in use
    if ((t - 1) % s.mask_refresh == 0) pending.push_back({t + s.mask_delay, choose(c, clipped_g)});
    while (!pending.empty() && pending.front().first_use <= t) {
      mask = std::move(pending.front().mask);
      pending.pop_front();
    }
    std::vector<Vector> lost(ranks, Vector(size));  // by codes
    if (s.code) {
      for (std::size_t r = 0; r < ranks; ++r) {
        for (std::size_t owner = 0; owner < ranks; ++owner) {
          Vector values;
          for (std::size_t j = s.owners[owner]; j < s.owners[owner + 1]; ++j) {
            if (mask[j]) values.push_back(sent[r][j]);
          }
          s.code(values);
          auto next = values.begin();
          for (std::size_t j = s.owners[owner]; j < s.owners[owner + 1]; ++j) {
            if (!mask[j]) continue;
            lost[r][j] = sent[r][j] - *next;
            sent[r][j] = *next++;
          }
        }
      }
    }
    // 3. b = mean of what is sent on the mask   5. ĝ = (b − β1 m)/(1−β1), its norm. Sharded: ĝ = (b + q)/(1−β1)
    Vector gradient(size);
    double squares = 0;
    for (std::size_t j = 0; j < size; ++j) {
      if (!mask[j]) continue;
      double b = 0;
      for (std::size_t r = 0; r < ranks; ++r) b += sent[r][j] / n;
      gradient[j] = (b + (s.sharded ? q[j] : -s.beta1 * m[j])) / (1 - s.beta1);
      squares += gradient[j] * gradient[j];
    }
    gradient_norm = std::sqrt(squares);
    const double clip = s.clip_local ? 1 : clip_factor(gradient_norm);
    // 2. residual, carry   5. m   6. θ
    doubt = 0;
    const double c1 = s.bias_correction == Settings::none ? 1 : 1 - std::pow(s.beta1, static_cast<double>(t));
    const double c2 = s.bias_correction == Settings::scape ? 1 - std::pow(s.beta2, static_cast<double>(t)) : 1;
    const double block_correction = s.bias_correction == Settings::none ? 1 : 1 - std::pow(s.beta2, static_cast<double>(t));
    for (const Tensor& tensor : s.tensors) {
      const double decay = tensor.matrix ? s.weight_decay : 0;
      for (std::size_t begin = tensor.begin; s.block_normaliser && begin < tensor.end; begin += tensor.block) {
        double mean_square = 0;  // over the block and the ranks
        for (const Vector& gradient_of_rank : clipped_g) {
          for (std::size_t j = begin; j < begin + tensor.block; ++j) mean_square += gradient_of_rank[j] * gradient_of_rank[j];
        }
        mean_square /= n * static_cast<double>(tensor.block);
        for (std::size_t j = begin; j < begin + tensor.block; ++j) {
          block_v[j] = s.beta2 * block_v[j] + (1 - s.beta2) * mean_square / n;
        }
      }
      for (std::size_t j = tensor.begin; j < tensor.end; ++j) {
        for (std::size_t r = 0; r < ranks; ++r) e[r][j] = mask[j] ? lost[r][j] : s.residual_scale * sent[r][j];
        if (s.sharded) q[j] = mask[j] ? 0 : s.residual_scale * (q[j] + s.beta1 * m[j]);
        if (!mask[j]) {
          m[j] = 0;
          ++age[j];
          theta[j] -= learning_rate * decay * theta[j];
          continue;
        }
        // The gradient of one of the steps that ĝ is the sum of, and how far the coordinate moves.
        const double clipped = clip * gradient[j];
        const double steps = s.backlog_scaling == Settings::no_scaling ? 1 : std::min(age[j], s.backlog_cap);
        const double factor = s.backlog_scaling == Settings::root ? std::sqrt(steps) : steps;
        const double one = clipped / steps;
        age[j] = 1;
        const double previous = s.bias_correction == Settings::official ? m[j] / c1 : m[j];
        const double v = s.beta2 * previous * previous + (1 - s.beta2) * one * one;
        const double norm = s.block_normaliser ? std::sqrt(block_v[j] / block_correction) + 1e-12 : std::sqrt(v / c2) + s.epsilon;
        double largest = 0;
        for (std::size_t r = 0; r < ranks; ++r) largest = std::max(largest, std::abs(sent[r][j]));
        doubt = std::max(doubt, factor * std::ldexp(clip * largest / steps, -24) / c1 / norm);
        const double u = (s.beta1 * m[j] + (1 - s.beta1) * one) / c1 / norm;
        m[j] = s.beta1 * m[j] + (1 - s.beta1) * clipped;
        theta[j] -= learning_rate * (factor * u + decay * theta[j]);
      }
    }
  }

  Settings s;
  std::size_t ranks;
  std::int64_t t = 0;
  Vector theta, m;
  Vector q;               // [W] the owners' carries; 0 in replicated form
  std::vector<Vector> e;  // [N][W]
  Vector age;             // [W] steps since a coordinate was on a used mask; 1: on the last one
  Vector block_v;         // [W] V of a coordinate's block
  std::vector<bool> mask, previous_mask;
  double gradient_norm = 0;  // of the recovered gradient
  Vector local_norms;        // [N] of each rank's gradient
  // Smallest relative distance between the last element chosen and the first one not chosen, in the last mask made: where it is
  // near the rounding of a float, an implementation in float may choose otherwise and still be right.
  double margin = std::numeric_limits<double>::infinity();
  // Largest change of m̂/(√v̂+ε) in the last step when a float rounds the largest of the ranks' numbers behind m. Where m_{t−1} is 0
  // and these numbers cancel each other, what rounding leaves of ĝ is all that AdamS has to go by, whose step does not depend on
  // the size of ĝ.
  double doubt = 0;

 private:
  struct Pending {
    std::int64_t first_use;
    std::vector<bool> mask;
  };
  std::deque<Pending> pending;

  // The number by which rank r chooses coordinate j.
  double score(const Vector& c, const Vector& g, std::size_t j) const {
    const double c1 = s.bias_correction == Settings::none ? 1 : 1 - std::pow(s.beta1, static_cast<double>(t));
    const double c2 = s.bias_correction == Settings::scape ? 1 - std::pow(s.beta2, static_cast<double>(t)) : 1;
    const double previous = s.bias_correction == Settings::official ? m[j] / c1 : m[j];
    const double v = s.beta2 * previous * previous + (1 - s.beta2) * g[j] * g[j];
    switch (s.statistic) {
      case Settings::candidate:
        return std::abs(c[j]);
      case Settings::raw_gradient:
        return std::abs(g[j]);
      case Settings::update:
        return std::abs(c[j] / c1) / (std::sqrt(v / c2) + s.epsilon);
      case Settings::momentum:
        return std::abs(m[j]);
      default:
        return s.random_number(t, j);
    }
  }

  // The coordinates of matrices in the groups within which they compete: those of one owner and tensor, of one owner, or all. Of
  // each group of n the k = max(1, ⌊d·n⌋) with the largest score are chosen, where the owner's own numbers make the score.
  std::vector<bool> choose(const std::vector<Vector>& c, const std::vector<Vector>& g) {
    std::vector<bool> chosen(theta.size());
    std::map<std::pair<std::size_t, std::size_t>, std::vector<std::size_t>> groups;
    Vector scores(theta.size());
    for (std::size_t i = 0; i < s.tensors.size(); ++i) {
      for (std::size_t j = s.tensors[i].begin; j < s.tensors[i].end; ++j) {
        std::size_t owner = 0;
        while (j >= s.owners[owner + 1]) ++owner;
        if (!s.tensor_owners.empty()) owner = s.tensor_owners[i];
        scores[j] = score(c[owner], g[owner], j);
        if (s.tensors[i].matrix) {
          groups[{s.scope == Settings::global ? 0 : owner, s.scope == Settings::tensor ? i : 0}].push_back(j);
        } else {
          chosen[j] = true;
        }
      }
    }
    margin = std::numeric_limits<double>::infinity();
    for (auto& [key, order] : groups) {
      const auto n = static_cast<double>(order.size());
      const auto k = static_cast<std::size_t>(std::max(1.0, std::floor(s.density(t + s.mask_delay) * n)));
      std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
      for (std::size_t i = 0; i < k; ++i) chosen[order[i]] = true;
      // Random numbers are the same in a float; momentum would be no clearer with other gradients.
      if (k == order.size() || s.statistic == Settings::random || s.statistic == Settings::momentum) continue;
      const double last = scores[order[k - 1]];
      const double next = scores[order[k]];
      if (last > 0) margin = std::min(margin, (last - next) / last);  // zeros are exact
    }
    return chosen;
  }
};

}  // namespace scape::testing
