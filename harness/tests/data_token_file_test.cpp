// Token files: what was written comes back; every kind of damage is found and named.
#include <gmock/gmock.h>
#include <zlib.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "data/token_writer.hpp"
#include "data_support.hpp"

namespace scape {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::message_of;
using testing::read_bytes;
using testing::TemporaryFolder;
using testing::write_bytes;

using Ids = std::vector<std::int32_t>;

Ids all(const TokenView& tokens) {
  Ids ids(static_cast<std::size_t>(tokens.size()));
  tokens.read(0, ids);
  return ids;
}

// Three training documents (0 1 2, 3, 5 5) and one for validation (4 0), in a vocabulary of 6.
std::filesystem::path small_file(const TemporaryFolder& folder, int token_bytes = 1) {
  const auto path = folder / "tokens.bin";
  TokenFileWriter writer(path, {.vocabulary = 6, .token_bytes = token_bytes, .seed = 11, .source = "by hand"});
  writer.add(Split::train, Ids{0, 1, 2});
  writer.add(Split::validation, Ids{4, 0});
  writer.add(Split::train, Ids{3});
  writer.add(Split::train, Ids{5, 5});
  writer.finish();
  return path;
}

void put_u32(std::string& bytes, std::size_t at, std::uint32_t value) {
  std::memcpy(&bytes[at], &value, sizeof value);
}

// Makes the checksums of the document ends (the last 32 bytes; at byte 80) and of the header (at 108) fit what the file holds.
void fix_checksums(std::string& bytes) {
  const auto crc = [&](std::size_t begin, std::size_t end) {
    return static_cast<std::uint32_t>(crc32_z(0, reinterpret_cast<const unsigned char*>(bytes.data()) + begin, end - begin));
  };
  put_u32(bytes, 80, crc(bytes.size() - 32, bytes.size()));
  put_u32(bytes, 108, 0);
  put_u32(bytes, 108, crc(0, 256));
}

std::string damage(const std::filesystem::path& path, const std::function<void(std::string&)>& change) {
  std::string bytes = read_bytes(path);
  change(bytes);
  write_bytes(path, bytes);
  const auto message = message_of(ErrorKind::input, [&] { (void)TokenFile::open(path); });
  EXPECT_THAT(message, HasSubstr(path.string()));
  EXPECT_THAT(message, HasSubstr("byte"));
  return message;
}

class TokenWidth : public ::testing::TestWithParam<int> {};

TEST_P(TokenWidth, RoundTrip) {
  const TemporaryFolder folder;
  const TokenFile file = TokenFile::open(small_file(folder, GetParam()));
  EXPECT_EQ(file.info().vocabulary, 6);
  EXPECT_EQ(file.info().token_bytes, GetParam());
  EXPECT_EQ(file.info().train_tokens, 6);
  EXPECT_EQ(file.info().validation_tokens, 2);
  EXPECT_EQ(file.info().train_documents, 3);
  EXPECT_EQ(file.info().validation_documents, 1);
  EXPECT_EQ(file.info().seed, 11U);
  EXPECT_EQ(file.info().source, "by hand");
  EXPECT_THAT(all(file.train()), ElementsAre(0, 1, 2, 3, 5, 5));
  EXPECT_THAT(all(file.validation()), ElementsAre(4, 0));
  EXPECT_EQ(file.train()[4], 5);
  EXPECT_THAT(file.document_ends(Split::train), ElementsAre(3, 4, 6));
  EXPECT_THAT(file.document_ends(Split::validation), ElementsAre(2));
  // Four ids once in six, one id twice: 4/6 ln 6 + 2/6 ln 3.
  EXPECT_NEAR(file.info().unigram_entropy, 2.0 / 3 * std::log(6.0) + std::log(3.0) / 3, 1e-12);
  // The checksum is that of the ids as int32, for every width.
  const Ids train{0, 1, 2, 3, 5, 5}, validation{4, 0};
  const auto crc = [](const Ids& ids) { return crc32_z(0, reinterpret_cast<const unsigned char*>(ids.data()), 4 * ids.size()); };
  std::array<char, 18> expected{};
  std::snprintf(expected.data(), expected.size(), "%08lx-%08lx", crc(train), crc(validation));
  EXPECT_EQ(file.info().checksum, expected.data());
  EXPECT_TRUE(file.info().verified);
  EXPECT_EQ(file.info().format, "SCAPE");
  EXPECT_THAT(folder.entries(), ElementsAre("tokens.bin"));
}

TEST_P(TokenWidth, KeepsTheLargestId) {
  const TemporaryFolder folder;
  const std::int32_t largest = GetParam() == 1 ? 255 : GetParam() == 2 ? 65535 : 100000;
  {
    TokenFileWriter writer(folder / "t", {.vocabulary = std::int64_t{largest} + 1, .token_bytes = GetParam()});
    writer.add(Split::train, Ids{largest, 0, largest});
    writer.add(Split::validation, Ids{largest});
    writer.finish();
  }
  EXPECT_THAT(all(TokenFile::open(folder / "t").train()), ElementsAre(largest, 0, largest));
}

TEST_P(TokenWidth, IdBeyondTheVocabularyIsNamedWithItsByte) {
  const TemporaryFolder folder;
  const auto width = static_cast<std::size_t>(GetParam());
  const auto message = damage(small_file(folder, GetParam()), [&](std::string& bytes) {
    bytes[256 + 3 * width] = 6;
    fix_checksums(bytes);
  });
  EXPECT_THAT(message, HasSubstr("byte " + std::to_string(256 + 3 * width) + ": token id 6 "));
}

INSTANTIATE_TEST_SUITE_P(Widths, TokenWidth, ::testing::Values(1, 2, 4));

TEST(TokenFile, ReadsStayInsideTheSplit) {
  const TemporaryFolder folder;
  const TokenFile file = TokenFile::open(small_file(folder));
  Ids two(2);
  file.train().read(4, two);
  EXPECT_THAT(two, ElementsAre(5, 5));
  EXPECT_THROW(file.train().read(5, two), Error);
  EXPECT_THROW(file.train().read(-1, two), Error);
}

TEST(TokenFile, CopiesOutliveTheOriginal) {
  const TemporaryFolder folder;
  auto file = std::make_unique<TokenFile>(TokenFile::open(small_file(folder)));
  const TokenFile copy = *file;
  file.reset();
  EXPECT_THAT(all(copy.validation()), ElementsAre(4, 0));
}

TEST(TokenFile, TruncationAnywhereIsFound) {
  const TemporaryFolder folder;
  const std::string whole = read_bytes(small_file(folder));
  ASSERT_EQ(whole.size(), 256U + 8 + 4 * 8);
  for (const std::size_t size : {1U, 7U, 8U, 100U, 255U, 256U, 257U, 264U, 295U}) {
    const auto message = damage(small_file(folder), [&](std::string& bytes) { bytes.resize(size); });
    EXPECT_THAT(message, HasSubstr("truncated at byte " + std::to_string(size)));
    EXPECT_THAT(message, HasSubstr(size < 256 ? "256" : "expected 296 bytes"));
  }
  EXPECT_THAT(damage(small_file(folder), [](std::string& bytes) { bytes += "xyz"; }), HasSubstr("3 bytes too many from byte 296"));
}

TEST(TokenFile, EveryFlippedBitIsFound) {
  const TemporaryFolder folder;
  const auto path = small_file(folder);
  const std::string whole = read_bytes(path);
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string bytes = whole;
    bytes[at] ^= 1;
    write_bytes(path, bytes);
    EXPECT_THAT(message_of(ErrorKind::input, [&] { (void)TokenFile::open(path); }), HasSubstr("byte")) << at;
  }
}

TEST(TokenFile, WrongHeaderFieldsAreNamed) {
  const TemporaryFolder folder;
  const auto changed = [&](std::size_t at, std::uint32_t value) {
    return damage(small_file(folder), [&](std::string& bytes) {
      put_u32(bytes, at, value);
      fix_checksums(bytes);
    });
  };
  EXPECT_THAT(changed(8, 3), HasSubstr("byte 8: version 3"));
  EXPECT_THAT(changed(12, 3), HasSubstr("byte 12: token width 3"));
  EXPECT_THAT(changed(16, 0), HasSubstr("byte 16: vocabulary size 0"));
  EXPECT_THAT(changed(28, 0x80000000U), HasSubstr("byte 24: -"));
  EXPECT_THAT(changed(24, 5), HasSubstr("byte 280: a train document ends at token 6, out of order"));
  EXPECT_THAT(changed(32, 0), HasSubstr("byte 48: 1 documents"));
  EXPECT_THAT(changed(40, 7), HasSubstr("byte 40: 7 documents"));
  EXPECT_THAT(changed(48, 0), HasSubstr("byte 48: 0 documents"));
  EXPECT_THAT(changed(72, 1), HasSubstr("bytes 256 to 262: the tokens are damaged: checksum "));
  EXPECT_THAT(changed(76, 1), HasSubstr("bytes 262 to 264: the tokens are damaged: checksum "));
  EXPECT_THAT(changed(84, 1), HasSubstr("bytes 296 to 296: the tokenizer's model is damaged"));
  EXPECT_THAT(changed(92, 0x80000000U), HasSubstr("byte 88: a tokenizer's model of -"));
  EXPECT_THAT(changed(96, 2), HasSubstr("byte 96: tokenizer 2"));
  EXPECT_THAT(changed(96, 0), HasSubstr("byte 96: tokenizer 0"));
  EXPECT_THAT(changed(100, 6), HasSubstr("byte 100: end token 6 outside the vocabulary"));
  EXPECT_THAT(changed(272, 3), HasSubstr("byte 272: a train document ends at token 3, out of order"));
  EXPECT_THAT(changed(280, 5), HasSubstr("byte 280: a train document ends at token 5"));
  EXPECT_THAT(damage(small_file(folder), [](std::string& bytes) { bytes[80] ^= 1, put_u32(bytes, 108, 0); }),
              HasSubstr("bytes 0 to 256: the header is damaged"));
}

TEST(TokenFile, WhatIsNoTokenFileIsRefused) {
  const TemporaryFolder folder;
  const auto refused = [&](const std::filesystem::path& path) {
    const auto message = message_of(ErrorKind::input, [&] { (void)TokenFile::open(path); });
    EXPECT_THAT(message, HasSubstr(path.string()));
    return message;
  };
  write_bytes(folder / "empty", "");
  write_bytes(folder / "text", "Once upon a time");
  EXPECT_THAT(refused(folder / "empty"), HasSubstr("is empty (byte 0)"));
  EXPECT_THAT(refused(folder / "text"), HasSubstr("byte 0: no token file"));
  EXPECT_THAT(refused(folder / "missing"), HasSubstr("No such file"));
  EXPECT_THAT(refused(folder.path()), HasSubstr("no tokens.toml in this folder"));
}

TEST(TokenFileWriter, NothingIsLeftOfAnUnfinishedFile) {
  const TemporaryFolder folder;
  {
    TokenFileWriter writer(folder / "t", {.vocabulary = 6});
    writer.add(Split::train, Ids{1});
    EXPECT_THAT(message_of(ErrorKind::usage, [&] { writer.add(Split::train, Ids{6}); }), HasSubstr("token id 6"));
    EXPECT_THAT(message_of(ErrorKind::usage, [&] { writer.add(Split::train, Ids{-1}); }), HasSubstr("token id -1"));
    EXPECT_THAT(message_of(ErrorKind::input, [&] { writer.finish(); }), HasSubstr("validation split"));
  }
  EXPECT_THAT(folder.entries(), IsEmpty());
}

TEST(TokenFileWriter, ReplacesAFileOnlyAtTheEnd) {
  const TemporaryFolder folder;
  const auto path = small_file(folder);
  const std::string old = read_bytes(path);
  TokenFileWriter writer(path, {.vocabulary = 3});
  writer.add(Split::train, Ids{1, 2});
  writer.add(Split::validation, Ids{2});
  EXPECT_EQ(read_bytes(path), old);
  writer.finish();
  EXPECT_EQ(TokenFile::open(path).info().vocabulary, 3);
}

TEST(TokenFileWriter, RefusesWhatItCannotWrite) {
  const TemporaryFolder folder;
  const auto attempt = [&](const std::filesystem::path& path, TokenFileInfo info) { TokenFileWriter(path, std::move(info)); };
  EXPECT_THAT(message_of(ErrorKind::input, [&] { attempt(folder / "no/t", {}); }), HasSubstr("No such file"));
  EXPECT_THAT(message_of(ErrorKind::input, [&] { attempt(folder.path(), {}); }), HasSubstr("is a folder"));
  EXPECT_THAT(message_of(ErrorKind::usage, [&] { attempt(folder / "t", {.vocabulary = 257}); }), HasSubstr("token width"));
  EXPECT_THAT(message_of(ErrorKind::usage, [&] { attempt(folder / "t", {.token_bytes = 3}); }), HasSubstr("token width"));
  EXPECT_THAT(folder.entries(), IsEmpty());
}

}  // namespace
}  // namespace scape
