// Checkpoints: everything that a run needs to go on with the same bits. A checkpoint is a folder:
//
//   FOLDER/step-00000100/manifest.json              step, ranks, options, and size and CRC-32 of every other file
//   FOLDER/step-00000100/rank-0003.safetensors      what rank 3 wrote
//
// The ranks write at the same time: of a vector that all of them hold alike each writes its part, of a vector that they hold
// in shards its shard, and all of what is its own (StateScope). The file's metadata names the scope of each tensor. A checkpoint
// that is being written has a name that begins with a dot, so what is called step-… is complete.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/safetensors.hpp"
#include "scape/communicator.hpp"
#include "scape/optimizer.hpp"

namespace scape {

using Texts = std::map<std::string, std::string>;

struct CheckpointInfo {
  std::int64_t step = 0;  // the last one done
  std::int64_t ranks = 1;
  Texts options{};  // every option of the run by name
  Texts facts{};    // about its data: what must be the same for the run to go on
};

/// A complete checkpoint. Opening reads the manifest and the files' headers; the files stay mapped.
class Checkpoint {
 public:
  /// `path`: a step's folder, or a folder of them, of which the last step is taken. Throws Error(input) naming the file and what
  /// is wrong: nothing there, a manifest that does not parse, a file that is missing or has another size than the manifest says.
  [[nodiscard]] static Checkpoint open(const std::filesystem::path& path);

  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  [[nodiscard]] const CheckpointInfo& info() const { return info_; }

  /// Reads every `parts`-th file from `part` on and compares its checksum with the manifest: together the ranks verify all.
  /// Throws Error(input) naming the file.
  void verify(int part, int parts) const;

  /// Copies the checkpoint into `entries`, the state of a run on comm.size() ranks, on the immediate stream. Collective. What is
  /// replicated or sharded is put together exactly, whatever the number of ranks. A per-rank vector keeps its bits when that number
  /// is the same; else rank j of N′ gets N′/N · (sum of those of the ranks i ≡ j mod N′), so that their mean over the ranks
  /// stays what it was. Throws Error(input), before anything is copied, naming what is missing, one too many or of another size.
  void load(std::span<const StateEntry> entries, Communicator& comm) const;

  /// Copies one replicated or sharded vector, all of it. Throws Error(input) when there is none of this name, type and size.
  void read(const StateEntry& entry) const;

 private:
  struct Stored {
    StateScope scope = StateScope::replicated;
    std::string dtype{};
    std::vector<std::span<const std::byte>> parts{};  // by rank
    [[nodiscard]] std::int64_t bytes() const;         // all parts together
  };
  [[nodiscard]] const Stored& stored(const StateEntry& entry) const;

  std::filesystem::path folder_;
  CheckpointInfo info_;
  std::vector<SafetensorsFile> files_;  // by rank
  std::vector<FileSummary> summaries_;  // what the manifest says of them
  std::map<std::string, Stored> tensors_;
};

/// Folders of complete checkpoints in `folder`, by step; empty when there is no such folder.
[[nodiscard]] std::map<std::int64_t, std::filesystem::path> checkpoints_in(const std::filesystem::path& folder);

/// "replicated", "per_rank", "shard".
[[nodiscard]] std::string to_string(StateScope scope);

namespace detail {
// Names inside a checkpoint, for its two halves.
[[nodiscard]] std::string checkpoint_name(std::int64_t step);
[[nodiscard]] std::string rank_file_name(std::int64_t rank);
[[nodiscard]] std::string manifest_text(const CheckpointInfo& info, std::span<const FileSummary> files);
inline constexpr const char* manifest_name = "manifest.json";
}  // namespace detail

}  // namespace scape
