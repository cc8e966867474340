// Records whose every value follows from the step number, and a folder for them, for the tests of the recorders.
#pragma once

#include <string>

#include "record/recorder.hpp"
#include "temporary_folder.hpp"

namespace scape::testing {

inline RunInfo sample_info() {
  return {.name = "sample",
          .command_line = "scape train --set optimizer=scape",
          .ranks = 4,
          .oversubscribed = true,
          .planned_steps = 100,
          .tokens_per_step = 1024,
          .first_step = 1,
          .attributes = {{"optimizer", std::string("scape")}, {"density", 0.01}, {"seed", std::int64_t{7}}, {"overlap", false}},
          .extra = {{"backlog", "step", "mean number of steps since a coordinate was last sent"}},
          .diagnostics_every = 10,
          .tensors = {{"embedding", {3, 2}, TensorRole::matrix, {0, 6}}, {"norm", {4}, TensorRole::vector, {6, 10}}}};
}

inline DiagnosticsRecord sample_diagnostics(std::int64_t step) {
  DiagnosticsRecord record{.step = step, .tensors = std::vector<TensorDiagnostics>(2)};
  for (std::size_t i = 0; i < 2; ++i) {
    record.tensors[i].share_previous = 0.5 + 0.25 * static_cast<double>(i);  // energy_overlap and others stay unavailable
    record.tensors[i].residual_norm = static_cast<double>(step);
    record.tensors[i].gradient_histogram[40 + i] = step;
    record.tensors[i].age_histogram[i] = 6 - 2 * static_cast<std::int64_t>(i);
  }
  return record;
}

inline StepRecord sample_step(std::int64_t step) {
  const auto t = static_cast<double>(step);
  StepRecord record{.step = step, .tokens = 1024 * step, .loss = 5 / t, .learning_rate = 1e-3, .seconds = 0.5};
  record.result.gradient_norm = t;
  record.result.density = 0.01;  // mask_overlap and residual_norm stay unavailable
  record.result.applied = step % 10 != 0;
  record.phase_seconds = {0.01, 0.25, 0.05, 0.125, 0.02};
  record.traffic[Collective::all_reduce] = {2, 1000 * step, 1500.5 * t, 0.1};
  record.traffic[Collective::all_gather] = {1, 10 * step, 7.5 * t, 0.2};
  record.expected_wire_bytes = 1508 * t;
  record.extra = {2 * t};
  return record;
}

/// The sample step, and its diagnostics when it has some.
inline void record_sample(Recorder& recorder, std::int64_t step) {
  if (step % sample_info().diagnostics_every == 0) recorder.diagnose(sample_diagnostics(step));
  recorder.step(sample_step(step));
}

}  // namespace scape::testing
