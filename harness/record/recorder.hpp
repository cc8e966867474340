// What a run tells about itself, and to whom. The trainer hands plain records to one Recorder on rank 0: a run file
// (hdf5_recorder.hpp), the console (console_recorder.hpp), several at once (TeeRecorder) or nobody (NullRecorder, the other
// ranks). A value that a method does not have is NaN.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "record/columns.hpp"
#include "scape/communicator.hpp"
#include "scape/config.hpp"
#include "scape/diagnostics.hpp"
#include "scape/optimizer.hpp"
#include "scape/telemetry.hpp"

namespace scape {

using Attributes = std::vector<std::pair<std::string, OptionValue>>;

/// Known before the first step.
struct RunInfo {
  std::string name{};                      // short, for people: "scape-d0.01-seed1"
  std::string command_line{};              // as typed
  std::int64_t ranks = 1;                  // data-parallel ranks
  bool oversubscribed = false;             // more ranks than processor cores on some node: times are not representative
  std::int64_t planned_steps = 0;          // number of the last step
  std::int64_t tokens_per_step = 0;        // over all ranks
  std::int64_t first_step = 1;             // of this attempt; above 1 when a checkpoint is continued
  Attributes attributes{};                 // every option under its own name, and facts such as "unigram_entropy", "onednn_version"
  std::vector<Column> extra{};             // further columns of /steps: what StepRecord::extra holds
  std::int64_t diagnostics_every = 0;      // steps between diagnose() calls; 0: none
  std::vector<ParameterTensor> tensors{};  // what a DiagnosticsRecord is about
};

struct StepRecord {
  std::int64_t step = 0;                       // 1, 2, …; strictly rising within a run
  std::int64_t tokens = 0;                     // seen by all ranks so far, this step included
  double loss = not_available;                 // training loss, mean over all ranks [nat/token]
  double learning_rate = not_available;        // used in this step
  double seconds = 0;                          // wall time of the whole step
  StepResult result{};                         // what the method says about the step
  Telemetry::Seconds phase_seconds{};          // of this step
  Traffic traffic{};                           // of this step, all communicators together
  double expected_wire_bytes = not_available;  // Optimizer::expected_wire_bytes(step)
  double flops_utilisation = not_available;    // model FLOPs of the step / (its seconds · ranks · peak of a rank's processor)
  std::int64_t data_hash = 0;                  // of the token ids of all ranks' sequences in this step
  double checkpoint_seconds = 0;               // that training waited for checkpoints since the last step; not in `seconds`
  std::vector<double> extra{};                 // parallel to RunInfo::extra
  std::int64_t attempt = 1;                    // filled in by the file recorder
};

struct ValidationRecord {
  std::int64_t step = 0;        // after this step; 0 is before training
  std::int64_t tokens = 0;      // training tokens seen by all ranks so far
  double loss = not_available;  // mean over the validation tokens [nat/token]
  double seconds = 0;           // wall time of the evaluation
};

struct DiagnosticsRecord {
  std::int64_t step = 0;                     // after this step
  std::vector<TensorDiagnostics> tensors{};  // parallel to RunInfo::tensors
};

/// A checkpoint that was written, or failed to be.
struct CheckpointRecord {
  std::int64_t step = 0;
  std::int64_t bytes = 0;     // of all ranks
  double waited_seconds = 0;  // that training waited for it
  double seconds = 0;         // from its begin to its end, most of it beside training
  std::string path{};
  std::string error{};  // empty: complete
};

enum class RunStatus {
  complete,  ///< all planned steps done
  stopped,   ///< on request, to be continued
  failed,    ///< by an error
};

struct RunOutcome {
  RunStatus status = RunStatus::complete;
  std::string message{};  // why it stopped or failed
};

/// begin, then steps and evaluations in order, a step's diagnostics before the step, then end. flush() before a checkpoint is
/// written, so that the file always reaches at least as far as the checkpoint.
class Recorder {
 public:
  virtual ~Recorder() = default;
  virtual void begin(const RunInfo& info) = 0;
  virtual void step(const StepRecord& record) = 0;
  virtual void evaluate(const ValidationRecord& record) = 0;
  virtual void diagnose(const DiagnosticsRecord& /*record*/) {}
  virtual void checkpoint(const CheckpointRecord& /*record*/) {}
  virtual void flush() {}
  virtual void end(const RunOutcome& outcome) = 0;
};

/// Tells nobody.
class NullRecorder final : public Recorder {
 public:
  void begin(const RunInfo& /*info*/) override {}
  void step(const StepRecord& /*record*/) override {}
  void evaluate(const ValidationRecord& /*record*/) override {}
  void end(const RunOutcome& /*outcome*/) override {}
};

/// Tells several, in order. end() reaches all of them even if one throws; the first exception is then rethrown.
class TeeRecorder final : public Recorder {
 public:
  explicit TeeRecorder(std::vector<std::unique_ptr<Recorder>> recorders) : recorders_(std::move(recorders)) {}
  void begin(const RunInfo& info) override;
  void step(const StepRecord& record) override;
  void evaluate(const ValidationRecord& record) override;
  void diagnose(const DiagnosticsRecord& record) override;
  void checkpoint(const CheckpointRecord& record) override;
  void flush() override;
  void end(const RunOutcome& outcome) override;

 private:
  std::vector<std::unique_ptr<Recorder>> recorders_;
};

/// "complete", "stopped", "failed".
[[nodiscard]] std::string to_string(RunStatus status);

}  // namespace scape
