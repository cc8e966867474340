// Writing checkpoints.
#include "checkpoint/checkpoint_writer.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <system_error>

#include "io/file.hpp"
#include "scape/error.hpp"

namespace scape {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::string_view unfinished_prefix = ".unfinished-";

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// The bytes of an entry that this rank writes.
Range part_of(const StateEntry& entry, std::int64_t rank, std::int64_t ranks) {
  if (entry.scope != StateScope::replicated) return {0, entry.bytes.size()};
  const std::int64_t width = size_of(entry.type);
  const std::int64_t elements = entry.bytes.size() / width;
  const std::int64_t share = elements / ranks;
  const std::int64_t extra = elements % ranks;  // the first ranks take one more
  const auto begin = [&](std::int64_t r) { return width * (r * share + std::min(r, extra)); };
  return {begin(rank), begin(rank + 1)};
}

// A rank's part of a state, copied.
struct Snapshot {
  struct Piece {
    std::string name;
    DType type;
    std::vector<std::byte> bytes;
  };
  std::vector<Piece> pieces;
  Metadata scopes;

  FileSummary write(const fs::path& path) const {
    fs::create_directories(path.parent_path());
    std::vector<StoredTensor> tensors;
    for (const Piece& piece : pieces) {
      tensors.push_back({.name = piece.name,
                         .dtype = safetensors_dtype(piece.type),
                         .shape = {static_cast<std::int64_t>(piece.bytes.size()) / size_of(piece.type)},
                         .bytes = piece.bytes});
    }
    return write_safetensors(path, tensors, scopes);
  }
};

}  // namespace

CheckpointWriter::CheckpointWriter(fs::path folder, std::int64_t keep, CheckpointInfo info, int rank)
    : folder_(std::move(folder)), keep_(keep), info_(std::move(info)), rank_(rank) {}

CheckpointWriter::~CheckpointWriter() {
  std::error_code not_empty;
  if (lock_) fs::remove(folder_, not_empty);  // a run may need no checkpoint
}

void CheckpointWriter::lock() {
  if (lock_) return;
  std::error_code failure;
  fs::create_directories(folder_, failure);
  if (failure) fail(folder_, "cannot make this folder for checkpoints: {}", failure.message());
  lock_.emplace(folder_);
}

fs::path CheckpointWriter::unfinished(std::int64_t step) const {
  return folder_ / (std::string(unfinished_prefix) + detail::checkpoint_name(step));
}

std::int64_t CheckpointWriter::part_bytes(std::span<const StateEntry> state) const {
  std::int64_t bytes = 0;
  for (const StateEntry& entry : state) bytes += part_of(entry, rank_, info_.ranks).size();
  return bytes;
}

void CheckpointWriter::clear() const {
  for (const auto& [step, path] : checkpoints_in(folder_)) fs::remove_all(path);
}

void CheckpointWriter::prepare(std::int64_t bytes) {
  lock();
  std::error_code failure;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_, failure)) {
    if (entry.path().filename().string().starts_with(unfinished_prefix)) fs::remove_all(entry.path(), failure);
  }
  const fs::path trial = unfinished(0);
  fs::create_directories(trial, failure);
  if (failure) fail(folder_, "cannot write checkpoints here: {}", failure.message());
  fs::remove_all(trial, failure);
  const fs::space_info space = fs::space(folder_, failure);
  if (!failure && space.available < static_cast<std::uintmax_t>(bytes)) {
    fail(folder_, "a checkpoint needs {} MB, the disk has {} MB left", bytes / 1'000'000, space.available / 1'000'000);
  }
}

void CheckpointWriter::begin(std::int64_t step, std::span<const StateEntry> state, const Stream& stream) {
  require(!busy(), ErrorKind::internal, "checkpoint: begun before the previous one was finished");
  begun_ = Clock::now();
  Snapshot snapshot;
  for (const StateEntry& entry : state) {
    const Range range = part_of(entry, rank_, info_.ranks);
    Snapshot::Piece& piece = snapshot.pieces.emplace_back(
        Snapshot::Piece{entry.name, entry.type, std::vector<std::byte>(static_cast<std::size_t>(range.size()))});
    scape::copy(Span<std::byte>(std::span(piece.bytes)), entry.bytes.subspan(range.begin, range.size()), stream);
    snapshot.scopes[entry.name] = to_string(entry.scope);
  }
  stream.synchronize();
  step_ = step;
  part_ = {.state = Part::State::writing, .summary = {}};
  error_.clear();
  const fs::path path = unfinished(step) / detail::rank_file_name(rank_);
  written_ = std::async(std::launch::async, [snapshot = std::move(snapshot), path] { return snapshot.write(path); });
  waited_seconds_ = seconds_since(begun_);
}

CheckpointWriter::Part CheckpointWriter::part(bool wait) {
  if (part_.state != Part::State::writing) return part_;
  if (!wait && written_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return part_;
  const Clock::time_point begin = Clock::now();
  try {
    part_ = {.state = Part::State::written, .summary = written_.get()};
  } catch (const std::exception& error) {
    part_ = {.state = Part::State::failed, .summary = {}};
    error_ = error.what();
  }
  waited_seconds_ += seconds_since(begin);
  return part_;
}

void CheckpointWriter::complete(std::span<const Part> parts) const {
  std::vector<FileSummary> files;
  for (const Part& part : parts) files.push_back(part.summary);
  CheckpointInfo info = info_;
  info.step = *step_;
  const fs::path from = unfinished(*step_);
  const fs::path to = folder_ / detail::checkpoint_name(*step_);
  write_text(from / detail::manifest_name, detail::manifest_text(info, files));
  sync_folder(from);
  fs::remove_all(to);
  fs::rename(from, to);
  sync_folder(folder_);

  std::error_code failure;
  auto there = checkpoints_in(folder_);
  while (static_cast<std::int64_t>(there.size()) > keep_ && there.begin()->first != *step_) {
    fs::remove_all(there.begin()->second, failure);
    there.erase(there.begin());
  }
}

CheckpointWriter::Outcome CheckpointWriter::finish(std::span<const Part> parts) {
  require(busy(), ErrorKind::internal, "checkpoint: none to finish");
  const Clock::time_point begin = Clock::now();
  Outcome outcome{.step = *step_, .path = folder_ / detail::checkpoint_name(*step_), .error = error_};
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    require(parts[rank].state == Part::State::written || parts[rank].state == Part::State::failed, ErrorKind::internal,
            "checkpoint: finished while a rank is writing");
    outcome.bytes += parts[rank].summary.bytes;
    if (parts[rank].state == Part::State::failed && outcome.error.empty()) {
      outcome.error = fmt::format("rank {} could not write its part", rank);
    }
  }
  if (rank_ == 0) {
    try {
      if (outcome.error.empty()) complete(parts);
    } catch (const std::exception& error) {
      outcome.error = error.what();
    }
    std::error_code failure;
    if (!outcome.error.empty()) fs::remove_all(unfinished(*step_), failure);
  }
  outcome.waited_seconds = waited_seconds_ + seconds_since(begin);
  outcome.seconds = seconds_since(begun_);
  step_.reset();
  part_ = {};
  return outcome;
}

}  // namespace scape
