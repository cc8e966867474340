// Training loop.
#include "train/trainer.hpp"

#include <chrono>

#include "scape/error.hpp"

namespace scape {

namespace {

class Stopwatch {
 public:
  [[nodiscard]] double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

Trainer::Trainer(const TrainingSetup& setup, const TrainOptions& options)
    : setup_(setup),
      options_(options),
      control_(setup.communicator.duplicate()),
      diagnostics_(setup.model.layout(), options.diagnostics_every),
      tokens_per_step_(options.global_batch * options.sequence_length) {
  const std::int64_t sequences = setup.training.sequences_per_rank();
  if (options_.micro_batch == 0) options_.micro_batch = sequences;
  if (sequences % options_.micro_batch != 0) {
    throw Error(ErrorKind::usage, "micro_batch=" + std::to_string(options_.micro_batch) + " does not divide the " +
                                      std::to_string(sequences) + " sequences of a rank (global_batch / ranks)");
  }
  inputs_ = Buffer<std::int32_t>(options_.micro_batch * options_.sequence_length);
  targets_ = Buffer<std::int32_t>(options_.micro_batch * options_.sequence_length);
}

StepContext Trainer::context(std::int64_t step) {
  return {.params = setup_.model.params(),
          .grads = setup_.model.grads(),
          .layout = setup_.model.layout(),
          .comm = setup_.communicator,
          .stream = setup_.stream,
          .comm_stream = setup_.comm_stream,
          .telemetry = telemetry_,
          .step = step,
          .learning_rate = options_.schedule.at(step, options_.steps)};
}

// One step; returns this rank's loss. Its time is recorded without that of keeping gradients for diagnostics, which is part of the
// backward pass because a method may overwrite them from then on.
double Trainer::train_step(const StepContext& context, StepRecord& record) {
  const Stopwatch watch;
  double diagnostics_seconds = 0;
  const std::int64_t micro_batches = setup_.training.sequences_per_rank() / options_.micro_batch;
  const double scale = 1.0 / static_cast<double>(micro_batches);
  const Batch batch{inputs_.span(), targets_.span(), options_.micro_batch, options_.sequence_length};
  double loss = 0;
  setup_.model.zero_grads(setup_.stream);
  for (std::int64_t micro = 0; micro < micro_batches; ++micro) {
    {
      const Telemetry::Scope scope = telemetry_.scope(Phase::data, setup_.stream);
      setup_.training.batch(context.step - 1, micro, options_.micro_batch, inputs_.host(), targets_.host());
    }
    const Telemetry::Scope scope = telemetry_.scope(Phase::forward_backward, setup_.stream);
    GradientsReady ready;  // communication starts only when the last micro-batch has been added
    if (micro + 1 == micro_batches) {
      ready = [&](Range range) {
        if (diagnostics_.due(context)) {
          const Stopwatch keeping;
          diagnostics_.keep_gradients(context, range);
          diagnostics_seconds += keeping.seconds();
        }
        setup_.optimizer.gradients_ready(context, range);
      };
    }
    loss += scale * setup_.model.forward_backward(batch, scale, setup_.stream, ready);
  }
  record.learning_rate = context.learning_rate;
  record.result = setup_.optimizer.step(context);
  setup_.stream.synchronize();
  record.seconds = watch.seconds() - diagnostics_seconds;
  record.phase_seconds = telemetry_.take();
  record.phase_seconds[static_cast<std::size_t>(Phase::forward_backward)] -= diagnostics_seconds;
  return loss;
}

Trainer::Report Trainer::exchange(double loss, bool stop) {
  std::vector<double> mine{loss, stop ? 1.0 : 0.0};
  std::vector<double> all(mine.size() * static_cast<std::size_t>(control_->size()));
  control_->all_gather<double>(Span<double>(std::span(mine)), Span<double>(std::span(all)), control_stream_);
  Report report;
  for (std::size_t i = 0; i < all.size(); i += mine.size()) {
    report.loss_sum += all[i];
    report.stop = report.stop || all[i + 1] != 0;
  }
  return report;
}

double Trainer::evaluate() {
  const std::int64_t batches = std::min(options_.validation_batches, setup_.validation.steps_per_epoch());
  const Batch batch{inputs_.span(), targets_.span(), options_.micro_batch, options_.sequence_length};
  double loss = 0;
  for (std::int64_t i = 0; i < batches; ++i) {
    const std::int64_t micro_batches = setup_.validation.sequences_per_rank() / options_.micro_batch;
    for (std::int64_t micro = 0; micro < micro_batches; ++micro) {
      setup_.validation.batch(i, micro, options_.micro_batch, inputs_.host(), targets_.host());
      loss += setup_.model.evaluate(batch, setup_.stream) / static_cast<double>(micro_batches);
    }
  }
  return exchange(loss / static_cast<double>(batches), false).loss_sum / control_->size();
}

void Trainer::record_validation(std::int64_t step) {
  const Stopwatch watch;
  const double loss = evaluate();
  setup_.recorder.evaluate({step, step * tokens_per_step_, loss, watch.seconds()});
}

RunStatus Trainer::run(const std::function<bool()>& stop_requested) {
  RunStatus status = RunStatus::complete;
  std::string message;
  std::int64_t skipped_in_a_row = 0;
  record_validation(0);
  for (std::int64_t step = 1; step <= options_.steps; ++step) {
    StepRecord record;
    record.step = step;
    record.tokens = step * tokens_per_step_;
    const Traffic before = setup_.communicator.traffic();
    const StepContext now = context(step);
    const double loss = train_step(now, record);
    record.expected_wire_bytes = setup_.optimizer.expected_wire_bytes(step);  // after it: some know only then
    record.traffic = setup_.communicator.traffic().since(before);
    const Report report = exchange(loss, stop_requested());
    record.loss = report.loss_sum / control_->size();
    if (record.result.applied) {
      std::vector<TensorDiagnostics> tensors = diagnostics_.after_step(now, setup_.optimizer);
      if (!tensors.empty()) setup_.recorder.diagnose({step, std::move(tensors)});
    }
    setup_.recorder.step(record);

    skipped_in_a_row = record.result.applied ? 0 : skipped_in_a_row + 1;
    if (skipped_in_a_row >= options_.most_skipped_in_a_row) {
      message = "gradients were not finite for " + std::to_string(skipped_in_a_row) + " steps in a row, the last was step " +
                std::to_string(step);
      setup_.recorder.end({RunStatus::failed, message});
      throw Error(ErrorKind::diverged, message);
    }
    const bool stop = report.stop && step < options_.steps;
    if (stop || step == options_.steps || step % options_.validate_every == 0) record_validation(step);
    if (stop) {
      status = RunStatus::stopped;
      message = "stopped by a signal after step " + std::to_string(step);
      break;
    }
  }
  setup_.recorder.end({status, message});
  return status;
}

}  // namespace scape
