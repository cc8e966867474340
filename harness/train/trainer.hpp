// The training loop: batches, forward and backward passes, the method's step, validation, records, checkpoints, and stopping
// together.
#pragma once

#include <exception>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_writer.hpp"
#include "data/token_stream.hpp"
#include "model/model.hpp"
#include "record/recorder.hpp"
#include "scape/communicator.hpp"
#include "scape/diagnostics.hpp"
#include "scape/error.hpp"
#include "scape/optimizer.hpp"
#include "train/run_config.hpp"
#include "train/stop.hpp"

namespace scape {

/// What a run trains with. All of it outlives the trainer.
struct TrainingSetup {
  Model& model;
  Optimizer& optimizer;
  Communicator& communicator;  // the method's; its traffic is what a run records
  const TokenStream& training;
  const TokenStream& validation;
  Recorder& recorder;  // a NullRecorder except on rank 0
  const Stream& stream;
  const Stream& comm_stream;
  CheckpointWriter* checkpoints = nullptr;  // nullptr: none are written
};

/// An error that all ranks throw together, so that each can leave in peace.
class AgreedError : public Error {
 public:
  using Error::Error;
};

class Trainer {
 public:
  Trainer(const TrainingSetup& setup, const TrainOptions& options);

  /// Everything that the next step depends on, under the names that a checkpoint has.
  [[nodiscard]] std::vector<StateEntry> state();
  /// Goes on behind the step of `checkpoint`. Collective; see Checkpoint::load.
  void resume(const Checkpoint& checkpoint);
  /// The step that run() begins with.
  [[nodiscard]] std::int64_t first_step() const { return progress_.host()[0] + 1; }

  /// Trains to the last step, or until `stop_reason` (asked after every step) gives a reason on any rank; all ranks stop after
  /// the same step. With a CheckpointWriter, a checkpoint is written every checkpoint_every steps, while training goes on, and
  /// before run() returns, unless the run is complete and checkpoint_last is false. None is begun while steps are refused: good
  /// ones are not replaced by the state of a run that diverges. One that cannot be written while training goes on
  /// is told to the recorder, and training continues. The recorder has begun; run() ends it. When it fails, the run stops as on
  /// request and the checkpoint is written before its error is thrown. Throws AgreedError(diverged) after too many refused steps in
  /// a row, AgreedError(usage), with a checkpoint, for a step above peak_teraflops, AgreedError(input) for a record or last
  /// checkpoint that cannot be written.
  RunStatus run(const std::function<StopReason()>& stop_reason);

  /// What the trainer itself sends after each step, apart from the method: for a watchdog.
  [[nodiscard]] const Communicator& control() const { return *control_; }

  /// Mean loss over the validation batches and all ranks [nat/token]. Collective.
  [[nodiscard]] double evaluate();

 private:
  // What every rank tells the others after a step.
  struct Report {
    double slowest = 0;                           // seconds of the step on the slowest rank
    double loss_sum = 0;                          // over the ranks
    StopReason stop = StopReason::none;           // the strongest of any rank
    std::vector<CheckpointWriter::Part> parts{};  // of the checkpoint being written, by rank
    std::int64_t data_hash = 0;                   // of all ranks' tokens
  };
  struct Mine {
    double loss = 0;
    double seconds = 0;
    StopReason stop = StopReason::none;
    CheckpointWriter::Part part{};
    std::uint32_t data_hash = 0;
  };
  [[nodiscard]] Report exchange(const Mine& mine);
  [[nodiscard]] StepContext context(std::int64_t step);
  [[nodiscard]] double train_step(const StepContext& context, StepRecord& record);
  void record_validation(std::int64_t step);
  // Calls the recorder; its error is kept, and stops the run.
  void tell(const std::function<void(Recorder&)>& what);
  // All of these do nothing without a CheckpointWriter, or one that is idle. The first ends the previous checkpoint.
  void begin_checkpoint(std::int64_t step);
  // Ends the checkpoint under way if all ranks have written, or failed to write, their parts.
  void finish_checkpoint(const Report& report);
  void finish_checkpoint_now();
  void finish_last_checkpoint();
  [[noreturn]] void end_in_failure(ErrorKind kind, std::string message);
  [[nodiscard]] double flops_utilisation(double seconds) const;
  void agree_on_records();

  TrainingSetup setup_;
  TrainOptions options_;
  std::unique_ptr<Communicator> control_;  // losses and stop requests: not the method's traffic
  Stream control_stream_;
  Telemetry telemetry_;
  Diagnostics diagnostics_;
  Buffer<std::int32_t> inputs_, targets_;  // [micro_batch, sequence_length]
  std::int64_t tokens_per_step_;
  Buffer<std::int64_t> progress_{2};       // on the host: steps done, refused steps in a row
  double checkpoint_seconds_ = 0;          // that the loop spent on checkpoints since the last step record
  std::string checkpoint_error_;           // of the last one, as far as this rank knows
  std::filesystem::path good_checkpoint_;  // the last complete one, likewise; empty: none
  std::exception_ptr record_failure_;
};

}  // namespace scape
