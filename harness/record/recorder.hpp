// What a run tells about itself, and to whom. The trainer hands plain records to one Recorder on rank 0: a run file
// (hdf5_recorder.hpp), the console (console_recorder.hpp), several at once (TeeRecorder) or nobody (NullRecorder, the other
// ranks). A value that a method does not have is NaN.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "record/columns.hpp"
#include "scape/config.hpp"

namespace scape {

inline constexpr double not_recorded = std::numeric_limits<double>::quiet_NaN();

using Attributes = std::vector<std::pair<std::string, OptionValue>>;

/// Known before the first step.
struct RunInfo {
  std::string name;                  // short, for people: "scape-d0.01-seed1"
  std::string command_line;          // as typed
  std::int64_t ranks = 1;            // data-parallel ranks
  bool oversubscribed = false;       // more ranks than processor cores on some node: times are not representative
  std::int64_t planned_steps = 0;    // number of the last step
  std::int64_t tokens_per_step = 0;  // over all ranks
  std::int64_t first_step = 1;       // of this attempt; above 1 when a checkpoint is continued
  Attributes attributes;             // every option under its own name, and facts such as "unigram_entropy", "onednn_version"
  StepSchema schema;                 // phases, collectives and diagnostics that the step records carry
};

/// One kind of collective within one step, as rank 0 saw it.
struct CollectiveRecord {
  std::int64_t calls = 0;
  std::int64_t payload_bytes = 0;  // bytes that the algorithm handed over: counted
  std::int64_t wire_bytes = 0;     // bytes that a rank sends under the bandwidth-optimal algorithm: modelled
  double seconds = 0;              // spent inside the collective, hidden or not
};

struct StepRecord {
  std::int64_t step = 0;                                // 1, 2, …; strictly rising within a run
  std::int64_t tokens = 0;                              // seen by all ranks so far, this step included
  bool skipped = false;                                 // a gradient was not finite: no state changed
  double loss = not_recorded;                           // training loss, mean over all ranks [nat/token]
  double learning_rate = not_recorded;                  // used in this step
  double gradient_norm = not_recorded;                  // L2, before clipping, the one that clipping used
  double seconds = 0;                                   // wall time of the whole step
  double exposed_communication_seconds = not_recorded;  // wall time in which compute waited for communication
  double expected_wire_bytes = not_recorded;            // the method's formula for this step, to hold against the count
  double density = not_recorded;                        // fraction of the parameters in the payload
  double mask_overlap = not_recorded;                   // fraction of the mask that was also in the previous one
  double residual_norm = not_recorded;                  // L2 of the error feedback, rank 0
  std::vector<double> phase_seconds;                    // parallel to StepSchema::phases
  std::vector<CollectiveRecord> collectives;            // parallel to StepSchema::collectives
  std::vector<double> diagnostics;                      // parallel to StepSchema::diagnostics
  std::int64_t attempt = 1;                             // filled in by the file recorder
};

struct ValidationRecord {
  std::int64_t step = 0;       // after this step; 0 is before training
  std::int64_t tokens = 0;     // training tokens seen by all ranks so far
  double loss = not_recorded;  // mean over the validation tokens [nat/token]
  double seconds = 0;          // wall time of the evaluation
};

enum class RunStatus {
  complete,  ///< all planned steps done
  stopped,   ///< on request, to be continued
  failed,    ///< by an error
};

struct RunOutcome {
  RunStatus status = RunStatus::complete;
  std::string message;  // why it stopped or failed
};

/// begin, then steps and evaluations in order, then end. flush() before a checkpoint is written, so that the file always
/// reaches at least as far as the checkpoint.
class Recorder {
 public:
  virtual ~Recorder() = default;
  virtual void begin(const RunInfo& info) = 0;
  virtual void step(const StepRecord& record) = 0;
  virtual void evaluate(const ValidationRecord& record) = 0;
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
  void flush() override;
  void end(const RunOutcome& outcome) override;

 private:
  std::vector<std::unique_ptr<Recorder>> recorders_;
};

/// "complete", "stopped", "failed".
[[nodiscard]] std::string to_string(RunStatus status);

}  // namespace scape
