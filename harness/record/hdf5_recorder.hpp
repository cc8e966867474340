// The run file: one HDF5 file per run, written by rank 0. Schema in columns.hpp and results/README.md.
//
//   /            attributes: options, versions, host, dates, status; "complete" is written last, only by a completed run
//   /steps       one column per dataset, one row per step
//   /validation  one column per dataset, one row per evaluation
//   /diagnostics one column per dataset, one row per record, in it one number or histogram per tensor; only when they are asked for
//
// Rows are kept in memory and written together at least every 20 steps, so a killed run leaves a file that opens plainly
// and holds every step up to the last flush. Disk space for the planned steps is taken at begin(). Until end(), columns are longer
// than what is recorded: rows whose step is -1 are placeholders.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "record/recorder.hpp"

namespace scape {

enum class ExistingFile {
  refuse,     ///< Error(usage) if the path exists
  overwrite,  ///< start afresh, in place of a run file
  append,     ///< continue: next attempt, rows from RunInfo::first_step on are dropped; a missing file is created
};

class Hdf5Recorder final : public Recorder {
 public:
  static constexpr int steps_between_flushes = 20;
  static constexpr double seconds_between_flushes = 30;  // of recorded step time, for slow steps

  explicit Hdf5Recorder(std::filesystem::path path, ExistingFile existing = ExistingFile::refuse);
  /// Without end() the status stays "running": interrupted. Writes the remaining rows if it can.
  ~Hdf5Recorder() override;

  /// Creates or reopens the file and its missing parent folders and writes everything known so far. A file that is begun anew is
  /// replaced when all of that has gone well. Throws Error(usage) for a path that exists but must not, or is to be overwritten but
  /// is something else than a run file; Error(input) for one that cannot be written or that another process writes, and in append
  /// for a file that is damaged, has other columns or does not reach first_step - 1.
  void begin(const RunInfo& info) override;
  /// Throws Error(internal) unless `record.step` is above the last one; Error(input) when the file cannot be written.
  void step(const StepRecord& record) override;
  void evaluate(const ValidationRecord& record) override;
  /// Throws Error(internal) unless RunInfo announced diagnostics of as many tensors and `record.step` is above the last one.
  void diagnose(const DiagnosticsRecord& record) override;
  void flush() override;
  void end(const RunOutcome& outcome) override;

  /// 1 for a new file, one more for each append.
  [[nodiscard]] std::int64_t attempt() const;

 private:
  class Writer;
  [[nodiscard]] Writer& writer() const;  // Error(internal) outside begin() … end()
  std::filesystem::path path_;
  ExistingFile existing_;
  std::unique_ptr<Writer> writer_;
};

/// How far the run in a file got, and what it was; enough to decide whether to run it again.
struct RunFileState {
  bool complete = false;
  std::string status;  // "running", "complete", "stopped", "failed"
  std::int64_t attempt = 0;
  std::int64_t planned_steps = 0;
  std::int64_t last_step = 0;                       // 0: no step recorded
  double last_loss = not_available;                 // of the last step
  std::map<std::string, std::string> attributes{};  // of the file, as text; options among them
};

/// Throws Error(input) naming the file if it is missing, damaged or not a run file.
[[nodiscard]] RunFileState read_run_file_state(const std::filesystem::path& path);

}  // namespace scape
