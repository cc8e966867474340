// Text in every form it comes in: plain, gzip, zstd, lines of JSON. Packed text is the same text; damage is named with its byte or
// line. Tokenizers: what they make can be read again, and a token file knows which one made it.
#include <gmock/gmock.h>

#include "data/text_source.hpp"
#include "data/tokenizer.hpp"
#include "data_support.hpp"

namespace scape {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::gzip;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::message_of;
using testing::small_model;
using testing::TemporaryFolder;
using testing::write_bytes;
using testing::zstd;

std::string read_all(const fs::path& path, std::size_t at_once) {
  const auto source = ByteSource::open(path);
  std::string text(at_once, ' '), whole;
  while (const auto got = source->read(text.data(), at_once)) whole.append(text, 0, got);
  EXPECT_EQ(source->position(), static_cast<std::int64_t>(fs::file_size(path)));
  return whole;
}

class Text : public ::testing::Test {
 protected:
  fs::path write(const std::string& name, const std::string& bytes) {
    write_bytes(folder_ / name, bytes);
    return folder_ / name;
  }
  std::vector<std::string> lines(const std::string& bytes, const std::string& name = "a.jsonl", const std::string& field = "text") {
    std::vector<std::string> found;
    for_each_line(write(name, bytes), field, [&](std::string text, std::int64_t) { found.push_back(std::move(text)); });
    return found;
  }
  std::string refused(const std::string& bytes) {
    const auto message = message_of(ErrorKind::input, [&] { lines(bytes); });
    EXPECT_THAT(message, HasSubstr((folder_ / "a.jsonl").string()));
    return message;
  }
  std::string unreadable(const std::string& bytes) {
    return message_of(ErrorKind::input, [&] { read_all(write("t", bytes), 1000); });
  }
  TemporaryFolder folder_;
};

// 700 KB that hardly shrink, so that the packed form has several buffers.
std::string noise() {
  std::string text;
  std::uint32_t state = 1;
  for (int i = 0; i < 700000; ++i) text += static_cast<char>('!' + ((state = state * 1664525U + 1013904223U) >> 24) % 90);
  return text;
}

TEST_F(Text, PackedTextIsTheSameText) {
  const std::string text = noise();
  for (const std::size_t at_once : {777U, 1U << 18}) {
    EXPECT_TRUE(read_all(write("plain", text), at_once) == text);
    EXPECT_TRUE(read_all(write("gzip", gzip(text)), at_once) == text);
    EXPECT_TRUE(read_all(write("zstd", zstd(text)), at_once) == text);
    EXPECT_TRUE(read_all(write("members", gzip("a\n") + gzip(text) + gzip("") + gzip("z")), at_once) == "a\n" + text + "z");
    EXPECT_TRUE(read_all(write("frames", zstd("a\n") + zstd(text) + zstd("") + zstd("z")), at_once) == "a\n" + text + "z");
  }
  EXPECT_EQ(read_all(write("short", "x"), 10), "x");
}

TEST_F(Text, CutOffAndDamagedPackedTextIsNamedWithItsByte) {
  const std::string text = noise();
  for (const std::string& packed : {gzip(text), zstd(text)}) {
    for (const std::size_t size :
         {packed.size() - 1, packed.size() - 5, packed.size() / 2, std::size_t{1} << 18, std::size_t{20}, std::size_t{4}}) {
      EXPECT_THAT(unreadable(packed.substr(0, size)), HasSubstr("t: truncated at byte " + std::to_string(size) + ": "));
    }
  }
  std::string packed = gzip(text);
  packed[packed.size() - 6] ^= 1;  // the checksum
  EXPECT_THAT(unreadable(packed), AllOf(HasSubstr("t: byte "), HasSubstr("damaged gzip data: incorrect data check")));
  EXPECT_THAT(unreadable(gzip("abc") + "rest"), AllOf(HasSubstr("damaged gzip data"), HasSubstr("byte 2")));
  packed = zstd(text);
  packed.back() ^= 1;
  EXPECT_THAT(unreadable(packed), HasSubstr("damaged zstd data: Restored data doesn't match checksum"));
  EXPECT_THAT(unreadable(zstd("abc") + "rest"), HasSubstr("damaged zstd data"));
}

TEST_F(Text, FieldOfEachLine) {
  const std::string bytes =
      "{\"meta\": {\"text\": 1}, \"text\": \"one\\n\\u00e9\\\"\"}\r\n\n  \t\n{\"text\": \"\"}\n{\"text\":\"last\"}";
  EXPECT_THAT(lines(bytes), ElementsAre("one\n\xc3\xa9\"", "", "last"));
  EXPECT_THAT(lines(gzip(bytes), "a.jsonl.gz"), ElementsAre("one\n\xc3\xa9\"", "", "last"));
  EXPECT_THAT(lines(zstd(bytes), "a.jsonl.zst"), ElementsAre("one\n\xc3\xa9\"", "", "last"));
  EXPECT_THAT(lines("{\"content\": \"c\"}\n", "a.jsonl", "content"), ElementsAre("c"));
  EXPECT_THAT(lines("\xef\xbb\xbf{\"text\": \"a\"}\r\n{\"text\": \"\xef\xbb\xbf\"}"), ElementsAre("a", "\xef\xbb\xbf"));
  EXPECT_THAT(lines(""), IsEmpty());
}

TEST_F(Text, LongLinesAndManyLines) {
  const std::string text(3 << 20, 'x');
  EXPECT_THAT(lines("{\"text\": \"" + text + "\"}\n{\"text\": \"y\"}\n"), ElementsAre(text, "y"));
  std::string many;
  std::vector<std::string> expected;
  for (int i = 0; i < 50000; ++i) {
    expected.push_back("line " + std::to_string(i));
    many += "{\"id\": " + std::to_string(i) + ", \"text\": \"" + expected.back() + "\"}\n";
  }
  EXPECT_TRUE(lines(many) == expected);
}

TEST_F(Text, DamagedLineIsNamed) {
  const std::string good = "{\"text\": \"a\"}\n";
  EXPECT_THAT(refused(good + "\n" + good + "{\"text\": \"b\n" + good), HasSubstr("line 4: damaged JSON: "));
  EXPECT_THAT(refused(good + "{\"text\": \"b\"} more\n"), HasSubstr("line 2: damaged JSON: "));
  EXPECT_THAT(refused(good + "{\"text\": \"b\", \"meta\": }\n"), HasSubstr("line 2: damaged JSON: "));  // behind the field
  EXPECT_THAT(refused("{\"text\": \"\xff\"}\n"), HasSubstr("line 1: damaged JSON: "));
  EXPECT_THAT(refused(good + "{\"text\": \"cut o"), HasSubstr("line 2: damaged JSON: "));
  EXPECT_THAT(refused(good + good + "{\"txt\": \"b\"}\n"), HasSubstr("line 3: no field 'text'"));
  EXPECT_THAT(refused("{\"text\": 3}\n"), HasSubstr("line 1: field 'text' is not text"));
  EXPECT_THAT(refused("{\"text\": null}\n"), HasSubstr("line 1: field 'text' is not text"));
  EXPECT_THAT(refused("[\"text\"]\n"), HasSubstr("line 1: not a JSON object"));
  EXPECT_THAT(refused("\"text\"\n"), HasSubstr("line 1: not a JSON object"));
}

TEST_F(Text, LinesOfJsonAreKnownByTheirName) {
  for (const char* name : {"a.jsonl", "a.b.jsonl.gz", "a.jsonl.zst"}) EXPECT_TRUE(is_json_lines(name)) << name;
  for (const char* name : {"a.json", "a.txt", "a.gz", "jsonl", "a.jsonl.txt", "a.txt.zst"})
    EXPECT_FALSE(is_json_lines(name)) << name;
}

TEST_F(Text, BytesAreTheirOwnTokens) {
  const Tokenizer tokenizer("bytes");
  const std::string text("a\0\xff\n", 4);
  EXPECT_THAT(tokenizer.encode(text), ElementsAre(97, 0, 255, 10));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  EXPECT_EQ(tokenizer.vocabulary(), 256);
  EXPECT_EQ(tokenizer.end_token(), -1);
  EXPECT_EQ(tokenizer.description(), "bytes");
  EXPECT_THAT(message_of(ErrorKind::usage, [&] { (void)tokenizer.decode(std::vector<std::int32_t>{256}); }), HasSubstr("256"));
}

TEST_F(Text, SentencePieceModel) {
  const auto path = write("m.model", small_model());
  for (const std::string& name : {path.string(), "sentencepiece:" + path.string()}) {
    const Tokenizer tokenizer(name);
    EXPECT_EQ(tokenizer.kind(), TokenizerKind::sentencepiece);
    EXPECT_EQ(tokenizer.vocabulary(), 300);
    EXPECT_EQ(tokenizer.end_token(), 2);
    EXPECT_EQ(tokenizer.model(), small_model());
    const std::string text =
        "the cat and the caf\xc3\xa9\nof the \xf0\x9f\x90\x88";  // symbols that the model never saw become bytes
    const auto ids = tokenizer.encode(text);
    EXPECT_LT(ids.size(), text.size());
    EXPECT_EQ(tokenizer.decode(ids), text);
    auto with_end = ids;
    with_end.push_back(tokenizer.end_token());
    EXPECT_EQ(tokenizer.decode(with_end), text);
    EXPECT_THAT(tokenizer.encode(""), IsEmpty());
    EXPECT_THAT(tokenizer.description(), AllOf(HasSubstr("SentencePiece model "), HasSubstr("vocabulary 300, end of document 2")));
    EXPECT_THAT(message_of(ErrorKind::usage, [&] { (void)tokenizer.decode(std::vector<std::int32_t>{300}); }), HasSubstr("300"));
  }
}

TEST_F(Text, WhatIsNoModelIsNamed) {
  EXPECT_THAT(message_of(ErrorKind::input, [&] { Tokenizer((folder_ / "none").string()); }), HasSubstr("none: cannot be opened"));
  EXPECT_THAT(message_of(ErrorKind::input, [&] { Tokenizer(write("text", "the cat").string()); }),
              HasSubstr("text: not a SentencePiece"));
  EXPECT_THAT(message_of(ErrorKind::input, [&] { Tokenizer(write("half", small_model().substr(0, 700)).string()); }),
              HasSubstr("half: not a SentencePiece model"));
}

}  // namespace
}  // namespace scape
