// The update rules of the core. AdamW: Loshchilov & Hutter 2019 as in PyTorch. AdamS: arXiv 2505.16363.
#pragma once

#include "scape/kernels.hpp"
#include "scape/optimizer.hpp"
#include "scape/scape.hpp"

namespace scape {

/// Coefficients of AdamW step t = 1, 2, … with bias correction; weight_decay is left to the caller's runs.
[[nodiscard]] AdamStep adamw_step(const CommonOptions& options, std::int64_t t, double learning_rate);

class AdamW final : public UpdateRule {
 public:
  struct Options {
    void declare(OptionTable&) {}
  };
  AdamW(const Options&, const CommonOptions& common, const MethodContext& context);
  void apply(const StepContext& context, float gradient_scale) override;
  [[nodiscard]] std::vector<StateEntry> state() override;

 private:
  CommonOptions common_;
  Buffer<float> m_, v_;         // [W]
  Buffer<std::int64_t> steps_;  // [1] on the host
};

class AdamS final : public UpdateRule {
 public:
  struct Options {
    BiasCorrection bias_correction = BiasCorrection::scape;
    void declare(OptionTable& table) { declare_bias_correction(table, bias_correction); }
  };
  AdamS(const Options& options, const CommonOptions& common, const MethodContext& context);
  void apply(const StepContext& context, float gradient_scale) override;
  [[nodiscard]] std::vector<StateEntry> state() override;

 private:
  Options options_;
  CommonOptions common_;
  Buffer<float> m_;             // [W]
  Buffer<std::int64_t> steps_;  // [1] on the host
};

}  // namespace scape
