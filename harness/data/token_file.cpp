#include "data/token_file.hpp"

#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "data/token_set.hpp"
#include "scape/error.hpp"

namespace scape {

namespace fs = std::filesystem;

const char* to_string(Split split) {
  return split == Split::train ? "train" : "validation";
}

std::int32_t TokenView::operator[](std::int64_t index) const {
  std::int32_t id = 0;
  read(index, {&id, 1});
  return id;
}

void TokenView::read(std::int64_t begin, std::span<std::int32_t> ids) const {
  require(begin >= 0 && begin <= size_ - std::ssize(ids), ErrorKind::internal, "TokenView::read: tokens outside the split");
  auto piece =
      std::upper_bound(pieces_.begin(), pieces_.end(), begin, [](std::int64_t at, const Piece& p) { return at < p.begin; });
  for (--piece; !ids.empty(); ++piece) {
    const std::int64_t skipped = begin - piece->begin;
    const auto part = ids.first(static_cast<std::size_t>(std::min(piece->size - skipped, std::ssize(ids))));
    const std::int64_t byte = skipped * piece->token_bytes;
    if (const auto i = widen_tokens(piece->data + byte, piece->token_bytes, vocabulary_, part); i < std::ssize(part)) {
      refuse_token(*piece->path, piece->first_byte + byte + i * piece->token_bytes, part[static_cast<std::size_t>(i)], vocabulary_);
    }
    ids = ids.subspan(part.size());
    begin += std::ssize(part);
  }
}

double unigram_entropy(std::span<const std::int64_t> frequencies) {
  double total = 0;
  double sum = 0;
  for (const auto count : frequencies) {
    const auto c = static_cast<double>(count);
    total += c;
    if (count > 0) sum += c * std::log(c);
  }
  return total > 0 ? std::log(total) - sum / total : 0;
}

struct TokenFile::Data {
  TokenSet set;
  std::array<std::vector<TokenView::Piece>, 2> pieces;  // by Split
};

namespace {

// The CRC-32 of each split from those of its segments; "" if one is not known.
std::string checksum(const TokenSet& set) {
  std::string text;
  for (const auto& split : set.splits) {
    std::uint32_t crc = 0;
    for (const auto& segment : split) {
      if (!segment.crc) return "";
      crc = static_cast<std::uint32_t>(crc32_combine(crc, *segment.crc, 4 * segment.tokens));
    }
    text += fmt::format("{}{:08x}", text.empty() ? "" : "-", crc);
  }
  return text;
}

}  // namespace

TokenFile TokenFile::open(const fs::path& path) {
  auto data = std::make_shared<Data>();
  data->set = find_tokens(path);
  TokenFile file;
  file.path_ = path;
  TokenFileInfo& info = file.info_;
  std::set<const TokenArray*> arrays;
  std::array<std::int64_t, 2> tokens{}, documents{};
  for (const std::size_t split : {0U, 1U}) {
    for (const auto& segment : data->set.splits[split]) {
      const TokenArray& array = *segment.array;
      if (arrays.insert(&array).second) info.bytes += array.file.size();
      info.format = array.format;
      info.token_bytes = std::max(info.token_bytes, array.token_bytes);
      const std::int64_t byte = segment.begin * array.token_bytes;
      data->pieces[split].push_back({.begin = tokens[split],
                                     .size = segment.tokens,
                                     .data = array.data() + byte,
                                     .token_bytes = array.token_bytes,
                                     .path = &array.file.path(),
                                     .first_byte = array.first_byte + byte});
      tokens[split] += segment.tokens;
      documents[split] += segment.documents;
    }
    if (tokens[split] == 0) {
      fail(path, "no {} tokens in these {} tokens{}", to_string(static_cast<Split>(split)), info.format,
           split == 1 ? "; name some once: scape data describe --validation" : "");
    }
  }
  const TokenSet& set = data->set;
  info.files = std::ssize(arrays);
  info.vocabulary = set.vocabulary;
  info.train_tokens = tokens[0];
  info.validation_tokens = tokens[1];
  info.train_documents = documents[0];
  info.validation_documents = documents[1];
  info.seed = set.seed;
  info.unigram_entropy = set.unigram_entropy;
  info.tokenizer = set.tokenizer;
  info.end_token = set.end_token;
  info.source = set.source;
  info.checksum = checksum(set);
  file.data_ = std::move(data);
  if (info.bytes <= verified_at_open) file.verify();
  return file;
}

const TokenFileInfo& TokenFile::verify(const std::function<void(std::int64_t, std::int64_t)>& progress) {
  TokenSet set = data_->set;
  std::int64_t done = 0;
  std::set<const TokenArray*> arrays;
  std::vector<std::int64_t> frequencies(static_cast<std::size_t>(info_.vocabulary));
  for (const std::size_t split : {0U, 1U}) {
    for (auto& segment : set.splits[split]) {
      const TokenArray& array = *segment.array;
      const auto crc = check_segment(segment, info_.vocabulary, split == 0 ? &frequencies : nullptr, [&](std::int64_t bytes) {
        if (progress) progress(done += bytes, info_.bytes);
      });
      if (segment.crc && crc != *segment.crc) {
        const std::int64_t first = array.first_byte + segment.begin * array.token_bytes;
        fail(array.file.path(), "bytes {} to {}: the tokens are damaged: checksum {:08x}, expected {:08x}", first,
             first + segment.tokens * array.token_bytes, crc, *segment.crc);
      }
      segment.crc = crc;
      if (arrays.insert(&array).second) (void)array.document_ends();
    }
  }
  info_.checksum = checksum(set);
  info_.unigram_entropy = scape::unigram_entropy(frequencies);
  info_.verified = true;
  return info_;
}

TokenView TokenFile::tokens(Split split) const {
  return {data_->pieces[static_cast<std::size_t>(split)], split == Split::train ? info_.train_tokens : info_.validation_tokens,
          info_.vocabulary};
}

std::vector<std::int64_t> TokenFile::document_ends(Split split) const {
  std::vector<std::int64_t> ends;
  std::int64_t begin = 0;
  for (const auto& segment : data_->set.splits[static_cast<std::size_t>(split)]) {
    for (const auto end : scape::document_ends(segment)) ends.push_back(begin + end);
    begin += segment.tokens;
  }
  return ends;
}

std::string_view TokenFile::tokenizer_model() const {
  return data_->set.tokenizer_model();
}

}  // namespace scape
