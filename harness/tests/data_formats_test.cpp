// Token files of other programs, written here byte by byte from the definitions of their formats: what they hold is read as it is,
// every wrong field is named with its byte, and a description adds what they do not say.
#include <gmock/gmock.h>

#include <cmath>
#include <numeric>

#include "data/token_set.hpp"
#include "data/token_stream.hpp"
#include "data/token_writer.hpp"
#include "data_support.hpp"

namespace scape {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::message_of;
using testing::read_bytes;
using testing::TemporaryFolder;
using ::testing::UnorderedElementsAre;
using testing::write_bytes;

using Ids = std::vector<std::int32_t>;

// The low `width` bytes, the lowest first.
std::string little(std::int64_t value, int width) {
  std::string bytes;
  for (int i = 0; i < width; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xff);
  return bytes;
}

std::string tokens_of(const Ids& ids, int width) {
  std::string bytes;
  for (const auto id : ids) bytes += little(id, width);
  return bytes;
}

std::string llmc(std::int64_t magic, std::int64_t version, std::int64_t count, const std::string& tokens) {
  return little(magic, 4) + little(version, 4) + little(count, 4) + std::string(253 * 4, '\0') + tokens;
}

std::string gpt2(const Ids& ids) {
  return llmc(20240520, 1, std::ssize(ids), tokens_of(ids, 2));
}

struct Megatron {
  std::vector<std::int64_t> lengths{3, 1, 0, 2}, pointers{0, 6, 8, 8}, documents{0, 2, 3, 4};  // 2 sequences; an empty one; 1
  std::int64_t version = 1, type = 8, sequences = 4, boundaries = 4;
  std::string magic = std::string("MMIDIDX\0\0", 9);
  [[nodiscard]] std::string bytes() const {
    std::string result = magic + little(version, 8) + little(type, 1) + little(sequences, 8) + little(boundaries, 8);
    for (const auto length : lengths) result += little(length, 4);
    for (const auto pointer : pointers) result += little(pointer, 8);
    for (const auto document : documents) result += little(document, 8);
    return result;
  }
};

Ids all(const TokenView& tokens) {
  Ids ids(static_cast<std::size_t>(tokens.size()));
  tokens.read(0, ids);
  return ids;
}

class Formats : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& bytes) { write_bytes(folder_ / name, bytes); }
  std::string refused(const std::string& name) {
    return message_of(ErrorKind::input, [&] { (void)TokenFile::open(folder_ / name); });
  }
  // The first token of a file for training and the rest for validation, `vocabulary` said in the description.
  std::string refused_in_set(const std::string& name, int vocabulary = 100) {
    write("set.toml", "scape_tokens = 1\nvocabulary = " + std::to_string(vocabulary) + "\n[[train]]\nfile = '" + name +
                          "'\ntokens = 1\n[[validation]]\nfile = '" + name + "'\nbegin = 1\n");
    return refused("set.toml");
  }
  TemporaryFolder folder_;
};

TEST_F(Formats, LlmcFolderIsReadAsItIs) {
  write("news_train_000002.bin", gpt2({7, 8, 50256}));
  write("news_train_000001.bin", gpt2({1, 2, 3, 4}));
  write("news_val_000000.bin", gpt2({50256, 9}));
  write("notes.txt", "no tokens");
  const TokenFile file = TokenFile::open(folder_.path());
  EXPECT_THAT(all(file.train()), ElementsAre(1, 2, 3, 4, 7, 8, 50256));
  EXPECT_THAT(all(file.validation()), ElementsAre(50256, 9));
  Ids across(4);
  file.train().read(2, across);
  EXPECT_THAT(across, ElementsAre(3, 4, 7, 8));
  EXPECT_EQ(file.train()[4], 7);
  EXPECT_EQ(file.info().format, "llm.c GPT-2");
  EXPECT_EQ(file.info().files, 3);
  EXPECT_EQ(file.info().vocabulary, 50257);
  EXPECT_EQ(file.info().token_bytes, 2);
  EXPECT_EQ(file.info().train_documents, 0);
  EXPECT_THAT(file.document_ends(Split::train), IsEmpty());
  EXPECT_EQ(file.info().tokenizer, TokenizerKind::unknown);
  EXPECT_THAT(message_of(ErrorKind::input, [&] { (void)Tokenizer(file); }), HasSubstr("does not say which tokenizer"));
  // Equal ids have equal checksums, whatever holds them.
  TokenFileWriter writer(folder_ / "own", {.vocabulary = 50257, .token_bytes = 4});
  writer.add(Split::train, Ids{1, 2, 3, 4, 7, 8, 50256});
  writer.add(Split::validation, Ids{50256, 9});
  writer.finish();
  EXPECT_EQ(TokenFile::open(folder_ / "own").info().checksum, file.info().checksum);
}

TEST_F(Formats, LlmcOfLlama3HasFourBytesPerToken) {
  write("train.bin", llmc(20240801, 7, 2, tokens_of({128255, 5}, 4)));
  write("val.bin", llmc(20240801, 7, 1, tokens_of({128000}, 4)));
  const TokenFile file = TokenFile::open(folder_.path());
  EXPECT_THAT(all(file.train()), ElementsAre(128255, 5));
  EXPECT_EQ(file.info().vocabulary, 128256);
  EXPECT_EQ(file.info().token_bytes, 4);
}

TEST_F(Formats, LlmcDamageIsNamed) {
  const std::string good = gpt2({1, 2, 3});
  const auto changed = [&](std::size_t at, std::int64_t value) {
    std::string bytes = good;
    bytes.replace(at, 4, little(value, 4));
    write("t", bytes);
    return refused("t");
  };
  EXPECT_THAT(changed(0, 20240521), HasSubstr("byte 0: no token file"));
  EXPECT_THAT(changed(4, 2), HasSubstr("byte 4: version 2, this program reads version 1 of llm.c GPT-2"));
  EXPECT_THAT(changed(8, 0), HasSubstr("byte 8: 0 tokens"));
  EXPECT_THAT(changed(8, -3), HasSubstr("byte 8: -3 tokens"));
  EXPECT_THAT(changed(8, 4), HasSubstr("truncated at byte 1030: expected 1032 bytes"));
  EXPECT_THAT(changed(8, 2), HasSubstr("2 bytes too many from byte 1028"));
  for (const std::size_t size : {4U, 100U, 1023U}) {
    write("t", good.substr(0, size));
    EXPECT_THAT(refused("t"), HasSubstr("truncated at byte " + std::to_string(size) + ": the header alone has 1024"));
  }
  write("train.bin", gpt2({1, 2, 50257}));
  write("val.bin", gpt2({1}));
  EXPECT_THAT(refused(""), HasSubstr("train.bin: byte 1028: token id 50257 is not below the vocabulary size 50257"));
  write("val.bin", llmc(20240801, 7, 1, tokens_of({1}, 4)));
  EXPECT_THAT(refused(""), HasSubstr("val.bin: a vocabulary of 128256"));
  fs::remove(folder_ / "val.bin");
  EXPECT_THAT(refused(""), HasSubstr("no validation tokens in these llm.c GPT-2 tokens; name some once: scape data describe"));
}

TEST_F(Formats, RawTokensNeedTheirVocabularySaidOnce) {
  write("train.bin", tokens_of({5, 50256, 0, 7}, 2));
  write("val.bin", tokens_of({50256, 1}, 2));
  EXPECT_THAT(
      refused(""),
      AllOf(HasSubstr("train.bin: raw uint16 tokens (byte 0: no known format begins like this) do not say their vocabulary"),
            HasSubstr("scape data describe " + (folder_ / "").string() + " --vocabulary N")));
  EXPECT_THAT(message_of(ErrorKind::usage, [&] { describe_tokens({.paths = {folder_.path()}}); }), HasSubstr("--vocabulary N"));
  const auto path = describe_tokens({.paths = {folder_.path()}, .vocabulary = 50257, .end_token = 50256, .source = "web \"text\""});
  EXPECT_EQ(path, folder_ / "tokens.toml");
  const TokenFile file = TokenFile::open(folder_.path());
  EXPECT_THAT(all(file.train()), ElementsAre(5, 50256, 0, 7));
  EXPECT_THAT(all(file.validation()), ElementsAre(50256, 1));
  EXPECT_EQ(file.info().format, "raw uint16");
  EXPECT_EQ(file.info().vocabulary, 50257);
  EXPECT_EQ(file.info().end_token, 50256);
  EXPECT_EQ(file.info().source, "web \"text\"");
  EXPECT_NEAR(file.info().unigram_entropy, std::log(4.0), 1e-12);
  EXPECT_EQ(TokenFile::open(path).info().checksum, file.info().checksum);

  write("val.bin", tokens_of({50256, 2}, 2));
  EXPECT_THAT(refused(""), HasSubstr("val.bin: bytes 0 to 4: the tokens are damaged: checksum"));
  write("val.bin", "abc");
  EXPECT_THAT(refused(""), HasSubstr("val.bin: truncated at byte 3: raw uint16 tokens have 2 bytes each"));
  write("val.bin", tokens_of({1, 2, 3}, 2));
  EXPECT_THAT(refused(""), HasSubstr("tokens.toml: line 18: " + (folder_ / "val.bin").string() + " has 6 bytes"));
  write("val.bin", tokens_of({50256, 1}, 2));
  write("train.bin", tokens_of({5, 6, 50257, 7}, 2));
  EXPECT_THAT(refused(""), HasSubstr("train.bin: byte 4: token id 50257"));
}

TEST_F(Formats, RawTokensOfALargeVocabularyHaveFourBytes) {
  write("a.bin", tokens_of({70000, 99999, 3, 4}, 4));
  const auto path = describe_tokens(
      {.paths = {folder_ / "a.bin"}, .validation_fraction = 0.5, .vocabulary = 100000, .output = folder_ / "a.toml"});
  const TokenFile file = TokenFile::open(path);
  EXPECT_THAT(all(file.train()), ElementsAre(70000, 99999));
  EXPECT_THAT(all(file.validation()), ElementsAre(3, 4));
  EXPECT_EQ(file.info().files, 1);
}

TEST_F(Formats, MegatronIsReadWithItsDocuments) {
  write("a.idx", Megatron{}.bytes());
  write("a.bin", tokens_of({10, 11, 12, 20, 30, 31}, 2));
  for (const std::string name : {"a.idx", "a.bin"}) {
    const auto array = TokenArray::open(folder_ / name, 100);
    EXPECT_EQ(array->format, "Megatron");
    EXPECT_EQ(array->tokens, 6);
    EXPECT_EQ(array->documents, 3);
    EXPECT_THAT(array->document_ends(), ElementsAre(4, 6));  // the document without tokens is none
  }
  EXPECT_THAT(refused("a.idx"), HasSubstr("Megatron tokens do not say their vocabulary"));
  const DescribeOptions half{
      .paths = {folder_ / "a.idx"}, .validation_fraction = 0.2, .vocabulary = 32, .output = folder_ / "a.toml"};
  const TokenFile file = TokenFile::open(describe_tokens(half));
  EXPECT_THAT(all(file.train()), ElementsAre(10, 11, 12, 20));
  EXPECT_THAT(all(file.validation()), ElementsAre(30, 31));  // a fifth is one token; documents stay whole
  EXPECT_THAT(file.document_ends(Split::train), ElementsAre(4));
  EXPECT_THAT(file.document_ends(Split::validation), ElementsAre(2));
  EXPECT_EQ(file.info().train_documents, 1);
  EXPECT_EQ(file.info().validation_documents, 1);
}

TEST_F(Formats, MegatronOfOtherTypes) {
  Megatron wide{.pointers = {0, 12, 16, 16}, .type = 4};
  write("wide.idx", wide.bytes());
  write("wide.bin", tokens_of({1, 2, 3, 4, 5, 70000}, 4));
  EXPECT_EQ(TokenArray::open(folder_ / "wide.idx")->token_bytes, 4);
  EXPECT_THAT(refused_in_set("wide.bin", 70000), HasSubstr("wide.bin: byte 20: token id 70000"));
  Megatron narrow{.pointers = {0, 3, 4, 4}, .type = 1};
  write("narrow.idx", narrow.bytes());
  write("narrow.bin", tokens_of({1, 2, 3, 4, 5, 255}, 1));
  EXPECT_EQ(TokenArray::open(folder_ / "narrow.idx")->tokens, 6);
}

TEST_F(Formats, MegatronDamageIsNamed) {
  write("a.bin", tokens_of({10, 11, 12, 20, 30, 31}, 2));
  const auto with = [&](const std::function<void(Megatron&)>& change) {
    Megatron form;
    change(form);
    write("a.idx", form.bytes());
    return refused_in_set("a.idx");
  };
  EXPECT_THAT(with([](auto& m) { m.magic[3] = 'X'; }), HasSubstr("a.idx: byte 0: not an index of Megatron tokens"));
  EXPECT_THAT(with([](auto& m) { m.version = 2; }), HasSubstr("a.idx: byte 9: version 2"));
  for (const int type : {0, 2, 5, 6, 7, 9, 255}) {
    EXPECT_THAT(with([&](auto& m) { m.type = type; }), HasSubstr("a.idx: byte 17: type " + std::to_string(type)));
  }
  EXPECT_THAT(with([](auto& m) { m.sequences = 0; }), HasSubstr("a.idx: byte 18: 0 sequences"));
  EXPECT_THAT(with([](auto& m) { m.sequences = -1; }), HasSubstr("a.idx: byte 18: -1 sequences"));
  EXPECT_THAT(with([](auto& m) { m.boundaries = 1; }), HasSubstr("a.idx: byte 26: 1 document boundaries"));
  EXPECT_THAT(with([](auto& m) { m.sequences = 5; }), HasSubstr("a.idx: truncated at byte 114: expected 126 bytes"));
  EXPECT_THAT(with([](auto& m) { m.boundaries = 3; }), HasSubstr("a.idx: 8 bytes too many from byte 106"));
  EXPECT_THAT(with([](auto& m) { m.lengths[1] = -1, m.lengths[0] = 5; }), HasSubstr("a.idx: byte 58: a sequence starts at byte 6"));
  EXPECT_THAT(with([](auto& m) { m.lengths[2] = -1; }), HasSubstr("a.idx: byte 42: a sequence of -1 tokens"));
  EXPECT_THAT(with([](auto& m) { m.lengths[3] = -1; }), HasSubstr("a.idx: byte 46: a sequence of -1 tokens"));
  EXPECT_THAT(with([](auto& m) { m.lengths[3] = 3; }), HasSubstr("a.idx: byte 74: the last sequence ends at byte 14 of a.bin"));
  EXPECT_THAT(with([](auto& m) { m.pointers[0] = 2; }), HasSubstr("a.idx: byte 50: the first sequence starts at byte 2"));
  EXPECT_THAT(with([](auto& m) { m.pointers[2] = 6; }), HasSubstr("a.idx: byte 66: a sequence starts at byte 6"));
  EXPECT_THAT(with([](auto& m) { m.pointers[3] = 10; }), HasSubstr("a.idx: byte 74: the last sequence ends at byte 14"));
  EXPECT_THAT(with([](auto& m) { m.documents[0] = 1; }), HasSubstr("a.idx: byte 82: the first document starts with sequence 1"));
  EXPECT_THAT(with([](auto& m) { m.documents[2] = 1; }),
              HasSubstr("a.idx: byte 98: a document starts with sequence 1, out of order"));
  EXPECT_THAT(with([](auto& m) { m.documents[1] = 9; }),
              HasSubstr("a.idx: byte 90: a document starts with sequence 9, out of order"));
  EXPECT_THAT(with([](auto& m) { m.documents[3] = 3; }), HasSubstr("a.idx: byte 106: the last document ends with sequence 3"));
  const std::string good = Megatron{}.bytes();
  for (const std::size_t size : {9U, 20U, 33U}) {
    write("a.idx", good.substr(0, size));
    EXPECT_THAT(refused_in_set("a.idx"),
                HasSubstr("truncated at byte " + std::to_string(size) + ": the header alone has 34 bytes"));
  }
  write("a.idx", good + std::string(4, '\0'));
  EXPECT_THAT(refused_in_set("a.idx"), HasSubstr("a.idx: byte 114: a mode per sequence"));
  write("a.idx", good);
  write("a.bin", tokens_of({10, 11, 12, 20, 30}, 2));
  EXPECT_THAT(refused_in_set("a.idx"), HasSubstr("a.idx: byte 74: the last sequence ends at byte 12 of a.bin, which has 10 bytes"));
  fs::remove(folder_ / "a.bin");
  EXPECT_THAT(refused_in_set("a.idx"), HasSubstr("a.bin: cannot be opened"));
}

// Above 64 MiB tokens are not read when they are opened, but no id that is not in the vocabulary gets to a model.
TEST_F(Formats, LargeFileIsCheckedAsItIsRead) {
  constexpr std::int64_t count = 40 << 20;
  constexpr std::int64_t bad = 30 << 20;
  write("train.bin", llmc(20240520, 1, count, ""));
  fs::resize_file(folder_ / "train.bin", 1024 + 2 * count);  // zeros that take no room
  write("val.bin", gpt2({1, 2}));
  EXPECT_FALSE(TokenFile::open(folder_.path()).info().verified);
  EXPECT_EQ(TokenFile::open(folder_.path()).info().checksum, "");
  {
    std::fstream file(folder_ / "train.bin", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(1024 + 2 * bad);
    file << little(60000, 2);
  }
  TokenFile file = TokenFile::open(folder_.path());
  Ids ids(100);
  file.train().read(bad + 1, ids);
  EXPECT_THAT(message_of(ErrorKind::input, [&] { file.train().read(bad - 50, ids); }),
              HasSubstr("train.bin: byte " + std::to_string(1024 + 2 * bad) + ": token id 60000"));
  EXPECT_THAT(message_of(ErrorKind::input, [&] { file.verify(); }), HasSubstr("token id 60000"));
}

TEST_F(Formats, DescriptionIsReadStrictly) {
  write("a.bin", tokens_of({1, 2, 3, 4}, 2));
  const std::string good =
      "scape_tokens = 1\nvocabulary = 10\n[[train]]\nfile = 'a.bin'\ntokens = 3\n[[validation]]\nfile = 'a.bin'\nbegin = 3\n";
  write("set.toml", good);
  EXPECT_THAT(all(TokenFile::open(folder_ / "set.toml").train()), ElementsAre(1, 2, 3));
  EXPECT_THAT(all(TokenFile::open(folder_ / "set.toml").validation()), ElementsAre(4));
  const auto with = [&](const std::string& part, const std::string& instead) {
    std::string text = good;
    text.replace(text.find(part), part.size(), instead);
    write("set.toml", text);
    return refused("set.toml");
  };
  EXPECT_THAT(with("scape_tokens = 1", "scape_tokens = 2"), HasSubstr("scape_tokens = 2: this program reads version 1"));
  EXPECT_THAT(with("scape_tokens = 1", ""), HasSubstr("no 'scape_tokens'"));
  EXPECT_THAT(with("vocabulary = 10", ""), HasSubstr("no 'vocabulary'"));
  EXPECT_THAT(with("vocabulary = 10", "vocabulary = 'ten'"), HasSubstr("line 2: 'vocabulary' must be a whole number in [1, "));
  EXPECT_THAT(with("vocabulary = 10", "vocabulary = 10\ncolour = 3"), HasSubstr("line 3: unknown key 'colour'"));
  EXPECT_THAT(with("tokens = 3", "token = 3"), HasSubstr("line 5: unknown key 'token'"));
  EXPECT_THAT(with("tokens = 3", "tokens = 5"), HasSubstr("line 5: 'tokens' must be a whole number in [1, 4]"));
  EXPECT_THAT(with("begin = 3", "begin = 2"),
              HasSubstr("set.toml: token 2 of " + (folder_ / "a.bin").string() + " is in both splits"));
  EXPECT_THAT(with("begin = 3", "begin = 4"), HasSubstr("line 8: 'begin' must be a whole number in [0, 3]"));
  EXPECT_THAT(with("begin = 3", "crc32 = '0123ABCD'"), HasSubstr("line 8: 'crc32' must be eight hexadecimal digits"));
  EXPECT_THAT(with("begin = 3", "begin = 3\ncrc32 = '0123abcd'"), HasSubstr("a.bin: bytes 6 to 8: the tokens are damaged"));
  EXPECT_THAT(with("[[train]]", "[train]"), HasSubstr("line 3: 'train' must be a list of tables"));
  EXPECT_THAT(with("'a.bin'", "'b.bin'"), HasSubstr("b.bin: cannot be opened"));
  EXPECT_THAT(with("vocabulary = 10", "vocabulary = "), HasSubstr("line 2: "));
  EXPECT_THAT(with("vocabulary = 10", "vocabulary = 10\ntokenizer = 'no.model'"), HasSubstr("no.model: cannot be opened"));
  write("set.toml", "scape_tokens = 1\nvocabulary = 10\n");
  EXPECT_THAT(refused("set.toml"), HasSubstr("no train tokens"));
}

TEST_F(Formats, DescribeSaysWhatIsMissing) {
  write("a.bin", tokens_of({1, 2, 3, 4}, 2));
  const auto usage = [&](const DescribeOptions& options) {
    return message_of(ErrorKind::usage, [&] { describe_tokens(options); });
  };
  const fs::path a = folder_ / "a.bin", out = folder_ / "a.toml";
  EXPECT_THAT(usage({.paths = {a}, .vocabulary = 10}), HasSubstr("--out NAME.toml"));
  EXPECT_THAT(usage({.paths = {a}, .vocabulary = 10, .output = folder_ / "a"}), HasSubstr("must end in .toml"));
  write("run.toml", "steps = 3\n");
  EXPECT_THAT(usage({.paths = {a}, .validation_fraction = 0.5, .vocabulary = 10, .output = folder_ / "run.toml"}),
              HasSubstr("run.toml: exists and is not a description"));
  fs::remove(folder_ / "run.toml");
  EXPECT_THAT(usage({.paths = {a}, .vocabulary = 10, .output = out}), HasSubstr("no validation tokens"));
  EXPECT_THAT(usage({.paths = {a}, .validation_fraction = 0.6, .vocabulary = 10, .output = out}), HasSubstr("(0, 0.5]"));
  EXPECT_THAT(usage({.paths = {a}, .validation_fraction = 0.5, .vocabulary = 10, .end_token = 10, .output = out}),
              HasSubstr("end token"));
  write("b.bin", tokens_of({1}, 2));
  EXPECT_THAT(usage({.paths = {a}, .validation = {folder_ / "b.bin"}, .validation_fraction = 0.5, .vocabulary = 10, .output = out}),
              HasSubstr("give no fraction"));
  EXPECT_THAT(usage({.paths = {a}, .validation_fraction = 0.5, .vocabulary = 10, .tokenizer = "bytes", .output = out}),
              HasSubstr("the tokenizer has 256 ids, more than the vocabulary of 10"));
  EXPECT_THAT(usage({.paths = {a}, .validation = {folder_ / "./a.bin"}, .vocabulary = 10, .output = out}),
              HasSubstr("is named twice"));
  EXPECT_THAT(message_of(ErrorKind::input,
                         [&] { describe_tokens({.paths = {a}, .validation_fraction = 0.5, .vocabulary = 4, .output = out}); }),
              HasSubstr("a.bin: byte 6: token id 4"));
  EXPECT_THAT(folder_.entries(), UnorderedElementsAre("a.bin", "b.bin"));
}

TEST_F(Formats, DescribedFolderCanMove) {
  fs::create_directory(folder_ / "old");
  write("old/train.bin", tokens_of({65, 66, 67}, 2));
  write("old/val.bin", tokens_of({68}, 2));
  describe_tokens({.paths = {folder_ / "old"}, .vocabulary = 256, .tokenizer = "bytes"});
  fs::rename(folder_ / "old", folder_ / "new");
  const TokenFile file = TokenFile::open(folder_ / "new");
  Ids ids = all(file.train());
  EXPECT_EQ(Tokenizer(file).decode(ids), "ABC");
}

}  // namespace
}  // namespace scape
