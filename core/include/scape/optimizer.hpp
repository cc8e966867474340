// What a training method is. An Optimizer turns each rank's own gradient into the same new parameters on every rank.
// Most methods are Composed of two halves: a GradientSync (an approximate mean of the gradients over the ranks) and an
// UpdateRule (local arithmetic); methods that couple the halves, such as SCAPE, implement Optimizer directly.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "scape/buffer.hpp"
#include "scape/communicator.hpp"
#include "scape/config.hpp"
#include "scape/parameters.hpp"
#include "scape/telemetry.hpp"

namespace scape {

/// What a method is built for.
struct MethodContext {
  const ParameterLayout& layout;  // outlives the method
  Device device;
  int rank = 0;
  int ranks = 1;
  std::int64_t total_steps = 1;  // length of the run, for schedules given as a fraction of it
  std::uint64_t seed = 0;        // for methods that draw random numbers
};

/// One training step. All spans have layout.size() elements.
struct StepContext {
  Span<float> params;  // θ, the same bits on every rank before and after
  Span<float> grads;   // this rank's gradient (mean over its tokens); scratch afterwards
  const ParameterLayout& layout;
  Communicator& comm;         // used on comm_stream only
  const Stream& stream;       // compute
  const Stream& comm_stream;  // communication; may be the same stream as `stream`
  Telemetry& telemetry;
  std::int64_t step = 1;  // t = 1, 2, …
  double learning_rate = 0;
};

inline constexpr double not_available = std::numeric_limits<double>::quiet_NaN();

/// What a step did. Values that a method does not have are NaN.
struct StepResult {
  bool applied = true;                   // false: a rank had a non-finite gradient, all ranks refused, no state changed
  double gradient_norm = not_available;  // the global norm used for clipping, before clipping
  double density = not_available;        // fraction of the coordinates that this step communicated
  double mask_overlap = not_available;   // |M_t ∩ M_{t−1}| / |M_t|
  double residual_norm = not_available;  // this rank's error-feedback residual after the step
};

/// What a method lets diagnostics (diagnostics.hpp) see of its last step; empty spans for what it does not have.
struct StepView {
  Span<const std::uint64_t> mask{};  // bits of the W coordinates that the step communicated, as in MaskView; the same on all ranks
  Span<const float> candidate{};     // [W] this rank's values, of which those on the mask were sent
  Span<const float> residual{};      // [W] this rank's error-feedback residual after the step
};

/// How a piece of state relates to the ranks; decides how a checkpoint treats it.
enum class StateScope {
  replicated,  ///< identical on all ranks
  per_rank,    ///< different on every rank; summed when the number of ranks changes
  shard,       ///< this rank's range of a vector that all ranks hold together
};

/// A named span of a method's state, in the flat coordinate space where it has one value a coordinate.
struct StateEntry {
  std::string name;
  StateScope scope;
  Span<std::byte> bytes;
  DType type;  // of the elements that the bytes are
};

template <class T>
StateEntry state_entry(std::string name, StateScope scope, Span<T> values) {
  return {std::move(name),
          scope,
          {reinterpret_cast<std::byte*>(values.data()), values.size_bytes(), values.device()},
          DTypeOf<std::remove_const_t<T>>::value};
}

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// The gradients of `range` are final; a method may start to communicate them. Called during the backward pass of the last
  /// micro-batch, with the same sequence of ranges on all ranks, before step().
  virtual void gradients_ready(const StepContext&, Range) {}
  virtual StepResult step(const StepContext& context) = 0;
  /// Everything that the next step depends on besides parameters and gradients. Valid between steps, once the compute stream
  /// of the last one is synchronised.
  [[nodiscard]] virtual std::vector<StateEntry> state() = 0;
  /// The last applied step, `context`, as diagnostics see it. Valid until the gradients are overwritten or the next step begins.
  [[nodiscard]] virtual StepView inspect(const StepContext& /*context*/) const { return {}; }
  /// The method's own formula for the wire bytes that a rank sends in step t; compared with what is counted.
  [[nodiscard]] virtual double expected_wire_bytes(std::int64_t step) const = 0;
};

class GradientSync {
 public:
  virtual ~GradientSync() = default;
  virtual void gradients_ready(const StepContext&, Range) {}
  /// context.grads ← the (approximate) mean over the ranks, the same bits on every rank. Returns false, on all ranks
  /// together and with the state unchanged, when a rank's gradient is not finite; grads are then undefined.
  [[nodiscard]] virtual bool reduce(const StepContext& context) = 0;
  [[nodiscard]] virtual std::vector<StateEntry> state() { return {}; }
  [[nodiscard]] virtual double expected_wire_bytes(std::int64_t step) const = 0;
  /// Diagnostics of the last reduce(): the fraction of the coordinates that this rank communicated, and its residual's norm.
  [[nodiscard]] virtual double density() const { return 1; }
  [[nodiscard]] virtual double residual_norm() const { return not_available; }
  [[nodiscard]] virtual StepView inspect(const StepContext& /*context*/) const { return {}; }
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  /// θ and moments ← one step with the gradient `grads` · `gradient_scale` (the clip coefficient).
  virtual void apply(const StepContext& context, float gradient_scale) = 0;
  [[nodiscard]] virtual std::vector<StateEntry> state() = 0;
};

/// Options that every method has.
struct CommonOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;
  double clip_norm = 1.0;

  void declare(OptionTable& table);
};

/// λ for tensors of this role: only matrices decay.
[[nodiscard]] float weight_decay_of(TensorRole role, const CommonOptions& options);

/// min(1, clip_norm / norm); 1 when clipping is off (clip_norm 0).
[[nodiscard]] double clip_coefficient(double norm, double clip_norm);

/// sync, then clip by global norm, then rule.
class Composed final : public Optimizer {
 public:
  Composed(std::unique_ptr<GradientSync> sync, std::unique_ptr<UpdateRule> rule, const CommonOptions& options,
           const MethodContext& context);
  void gradients_ready(const StepContext& context, Range range) override { sync_->gradients_ready(context, range); }
  StepResult step(const StepContext& context) override;
  [[nodiscard]] std::vector<StateEntry> state() override;
  [[nodiscard]] StepView inspect(const StepContext& context) const override { return sync_->inspect(context); }
  [[nodiscard]] double expected_wire_bytes(std::int64_t step) const override { return sync_->expected_wire_bytes(step); }

 private:
  std::unique_ptr<GradientSync> sync_;
  std::unique_ptr<UpdateRule> rule_;
  double clip_norm_;
  Buffer<double> sum_of_squares_;  // [1]
};

}  // namespace scape
