// Which tokens of which files make up a data set. A set is found by the content of what is named, or written down as TOML:
//
//   scape_tokens = 1                  version of this form
//   vocabulary = 50257                every id is below it
//   tokenizer = "llama.model"         "bytes" or a SentencePiece model; needless for files that hold their own
//   tokenizer_crc32 = "89ef4567"      of the model's bytes
//   end_token = 2                     the id behind every document, if there is one
//   source = "OpenWebText"            for people; it goes into run files
//   unigram_entropy = 7.5             nat/token of the training split
//
//   [[train]]                         as many as needed, in order; likewise [[validation]]
//   file = "train.bin"                beside this file, or an absolute path
//   bytes = 18071164364               size of the file
//   begin = 0                         first token; default 0
//   tokens = 9035582198               default: all of the rest
//   documents = 8009762               default: counted
//   crc32 = "0123abcd"                of the ids as int32; compared when all of it is read
//
// Sizes and the tokenizer's checksum are compared when the set is opened. Only scape_tokens, vocabulary and the files are needed,
// so that a person can write one.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/token_array.hpp"

namespace scape {

struct TokenSegment {
  std::shared_ptr<const TokenArray> array;
  std::int64_t begin = 0;
  std::int64_t tokens = 0;
  std::int64_t documents = 0;
  std::optional<std::uint32_t> crc{};  // of the ids as int32
};

struct TokenSet {
  std::int64_t vocabulary = 0;
  double unigram_entropy = std::numeric_limits<double>::quiet_NaN();
  TokenizerKind tokenizer = TokenizerKind::unknown;
  std::int32_t end_token = -1;
  std::optional<MappedFile> model{};  // of the tokenizer, when the token files do not hold it
  std::uint64_t seed = 0;
  std::string source{};
  std::array<std::vector<TokenSegment>, 2> splits{};  // by Split

  /// Takes over what the file says of its vocabulary and tokenizer. Throws Error(input) when it does not fit what the files
  /// before it said.
  void adopt(const TokenArray& array);
  /// Adopts a file and appends its tokens to `split`; one that has splits of its own goes to both, as it says.
  void add(const std::shared_ptr<const TokenArray>& array, Split split);
  /// The tokenizer's SentencePiece model; empty when there is none.
  [[nodiscard]] std::string_view tokenizer_model() const;
};

/// What `data=` names: a token file, a folder or a description. Throws Error(input).
[[nodiscard]] TokenSet find_tokens(const std::filesystem::path& path);

/// Index, in the segment, behind the last token of each document that ends inside.
[[nodiscard]] std::vector<std::int64_t> document_ends(const TokenSegment& segment);

/// CRC-32 of the segment's ids; checks them on the way. `progress` gets the bytes of each part that was read.
[[nodiscard]] std::uint32_t check_segment(const TokenSegment& segment, std::int64_t vocabulary,
                                          std::vector<std::int64_t>* frequencies,
                                          const std::function<void(std::int64_t)>& progress);

/// Writes the set as TOML under a temporary name and renames it. Throws Error(input).
void write_token_set(const TokenSet& set, const std::filesystem::path& path);

struct DescribeOptions {
  std::vector<std::filesystem::path> paths{};       // token files and folders
  std::vector<std::filesystem::path> validation{};  // token files; empty: what a folder names val, or a fraction
  double validation_fraction = 0;                   // the last tokens are for validation; whole documents where there are some
  std::int64_t vocabulary = 0;                      // 0: as the files say
  std::string tokenizer{};                          // Tokenizer's name; "": as the files say
  std::int32_t end_token = -1;
  std::string source{};            // "": the names of the paths
  std::filesystem::path output{};  // empty: tokens.toml in the one folder of `paths`
};

/// Reads and checks the tokens and writes their description. Returns its path. Throws Error(usage) for what the user has to say
/// and did not, Error(input) for tokens that cannot be used. `progress` gets bytes done and in all.
std::filesystem::path describe_tokens(const DescribeOptions& options,
                                      const std::function<void(std::int64_t, std::int64_t)>& progress = {});

}  // namespace scape
