// Where the time of a step goes, as the compute stream sees it. Phases do not overlap each other: the time of a scope inside
// another one is the inner one's (communication that begins inside the backward pass). What no phase covers is "other". Time on the
// communication stream that the compute stream does not wait for is hidden and appears in none.
#pragma once

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "scape/stream.hpp"

namespace scape {

enum class Phase {
  data,              ///< making the batch
  forward_backward,  ///< the model
  compress,          ///< the method's own work on gradients: residuals, selection, packing, quantization
  communication,     ///< exposed communication: the compute stream inside, or waiting for, a collective
  update,            ///< parameters and moments
};
inline constexpr std::array all_phases{Phase::data, Phase::forward_backward, Phase::compress, Phase::communication, Phase::update};
[[nodiscard]] const char* to_string(Phase phase);

class Telemetry {
 public:
  /// Seconds of each phase, indexed by Phase.
  using Seconds = std::array<double, all_phases.size()>;

  /// The time between making and destroying a Scope, measured on its stream.
  class Scope {
   public:
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope();

   private:
    friend class Telemetry;
    Scope(Telemetry& telemetry, Phase phase, const Stream& stream);
    Telemetry& telemetry_;
    Phase phase_;
    Stream stream_;
    Event begin_;
  };
  /// Scopes nest: they are closed in the reverse order of their making.

  [[nodiscard]] Scope scope(Phase phase, const Stream& stream) { return {*this, phase, stream}; }

  /// Sums of all scopes since the last call; waits until the last of them has ended.
  [[nodiscard]] Seconds take();  // while no scope is open

 private:
  struct Interval {
    Phase phase;
    std::optional<Phase> outer;  // of the scope around it
    Event begin, end;
  };
  std::vector<Interval> intervals_;
  std::vector<Phase> open_;
};

}  // namespace scape
