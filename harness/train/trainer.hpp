// The training loop: batches, forward and backward passes, the method's step, validation, records, and stopping together.
#pragma once

#include <functional>

#include "data/token_stream.hpp"
#include "model/model.hpp"
#include "record/recorder.hpp"
#include "scape/communicator.hpp"
#include "scape/diagnostics.hpp"
#include "scape/optimizer.hpp"
#include "train/run_config.hpp"

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
};

class Trainer {
 public:
  Trainer(const TrainingSetup& setup, const TrainOptions& options);

  /// Trains from the first step to the last, or until `stop_requested` (asked after every step) is true on any rank; all ranks
  /// stop after the same step. The recorder has begun; run() ends it. Throws Error(diverged) after too many refused
  /// steps in a row, on all ranks together.
  RunStatus run(const std::function<bool()>& stop_requested);

  /// Mean loss over the validation batches and all ranks [nat/token]. Collective.
  [[nodiscard]] double evaluate();

 private:
  // What every rank tells the others after a step.
  struct Report {
    double loss_sum = 0;  // over the ranks
    bool stop = false;    // on any rank
  };
  [[nodiscard]] Report exchange(double loss, bool stop);
  [[nodiscard]] StepContext context(std::int64_t step);
  [[nodiscard]] double train_step(const StepContext& context, StepRecord& record);
  void record_validation(std::int64_t step);

  TrainingSetup setup_;
  TrainOptions options_;
  std::unique_ptr<Communicator> control_;  // losses and stop requests: not the method's traffic
  Stream control_stream_;
  Telemetry telemetry_;
  Diagnostics diagnostics_;
  Buffer<std::int32_t> inputs_, targets_;  // [micro_batch, sequence_length]
  std::int64_t tokens_per_step_;
};

}  // namespace scape
