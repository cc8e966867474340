// Training loop.
#include "train/trainer.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <utility>

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

// All numbers fit a double exactly.
Trainer::Report Trainer::exchange(const Mine& mine) {
  std::array<double, 7> sent{mine.loss,
                             static_cast<double>(mine.stop),
                             static_cast<double>(mine.part.state),
                             static_cast<double>(mine.part.summary.bytes),
                             static_cast<double>(mine.part.summary.crc),
                             static_cast<double>(mine.data_hash),
                             mine.seconds};
  std::vector<double> all(sent.size() * static_cast<std::size_t>(control_->size()));
  control_->all_gather<double>(Span<double>(std::span(sent)), Span<double>(std::span(all)), control_stream_);
  Report report;
  for (std::size_t i = 0; i < all.size(); i += sent.size()) {
    report.loss_sum += all[i];
    report.slowest = std::max(report.slowest, all[i + 6]);
    report.stop = std::max(report.stop, static_cast<StopReason>(all[i + 1]));
    report.parts.push_back(
        {.state = static_cast<CheckpointWriter::Part::State>(all[i + 2]),
         .summary = {.bytes = static_cast<std::int64_t>(all[i + 3]), .crc = static_cast<std::uint32_t>(all[i + 4])}});
    report.data_hash = (report.data_hash * 31 + static_cast<std::int64_t>(all[i + 5])) % (std::int64_t{1} << 32);
  }
  if (std::isnan(report.loss_sum)) report.loss_sum = not_available;  // without the sign that some NaN have
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
  return exchange({.loss = loss / static_cast<double>(batches)}).loss_sum / control_->size();
}

void Trainer::tell(const std::function<void(Recorder&)>& what) {
  if (record_failure_) return;
  try {
    what(setup_.recorder);
  } catch (...) {
    record_failure_ = std::current_exception();
  }
}

void Trainer::record_validation(std::int64_t step) {
  const Stopwatch watch;
  const double loss = evaluate();
  const ValidationRecord validation{step, step * tokens_per_step_, loss, watch.seconds()};
  tell([&](Recorder& recorder) { recorder.evaluate(validation); });
}

std::vector<StateEntry> Trainer::state() {
  std::vector<StateEntry> entries{state_entry("params", StateScope::replicated, setup_.model.params()),
                                  state_entry("trainer/progress", StateScope::replicated, progress_.span())};
  for (StateEntry& entry : setup_.optimizer.state()) entries.push_back(std::move(entry));
  for (StateEntry& entry : diagnostics_.state()) entries.push_back(std::move(entry));
  return entries;
}

void Trainer::resume(const Checkpoint& checkpoint) {
  checkpoint.load(state(), *control_);
  good_checkpoint_ = checkpoint.folder();
  if (const std::int64_t done = progress_.host()[0]; done != checkpoint.info().step) {
    throw Error(ErrorKind::input, checkpoint.folder().string() + ": its manifest says step " +
                                      std::to_string(checkpoint.info().step) + ", its state is after step " + std::to_string(done));
  }
}

void Trainer::begin_checkpoint(std::int64_t step) {
  if (setup_.checkpoints == nullptr) return;
  finish_checkpoint_now();
  const Stopwatch watch;
  tell([](Recorder& recorder) { recorder.flush(); });  // the run file reaches at least as far as the checkpoint
  setup_.checkpoints->begin(step, state(), setup_.stream);
  checkpoint_seconds_ += watch.seconds();
}

void Trainer::finish_checkpoint(const Report& report) {
  using State = CheckpointWriter::Part::State;
  if (!setup_.checkpoints->busy()) return;
  if (std::ranges::any_of(report.parts, [](const auto& part) { return part.state == State::writing; })) return;
  const CheckpointWriter::Outcome outcome = setup_.checkpoints->finish(report.parts);
  checkpoint_seconds_ += outcome.waited_seconds;
  checkpoint_error_ = outcome.error;
  if (outcome.error.empty()) good_checkpoint_ = outcome.path;
  const CheckpointRecord record{.step = outcome.step,
                                .bytes = outcome.bytes,
                                .waited_seconds = outcome.waited_seconds,
                                .seconds = outcome.seconds,
                                .path = outcome.path.string(),
                                .error = outcome.error};
  tell([&](Recorder& recorder) { recorder.checkpoint(record); });
}

void Trainer::finish_checkpoint_now() {
  if (setup_.checkpoints != nullptr && setup_.checkpoints->busy())
    finish_checkpoint(exchange({.part = setup_.checkpoints->part(true)}));
}

// On all ranks together.
void Trainer::end_in_failure(ErrorKind kind, std::string message) {
  if (!good_checkpoint_.empty()) message += "; the last good checkpoint is " + good_checkpoint_.string();
  tell([&](Recorder& recorder) { recorder.end({RunStatus::failed, message}); });
  throw AgreedError(kind, message);
}

// Model FLOPs utilisation (PaLM, arXiv 2204.02311, appendix B), by the slowest rank's time; NaN when the peak is not known.
double Trainer::flops_utilisation(double seconds) const {
  if (options_.peak_teraflops == 0) return not_available;
  const double done = setup_.model.flops_per_token() * static_cast<double>(tokens_per_step_);
  return done / (seconds * control_->size() * 1e12 * options_.peak_teraflops);
}

// Ends the checkpoint that is owed when the loop ends. All ranks learn whether it is complete, which only rank 0 knows.
void Trainer::finish_last_checkpoint() {
  finish_checkpoint_now();
  if (exchange({.loss = checkpoint_error_.empty() ? 0.0 : 1.0}).loss_sum > 0) {
    end_in_failure(ErrorKind::input, "the last checkpoint could not be written: " + checkpoint_error_);
  }
}

RunStatus Trainer::run(const std::function<StopReason()>& stop_reason) {
  std::int64_t& done = progress_.host()[0];
  std::int64_t& skipped_in_a_row = progress_.host()[1];
  StopReason stop = StopReason::none;
  bool owed = false;  // a checkpoint
  if (done == 0) record_validation(0);
  while (done < options_.steps && stop == StopReason::none) {
    const std::int64_t step = done + 1;
    StepRecord record;
    record.step = step;
    record.tokens = step * tokens_per_step_;
    const Traffic before = setup_.communicator.traffic();
    const StepContext now = context(step);
    Mine mine{.loss = train_step(now, record), .data_hash = setup_.training.hash(step - 1)};
    record.expected_wire_bytes = setup_.optimizer.expected_wire_bytes(step);  // after it: some know only then
    record.traffic = setup_.communicator.traffic().since(before);
    mine.seconds = record.seconds;
    mine.stop = record_failure_ ? StopReason::record_failure : stop_reason();
    if (setup_.checkpoints != nullptr) mine.part = setup_.checkpoints->part(false);
    const Report report = exchange(mine);
    if (setup_.checkpoints != nullptr) finish_checkpoint(report);
    record.loss = report.loss_sum / control_->size();
    record.data_hash = report.data_hash;
    record.flops_utilisation = flops_utilisation(report.slowest);
    record.checkpoint_seconds = std::exchange(checkpoint_seconds_, 0);
    if (record.result.applied) {
      std::vector<TensorDiagnostics> tensors = diagnostics_.after_step(now, setup_.optimizer);
      if (!tensors.empty()) tell([&](Recorder& recorder) { recorder.diagnose({step, std::move(tensors)}); });
    }
    tell([&](Recorder& recorder) { recorder.step(record); });
    done = step;
    skipped_in_a_row = record.result.applied ? 0 : skipped_in_a_row + 1;
    if (record.flops_utilisation > 1) {
      begin_checkpoint(step);
      finish_checkpoint_now();
      end_in_failure(ErrorKind::usage, "peak_teraflops is too low: step " + std::to_string(step) + " did " +
                                           std::to_string(record.flops_utilisation) + " times that much");
    }
    if (skipped_in_a_row >= options_.most_skipped_in_a_row) {
      finish_checkpoint_now();
      end_in_failure(ErrorKind::diverged, "gradients were not finite for " + std::to_string(skipped_in_a_row) +
                                              " steps in a row, the last was step " + std::to_string(step));
    }
    const bool last = step == options_.steps;
    if (!last) stop = report.stop;
    const bool ends = last || stop != StopReason::none;
    if (ends || step % options_.validate_every == 0) record_validation(step);
    if (options_.checkpoint_every > 0 && step % options_.checkpoint_every == 0) owed = true;
    if (last ? options_.checkpoint_last : ends || (owed && skipped_in_a_row == 0)) {
      begin_checkpoint(step);
      owed = false;
    }
  }
  if (setup_.checkpoints != nullptr) finish_last_checkpoint();
  const RunStatus status = stop == StopReason::none             ? RunStatus::complete
                           : stop == StopReason::record_failure ? RunStatus::failed
                                                                : RunStatus::stopped;
  const std::string message = stop == StopReason::none ? "" : to_string(stop) + " after step " + std::to_string(done);
  tell([&](Recorder& recorder) { recorder.end({status, message}); });
  agree_on_records();
  return status;
}

// The end of a run whose records failed on rank 0, on all ranks.
void Trainer::agree_on_records() {
  if (exchange({.loss = record_failure_ ? 1.0 : 0.0}).loss_sum == 0) return;
  std::string reason = "the run file could not be written";
  try {
    if (record_failure_) std::rethrow_exception(record_failure_);
  } catch (const std::exception& error) {
    reason = error.what();
  }
  throw AgreedError(ErrorKind::input, reason);
}

}  // namespace scape
