// Text to tokens, for `scape data prepare`. A file of text is a document; longer ones are cut at blank lines into documents of at
// most 64 KiB, or less when the text is small, so that even one file can be split. In lines of JSON each line is a document.
// One document in 1 / validation_fraction goes to the validation split, chosen by a hash of the seed. The text streams through:
// memory does not grow with it. Documents become tokens in parallel and are written in their order, so the output does not
// depend on the number of threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/token_file.hpp"

namespace scape {

struct PrepareOptions {
  std::vector<std::filesystem::path> paths{};  // text files and folders; empty: the built-in synthetic language
  std::filesystem::path output{};              // file, or folder of shards
  bool overwrite = false;                      // an existing token file at `output`; never another file
  std::string field{};                         // of lines of JSON that has the text; empty: "text"
  std::string tokenizer = "bytes";             // see Tokenizer
  std::int64_t shard_tokens = 0;               // most tokens in a shard; 0: one file
  int threads = 0;                             // that tokenise; 0: one per processor
  double validation_fraction = 0.05;           // in [0.001, 0.5]
  std::uint64_t seed = 1;                      // of the split and of the synthetic language
  std::int64_t synthetic_bytes = 8 << 20;      // length of the synthetic text, at least 1 MiB
  std::string description{};                   // recorded in the file; empty: made from the source
};

struct PrepareProgress {
  std::int64_t bytes_done = 0;  // of the files, compressed as they are
  std::int64_t bytes_total = 0;
  std::int64_t text_bytes = 0;  // of text that became tokens
};

struct PrepareSummary {
  TokenFileInfo info{};
  std::int64_t files = 0;            // text files read; 0 for the synthetic language
  std::int64_t skipped_files = 0;    // empty or binary files inside the given folders
  std::int64_t empty_documents = 0;  // lines of JSON with an empty text
};

/// Reads the text and writes options.output. Folders are searched recursively in sorted order; hidden entries, empty files
/// and binary files (a NUL byte in the first 64 KiB of text) inside them are skipped. Throws Error(usage) for an option outside
/// its limits or an output that may not be replaced, and Error(input), naming the path and the line or byte, when a path does not
/// exist, cannot be read, is an empty or binary or damaged file or a folder without text, when there is too little text to split,
/// or when the output cannot be written. After an error there is no output, or the old file untouched. `progress`, if given, is
/// called now and then.
PrepareSummary prepare(const PrepareOptions& options, const std::function<void(const PrepareProgress&)>& progress = {});

/// Real text to train on when the user names none.
struct DefaultText {
  std::vector<std::filesystem::path> paths{};  // for PrepareOptions::paths
  std::string description{};                   // for PrepareOptions::description
};

/// English text that this machine has anyway: the manual of Perl (Debian package perl-doc), without its change logs, tables
/// and translations. Nothing when it is not installed. `root` is where to look for `*/pod` folders.
[[nodiscard]] std::optional<DefaultText> find_default_text(const std::filesystem::path& root = "/usr/share/perl");

}  // namespace scape
