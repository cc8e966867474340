// Writes checkpoints while training goes on. begin() copies this rank's part of the state, a thread writes it; when every rank's
// part is on the disk, rank 0 adds the manifest and gives the checkpoint its name. The ranks learn of each other's parts through
// whoever owns the writer (the trainer, with what it exchanges after each step anyway), so the writer itself never
// communicates and an error of one rank's disk reaches all ranks as a failed part.
#pragma once

#include <chrono>
#include <filesystem>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "io/file.hpp"

namespace scape {

class CheckpointWriter {
 public:
  /// What a rank tells the others.
  struct Part {
    enum class State { none, writing, written, failed };
    State state = State::none;
    FileSummary summary{};
  };
  /// How a checkpoint ended. On ranks other than 0 `path` and `error` are what the rank knows itself.
  struct Outcome {
    std::int64_t step = 0;
    std::int64_t bytes = 0;     // of all ranks
    double waited_seconds = 0;  // that training waited for it on this rank
    double seconds = 0;         // from begin() to the end
    std::filesystem::path path{};
    std::string error{};  // empty: complete
  };

  /// `keep`: so many of the newest checkpoints stay. `info` describes the run; its step is set by begin(). `ranks` as in the run.
  CheckpointWriter(std::filesystem::path folder, std::int64_t keep, CheckpointInfo info, int rank);
  /// Waits for the thread. A checkpoint that was not finished is removed by the next prepare(). A folder that is empty goes.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Creates the folder and keeps other writers off it as long as this one lives. On rank 0, before anything else there. Throws
  /// Error(input) when it cannot be made or another process writes checkpoints there.
  void lock();
  /// Removes all checkpoints of the folder. On rank 0.
  void clear() const;
  /// Removes what an interrupted run left unfinished, and tries whether a checkpoint of `bytes` (of all ranks)
  /// can be written beside what is there. Called on rank 0 before training. Throws Error(input) when it cannot.
  void prepare(std::int64_t bytes);
  /// Bytes of this rank's part of a checkpoint of `state`, headers left out.
  [[nodiscard]] std::int64_t part_bytes(std::span<const StateEntry> state) const;

  /// Copies this rank's part of `state` and starts to write it as the checkpoint of `step`. The previous one is finished.
  void begin(std::int64_t step, std::span<const StateEntry> state, const Stream& stream);
  /// True from begin() to finish().
  [[nodiscard]] bool busy() const { return step_.has_value(); }
  /// This rank's part now; with `wait`, when it is written or has failed.
  [[nodiscard]] Part part(bool wait);
  /// Ends the checkpoint, given all ranks' parts, none of which is being written any more: rank 0 completes it and removes old
  /// ones, or removes it when a part failed.
  Outcome finish(std::span<const Part> parts);

 private:
  [[nodiscard]] std::filesystem::path unfinished(std::int64_t step) const;
  void complete(std::span<const Part> parts) const;

  std::filesystem::path folder_;
  std::int64_t keep_;
  CheckpointInfo info_;
  int rank_;
  std::optional<FileLock> lock_;  // of the folder
  std::optional<std::int64_t> step_;
  std::chrono::steady_clock::time_point begun_;
  double waited_seconds_ = 0;
  std::future<FileSummary> written_;
  Part part_;
  std::string error_;
};

}  // namespace scape
