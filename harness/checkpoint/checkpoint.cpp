// Reading checkpoints.
#include "checkpoint/checkpoint.hpp"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <numeric>

#include "io/file.hpp"
#include "scape/build_info.hpp"
#include "scape/error.hpp"

namespace scape {

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t format_version = 1;
constexpr std::string_view step_prefix = "step-";

std::string object_text(const Texts& texts) {
  std::string text;
  for (const auto& [name, value] : texts) text += (text.empty() ? "" : ",\n    ") + json_string(name) + ": " + json_string(value);
  return "{\n    " + text + "\n  }";
}

Texts texts_of(const simdjson::dom::element& element) {
  Texts texts;
  for (const auto& [name, value] : simdjson::dom::object(element)) texts[std::string(name)] = std::string(std::string_view(value));
  return texts;
}

StateScope scope_of(const SafetensorsFile& file, const std::string& tensor) {
  const auto found = file.metadata().find(tensor);
  for (const StateScope scope : {StateScope::replicated, StateScope::per_rank, StateScope::shard}) {
    if (found != file.metadata().end() && found->second == to_string(scope)) return scope;
  }
  fail(file.path(), "does not say how '{}' relates to the ranks", tensor);
}

// Bytes [begin, begin + size) of the parts one after the other.
void copy_from(std::span<const std::span<const std::byte>> parts, std::int64_t begin, Span<std::byte> to) {
  const Stream now;
  std::int64_t part_begin = 0;
  for (const std::span<const std::byte> part : parts) {
    const auto size = static_cast<std::int64_t>(part.size());
    const Range common = intersect({part_begin, part_begin + size}, {begin, begin + to.size()});
    if (!common.empty()) {
      const auto from = part.subspan(static_cast<std::size_t>(common.begin - part_begin), static_cast<std::size_t>(common.size()));
      scape::copy(to.subspan(common.begin - begin, common.size()), Span<const std::byte>(from), now);
    }
    part_begin += size;
  }
}

// scale · (sum of the parts), element by element.
template <class T>
void add_up(std::span<const std::span<const std::byte>> parts, double scale, Span<std::byte> to) {
  std::vector<T> result(static_cast<std::size_t>(to.size()) / sizeof(T));
  for (std::size_t i = 0; i < result.size(); ++i) {
    double sum = 0;
    for (const std::span<const std::byte> part : parts) {
      T value{};
      std::memcpy(&value, part.data() + i * sizeof(T), sizeof(T));
      sum += static_cast<double>(value);
    }
    result[i] = static_cast<T>(scale * sum);
  }
  scape::copy(to, Span<const std::byte>(std::as_bytes(std::span(result))), Stream());
}

}  // namespace

std::string to_string(StateScope scope) {
  switch (scope) {
    case StateScope::replicated:
      return "replicated";
    case StateScope::per_rank:
      return "per_rank";
    case StateScope::shard:
      return "shard";
  }
  return "";
}

std::string detail::checkpoint_name(std::int64_t step) {
  return fmt::format("{}{:08d}", step_prefix, step);
}

std::string detail::rank_file_name(std::int64_t rank) {
  return fmt::format("rank-{:04d}.safetensors", rank);
}

std::string detail::manifest_text(const CheckpointInfo& info, std::span<const FileSummary> files) {
  std::string list;
  for (std::size_t rank = 0; rank < files.size(); ++rank) {
    list += fmt::format("{}{{\"name\": \"{}\", \"bytes\": {}, \"crc32\": {}}}", rank == 0 ? "" : ",\n    ",
                        rank_file_name(static_cast<std::int64_t>(rank)), files[rank].bytes, files[rank].crc);
  }
  return fmt::format(
      "{{\n  \"format\": \"scape-checkpoint\",\n  \"version\": {},\n  \"written_by\": \"scape {}\",\n"
      "  \"step\": {},\n  \"ranks\": {},\n  \"options\": {},\n  \"facts\": {},\n  \"files\": [\n    {}\n  ]\n}}\n",
      format_version, build_info::version, info.step, info.ranks, object_text(info.options), object_text(info.facts), list);
}

std::map<std::int64_t, fs::path> checkpoints_in(const fs::path& folder) {
  std::map<std::int64_t, fs::path> found;
  std::error_code failure;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, failure)) {
    const std::string name = entry.path().filename().string();
    std::int64_t step = -1;
    if (!name.starts_with(step_prefix)) continue;
    const auto [end, error] = std::from_chars(name.data() + step_prefix.size(), name.data() + name.size(), step);
    if (error == std::errc() && end == name.data() + name.size()) found[step] = entry.path();
  }
  return found;
}

std::int64_t Checkpoint::Stored::bytes() const {
  std::int64_t sum = 0;
  for (const auto part : parts) sum += static_cast<std::int64_t>(part.size());
  return sum;
}

Checkpoint Checkpoint::open(const fs::path& path) {
  Checkpoint checkpoint;
  checkpoint.folder_ = path;
  if (!fs::exists(path / detail::manifest_name)) {
    const auto steps = checkpoints_in(path);
    if (steps.empty()) fail(path, "{}", fs::exists(path) ? "holds no checkpoint" : "no such folder");
    checkpoint.folder_ = steps.rbegin()->second;
  }
  const fs::path manifest = checkpoint.folder_ / detail::manifest_name;
  CheckpointInfo& info = checkpoint.info_;
  std::vector<fs::path> files;
  try {
    simdjson::dom::parser parser;
    const simdjson::dom::element root = parser.load(manifest.string());
    const simdjson::dom::element format = root["format"];
    if (!format.is_string() || std::string_view(format) != "scape-checkpoint")
      fail(manifest, "is not the manifest of a checkpoint");
    const std::int64_t version = root["version"];
    if (version != format_version) {
      fail(manifest, "has version {} of the format, this program reads {}", version, format_version);
    }
    info.step = root["step"];
    info.ranks = root["ranks"];
    info.options = texts_of(root["options"]);
    info.facts = texts_of(root["facts"]);
    for (const simdjson::dom::element file : simdjson::dom::array(root["files"])) {
      files.push_back(checkpoint.folder_ / std::string_view(file["name"]));
      checkpoint.summaries_.push_back(
          {.bytes = std::int64_t(file["bytes"]), .crc = static_cast<std::uint32_t>(std::uint64_t(file["crc32"]))});
    }
  } catch (const simdjson::simdjson_error& error) {
    fail(manifest, "cannot be read: {}", error.what());
  }
  if (info.ranks < 1 || files.size() != static_cast<std::size_t>(info.ranks)) {
    fail(manifest, "names {} files for {} ranks", files.size(), info.ranks);
  }

  for (std::size_t rank = 0; rank < files.size(); ++rank) {
    std::error_code failure;
    const auto size = static_cast<std::int64_t>(fs::file_size(files[rank], failure));
    if (failure) fail(files[rank], "missing from the checkpoint: {}", failure.message());
    if (size != checkpoint.summaries_[rank].bytes) {
      fail(files[rank], "has {} bytes, the manifest says {}", size, checkpoint.summaries_[rank].bytes);
    }
    const SafetensorsFile& file = checkpoint.files_.emplace_back(SafetensorsFile::open(files[rank]));
    for (const StoredTensor& tensor : file.tensors()) {
      Stored& stored = checkpoint.tensors_[tensor.name];
      if (stored.parts.size() != rank) fail(file.path(), "'{}' is missing from an earlier rank's file", tensor.name);
      const StateScope scope = scope_of(file, tensor.name);
      if (rank > 0 && (scope != stored.scope || tensor.dtype != stored.dtype)) {
        fail(file.path(), "'{}' is of another kind than in the files before", tensor.name);
      }
      stored.scope = scope;
      stored.dtype = tensor.dtype;
      stored.parts.push_back(tensor.bytes);
    }
    for (const auto& [name, stored] : checkpoint.tensors_) {
      if (stored.parts.size() != rank + 1) fail(file.path(), "'{}' is missing", name);
    }
  }
  return checkpoint;
}

void Checkpoint::verify(int part, int parts) const {
  for (auto i = static_cast<std::size_t>(part); i < files_.size(); i += static_cast<std::size_t>(parts)) {
    const FileSummary found = files_[i].summary();
    if (found.crc != summaries_[i].crc) {
      fail(files_[i].path(), "is damaged: its CRC-32 is {:08x}, the manifest says {:08x}", found.crc, summaries_[i].crc);
    }
  }
}

const Checkpoint::Stored& Checkpoint::stored(const StateEntry& entry) const {
  const auto found = tensors_.find(entry.name);
  if (found == tensors_.end()) fail(folder_, "has no '{}'", entry.name);
  const Stored& stored = found->second;
  if (stored.scope != entry.scope || stored.dtype != safetensors_dtype(entry.type)) {
    fail(folder_, "'{}' is {} {}, the run wants {} {}", entry.name, to_string(stored.scope), stored.dtype, to_string(entry.scope),
         safetensors_dtype(entry.type));
  }
  return stored;
}

void Checkpoint::load(std::span<const StateEntry> entries, Communicator& comm) const {
  // Sizes of every rank's entries, before anything that may fail on one rank alone.
  const auto rank = static_cast<std::size_t>(comm.rank());
  const auto ranks = static_cast<std::size_t>(comm.size());
  std::vector<std::int64_t> mine;
  for (const StateEntry& entry : entries) mine.push_back(entry.bytes.size());
  std::vector<std::int64_t> all(mine.size() * ranks);
  comm.all_gather<std::int64_t>(Span<std::int64_t>(std::span(mine)), Span<std::int64_t>(std::span(all)), Stream());
  const auto bytes_on = [&](std::size_t r, std::size_t entry) { return all[r * mine.size() + entry]; };

  const bool same_ranks = info_.ranks == comm.size();
  const auto differs = [&](const StateEntry& entry, std::int64_t stored, std::int64_t wanted) {
    fail(folder_, "'{}' has {} bytes, the run wants {}", entry.name, stored, wanted);
  };
  std::vector<std::int64_t> begins(entries.size());  // of this rank's shard, in bytes
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const StateEntry& entry = entries[i];
    const Stored& from = stored(entry);
    if (entry.scope == StateScope::per_rank) {
      for (std::size_t part = 0; part < from.parts.size(); ++part) {
        const std::int64_t wanted = bytes_on(same_ranks ? part : rank, i);
        const auto size = static_cast<std::int64_t>(from.parts[part].size());
        if (size != wanted) differs(entry, size, wanted);
      }
      if (!same_ranks && entry.type != DType::f32 && entry.type != DType::f64) {
        fail(folder_, "'{}' of {} ranks cannot be added up for {}", entry.name, info_.ranks, ranks);
      }
      continue;
    }
    std::int64_t wanted = entry.bytes.size();
    if (entry.scope == StateScope::shard) {
      wanted = 0;
      for (std::size_t r = 0; r < ranks; ++r) {
        if (r == rank) begins[i] = wanted;
        wanted += bytes_on(r, i);
      }
    }
    if (from.bytes() != wanted) differs(entry, from.bytes(), wanted);
  }
  for (const auto& [name, unused] : tensors_) {
    if (std::ranges::find(entries, name, &StateEntry::name) == entries.end()) {
      fail(folder_, "has '{}', which this run does not know", name);
    }
  }

  for (std::size_t i = 0; i < entries.size(); ++i) {
    const StateEntry& entry = entries[i];
    const std::vector<std::span<const std::byte>>& parts = tensors_.at(entry.name).parts;
    if (entry.scope != StateScope::per_rank) {
      copy_from(parts, begins[i], entry.bytes);
    } else if (same_ranks) {
      copy_from(std::span(parts).subspan(rank, 1), 0, entry.bytes);
    } else {
      std::vector<std::span<const std::byte>> chosen;
      for (std::size_t part = rank; part < parts.size(); part += ranks) chosen.push_back(parts[part]);
      const double scale = static_cast<double>(ranks) / static_cast<double>(info_.ranks);
      entry.type == DType::f32 ? add_up<float>(chosen, scale, entry.bytes) : add_up<double>(chosen, scale, entry.bytes);
    }
  }
}

void Checkpoint::read(const StateEntry& entry) const {
  const Stored& from = stored(entry);
  require(from.scope != StateScope::per_rank, ErrorKind::internal, "Checkpoint::read: a vector of each rank's own");
  if (from.bytes() != entry.bytes.size()) {
    fail(folder_, "'{}' has {} bytes, not {}", entry.name, from.bytes(), entry.bytes.size());
  }
  copy_from(from.parts, 0, entry.bytes);
}

}  // namespace scape
