// Preparation: text goes in whole and once, the split is by document, bad input is named and leaves nothing behind.
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <set>

#include "data/prepare.hpp"
#include "data/token_array.hpp"
#include "data/token_stream.hpp"
#include "data/tokenizer.hpp"
#include "data_support.hpp"

namespace scape {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::message_of;
using testing::read_bytes;
using testing::TemporaryFolder;
using testing::write_bytes;

// `lines` lines that no other call repeats, a blank one after each seventh.
std::string text(const std::string& name, int lines) {
  std::string result;
  for (int i = 0; i < lines; ++i) result += name + " line " + std::to_string(i) + (i % 7 == 6 ? "\n\n" : "\n");
  return result;
}

std::vector<std::string> documents(const TokenFile& file, Split split) {
  std::vector<std::string> found;
  const TokenView tokens = file.tokens(split);
  std::int64_t begin = 0;
  for (const auto end : file.document_ends(split)) {
    std::string document;
    for (; begin < end; ++begin) document += static_cast<char>(tokens[begin]);
    found.push_back(document);
  }
  return found;
}

std::vector<std::string> all_documents(const TokenFile& file) {
  auto all = documents(file, Split::train);
  const auto more = documents(file, Split::validation);
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

class Prepare : public ::testing::Test {
 protected:
  std::string refused(const std::vector<fs::path>& paths) {
    const auto message = message_of(ErrorKind::input, [&] { prepare({.paths = paths, .output = out_ / "tokens.bin"}); });
    EXPECT_THAT(out_.entries(), IsEmpty());
    EXPECT_THAT(message, HasSubstr(paths.back().string()));
    return message;
  }
  PrepareSummary run(PrepareOptions options) {
    options.output = out_ / "tokens.bin";
    options.overwrite = true;
    return prepare(options);
  }
  TokenFile result() { return TokenFile::open(out_ / "tokens.bin"); }

  TemporaryFolder in_;
  TemporaryFolder out_;
};

TEST_F(Prepare, FolderOfSmallFilesGivesOneDocumentEach) {
  std::vector<std::string> expected;
  for (int i = 0; i < 60; ++i) {
    const auto folder = in_ / ("part" + std::to_string(i % 3));
    fs::create_directories(folder);
    expected.push_back(text("file " + std::to_string(i), 15 + i % 5));
    write_bytes(folder / (std::to_string(i) + ".txt"), expected.back());
  }
  const auto summary = run({.paths = {in_.path()}, .description = "sixty files"});
  EXPECT_EQ(summary.files, 60);
  EXPECT_EQ(summary.skipped_files, 0);
  const TokenFile file = result();
  EXPECT_EQ(file.info().vocabulary, 256);
  EXPECT_EQ(file.info().token_bytes, 1);
  EXPECT_EQ(file.info().source, "sixty files");
  EXPECT_EQ(file.info().validation_documents, 3);
  EXPECT_EQ(file.info().train_documents, 57);
  EXPECT_EQ(summary.info.train_tokens, file.info().train_tokens);
  auto found = all_documents(file);
  std::sort(found.begin(), found.end());
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(found, expected);
  EXPECT_THAT(out_.entries(), ElementsAre("tokens.bin"));
}

TEST_F(Prepare, LongFileIsCutAtBlankLinesAndStaysWhole) {
  const std::string whole = text("x", 200000);
  write_bytes(in_ / "long", whole);
  run({.paths = {in_ / "long"}});
  const TokenFile file = result();
  EXPECT_EQ(file.info().train_tokens + file.info().validation_tokens, std::ssize(whole));
  EXPECT_GE(file.info().validation_documents, 2);
  auto found = all_documents(file);
  const auto first_line = [](const std::string& document) { return std::stol(document.substr(7)); };  // behind "x line "
  std::sort(found.begin(), found.end(), [&](const auto& a, const auto& b) { return first_line(a) < first_line(b); });
  std::string joined;
  for (const auto& document : found) {
    EXPECT_LE(document.size(), 65536U);
    EXPECT_TRUE(document.ends_with("\n\n") || whole.ends_with(document));
    joined += document;
  }
  EXPECT_TRUE(joined == whole);
}

TEST_F(Prepare, SmallTextIsStillSplit) {
  write_bytes(in_ / "small", text("x", 1000));  // 11 KB: just enough
  run({.paths = {in_ / "small"}});
  EXPECT_GE(result().info().validation_documents, 2);
  write_bytes(in_ / "dense", std::string(20000, 'a'));  // nowhere to cut
  run({.paths = {in_ / "dense"}});
  EXPECT_GE(result().info().validation_documents, 2);
  EXPECT_EQ(result().info().train_tokens + result().info().validation_tokens, 20000);
}

TEST_F(Prepare, SplitHasTheFractionAskedForAndDependsOnTheSeed) {
  for (int i = 0; i < 1000; ++i) write_bytes(in_ / std::to_string(i), text(std::to_string(i), 20));
  for (const double fraction : {0.01, 0.05, 0.3, 0.5}) {
    run({.paths = {in_.path()}, .validation_fraction = fraction});
    EXPECT_NEAR(static_cast<double>(result().info().validation_documents), 1000 * fraction, 1.01) << fraction;
  }
  run({.paths = {in_.path()}, .seed = 1});
  const auto first = documents(result(), Split::validation);
  const std::string bytes = read_bytes(out_ / "tokens.bin");
  run({.paths = {in_.path()}, .seed = 1});
  EXPECT_TRUE(read_bytes(out_ / "tokens.bin") == bytes);
  run({.paths = {in_.path()}, .seed = 2});
  EXPECT_NE(documents(result(), Split::validation), first);
}

TEST_F(Prepare, FolderSkipsWhatIsNotText) {
  write_bytes(in_ / "a.txt", text("a", 2000));
  write_bytes(in_ / "b.png", std::string("\x89PNG\r\n\0\0", 8) + text("b", 100));
  write_bytes(in_ / "c.empty", "");
  write_bytes(in_ / ".hidden", text("hidden", 100));
  fs::create_directory(in_ / ".git");
  write_bytes(in_ / ".git/object", text("object", 100));
  fs::create_directory_symlink(in_.path(), in_ / "loop");
  fs::create_symlink(in_ / "a.txt", in_ / "z.txt");
  const auto summary = run({.paths = {in_.path(), in_ / "a.txt"}});
  EXPECT_EQ(summary.files, 1);
  EXPECT_EQ(summary.skipped_files, 2);
  EXPECT_EQ(summary.info.train_tokens + summary.info.validation_tokens, std::ssize(text("a", 2000)));
}

TEST_F(Prepare, UnusableInputIsNamed) {
  write_bytes(in_ / "good", text("good", 2000));
  write_bytes(in_ / "empty", "");
  write_bytes(in_ / "short", text("short", 3));
  write_bytes(in_ / "binary", std::string("abc\0def", 7));
  fs::create_directories(in_ / "hollow/inner");
  write_bytes(in_ / "hollow/inner/image", std::string(10, '\0'));
  EXPECT_THAT(refused({in_ / "missing"}), HasSubstr("does not exist"));
  EXPECT_THAT(refused({in_ / "good", in_ / "empty"}), HasSubstr("is empty (byte 0)"));
  EXPECT_THAT(refused({in_ / "binary"}), HasSubstr("byte 3 is zero"));
  EXPECT_THAT(refused({in_ / "good", in_ / "hollow"}), HasSubstr("no text file"));
  EXPECT_THAT(refused({in_ / "short"}), HasSubstr("too little text to split: 39 bytes, 10240 needed"));
  EXPECT_THAT(refused({"/dev/null"}), HasSubstr("neither a file nor a folder"));
  fs::create_directory(in_ / "links");
  fs::create_symlink("nowhere", in_ / "links/dead");
  EXPECT_THAT(message_of(ErrorKind::input, [&] { run({.paths = {in_ / "links"}}); }), HasSubstr("links/dead: "));
}

// Root may read everything: then the test goes on as the user nobody.
TEST_F(Prepare, UnreadableFileIsNamed) {
  constexpr uid_t nobody = 65534;
  const bool root = ::geteuid() == 0;
  write_bytes(in_ / "good", text("good", 2000));
  write_bytes(in_ / "secret", text("secret", 2000));
  fs::permissions(in_ / "secret", fs::perms::none);
  if (root) {
    for (const auto& path : {in_.path(), in_ / "good", in_ / "secret", out_.path()})
      ASSERT_EQ(::chown(path.c_str(), nobody, -1), 0);
    ASSERT_EQ(::seteuid(nobody), 0);
  }
  const auto message = message_of(ErrorKind::input, [&] { run({.paths = {in_.path()}}); });
  fs::permissions(in_.path(), fs::perms::none);
  const auto folder = message_of(ErrorKind::input, [&] { run({.paths = {in_.path()}}); });
  fs::permissions(in_.path(), fs::perms::owner_all);
  ASSERT_EQ(::seteuid(root ? 0 : ::geteuid()), 0);
  EXPECT_THAT(message, HasSubstr("secret: cannot be read: Permission denied"));
  EXPECT_THAT(folder, HasSubstr(in_.path().string() + ": cannot be read: Permission denied"));
  EXPECT_THAT(out_.entries(), IsEmpty());
}

TEST_F(Prepare, FailureLeavesAnOldFileAlone) {
  write_bytes(in_ / "good", text("good", 2000));
  PrepareOptions options{.paths = {in_ / "good"}, .output = out_ / "tokens.bin"};
  prepare(options);
  const std::string old = read_bytes(out_ / "tokens.bin");
  const auto stop = [](const PrepareProgress&) { throw Error(ErrorKind::stopped, "enough"); };
  options.seed = 2;
  EXPECT_THAT(message_of(ErrorKind::usage, [&] { prepare(options); }), HasSubstr("tokens.bin: exists; --overwrite replaces"));
  options.overwrite = true;
  message_of(ErrorKind::stopped, [&] { prepare(options, stop); });
  EXPECT_THAT(out_.entries(), ElementsAre("tokens.bin"));
  EXPECT_EQ(read_bytes(out_ / "tokens.bin"), old);
  prepare(options);
  EXPECT_EQ(result().info().seed, 2);
}

TEST_F(Prepare, WhatIsNoTokenFileIsNeverReplaced) {
  write_bytes(in_ / "good", text("good", 2000));
  for (const fs::path& output : {in_ / "good", fs::path("/dev/null")}) {
    EXPECT_THAT(message_of(ErrorKind::usage, [&] { prepare({.paths = {in_ / "good"}, .output = output, .overwrite = true}); }),
                HasSubstr(output.string() + ": exists and is not a token file"));
  }
  EXPECT_EQ(read_bytes(in_ / "good"), text("good", 2000));
}

TEST_F(Prepare, ProgressEndsAtTheTotal) {
  write_bytes(in_ / "good", text("good", 2000));
  PrepareProgress last;
  prepare({.paths = {in_ / "good"}, .output = out_ / "tokens.bin"}, [&](const PrepareProgress& now) {
    EXPECT_GT(now.bytes_done, last.bytes_done);
    last = now;
  });
  EXPECT_EQ(last.bytes_done, std::ssize(text("good", 2000)));
  EXPECT_EQ(last.bytes_total, last.bytes_done);
  EXPECT_EQ(last.text_bytes, last.bytes_done);
}

TEST_F(Prepare, SyntheticLanguageNeedsNoText) {
  const auto summary = run({.seed = 9, .synthetic_bytes = 1 << 20});
  EXPECT_EQ(summary.files, 0);
  EXPECT_EQ(result().info().source, "synthetic language, seed 9");
  const auto tokens = result().info().train_tokens + result().info().validation_tokens;
  EXPECT_GE(tokens, 1 << 20);
  EXPECT_LT(tokens, (1 << 20) + 8192);
  EXPECT_NEAR(static_cast<double>(result().info().validation_tokens) / static_cast<double>(tokens), 0.05, 0.01);
  EXPECT_THAT(message_of(ErrorKind::input, [&] { run({.validation_fraction = 0.001, .synthetic_bytes = 1 << 20}); }),
              HasSubstr("too little text"));
}

TEST_F(Prepare, OptionsHaveLimits) {
  EXPECT_THAT(message_of(ErrorKind::usage, [&] { run({.validation_fraction = 0.6}); }), HasSubstr("validation fraction"));
  EXPECT_THAT(message_of(ErrorKind::usage, [&] { run({.validation_fraction = 0.0}); }), HasSubstr("validation fraction"));
  EXPECT_THAT(message_of(ErrorKind::usage, [&] { run({.synthetic_bytes = 1000}); }), HasSubstr("1 MiB"));
}

// The same sixty texts as files, as lines of JSON and packed: the same tokens.
class Forms : public Prepare {
 protected:
  Forms() {
    for (int i = 0; i < 60; ++i) texts_.push_back(text("file " + std::to_string(i), 15 + i % 5));
  }
  std::string json_lines() const {
    std::string lines;
    for (const std::string& text : texts_) {
      lines += "{\"id\": 1, \"text\": \"";
      for (const char c : text) lines += c == '\n' ? std::string("\\n") : std::string(1, c);
      lines += "\"}\n";
    }
    return lines;
  }
  // The checksum of the tokens that these options give.
  std::string tokens(PrepareOptions options) {
    fs::remove_all(out_ / "tokens.bin");
    run(std::move(options));
    return result().info().checksum;
  }
  std::string model() {
    write_bytes(in_ / "m.model", testing::small_model());
    return (in_ / "m.model").string();
  }
  std::vector<std::string> texts_;
};

TEST_F(Forms, HoldTheSameTokens) {
  fs::create_directories(in_ / "plain");
  fs::create_directories(in_ / "packed");
  for (int i = 0; i < 60; ++i) {
    const std::string number = std::to_string(100 + i);
    write_bytes(in_ / ("plain/" + number), texts_[static_cast<std::size_t>(i)]);
    write_bytes(in_ / ("packed/" + number), (i % 2 == 0 ? testing::gzip : testing::zstd)(texts_[static_cast<std::size_t>(i)]));
  }
  write_bytes(in_ / "a.jsonl", json_lines());
  write_bytes(in_ / "b.jsonl.gz", testing::gzip(json_lines()));
  write_bytes(in_ / "c.jsonl.zst", testing::zstd(json_lines()));
  for (const std::string& tokenizer : {std::string("bytes"), model()}) {
    const auto expected = tokens({.paths = {in_ / "plain"}, .tokenizer = tokenizer});
    EXPECT_EQ(result().info().train_documents + result().info().validation_documents, 60);
    EXPECT_EQ(tokens({.paths = {in_ / "packed"}, .tokenizer = tokenizer}), expected);
    for (const char* name : {"a.jsonl", "b.jsonl.gz", "c.jsonl.zst"}) {
      EXPECT_EQ(tokens({.paths = {in_ / name}, .tokenizer = tokenizer}), expected) << name;
    }
  }
}

TEST_F(Forms, PackedTextIsCutLikePlainText) {
  const std::string long_text = text("x", 40000);
  write_bytes(in_ / "a.txt", long_text);
  write_bytes(in_ / "b.txt.gz", testing::gzip(long_text));
  write_bytes(in_ / "c.txt.zst", testing::zstd(long_text));
  const auto expected = tokens({.paths = {in_ / "a.txt"}});
  EXPECT_EQ(tokens({.paths = {in_ / "b.txt.gz"}}), expected);
  EXPECT_EQ(tokens({.paths = {in_ / "c.txt.zst"}}), expected);
}

TEST_F(Forms, SentencePieceTokensReadAsTheText) {
  write_bytes(in_ / "a.jsonl", json_lines());
  run({.paths = {in_ / "a.jsonl"}, .tokenizer = "sentencepiece:" + model()});
  const TokenFile file = result();
  EXPECT_EQ(file.info().vocabulary, 300);
  EXPECT_EQ(file.info().token_bytes, 2);
  EXPECT_EQ(file.info().end_token, 2);
  EXPECT_EQ(file.tokenizer_model(), testing::small_model());
  const Tokenizer tokenizer(file);
  std::vector<std::string> found;
  for (const auto split : {Split::train, Split::validation}) {
    std::int64_t begin = 0;
    for (const auto end : file.document_ends(split)) {
      std::vector<std::int32_t> ids(static_cast<std::size_t>(end - begin));
      file.tokens(split).read(begin, ids);
      EXPECT_EQ(ids.back(), 2);
      EXPECT_EQ(std::count(ids.begin(), ids.end(), 2), 1);
      found.push_back(tokenizer.decode(ids));
      begin = end;
    }
  }
  std::sort(found.begin(), found.end());
  std::sort(texts_.begin(), texts_.end());
  EXPECT_EQ(found, texts_);
}

TEST_F(Forms, TheNumberOfThreadsChangesNoByte) {
  std::string lines;
  for (int i = 0; i < 40; ++i) lines += json_lines();  // several batches
  write_bytes(in_ / "a.jsonl", lines);
  write_bytes(in_ / "b.txt", text("b", 40000));
  const PrepareOptions options{.paths = {in_ / "a.jsonl", in_ / "b.txt"}, .tokenizer = model()};
  const auto bytes_with = [&](int threads) {
    auto with = options;
    with.threads = threads;
    run(with);
    return read_bytes(out_ / "tokens.bin");
  };
  const std::string one = bytes_with(1);
  EXPECT_TRUE(bytes_with(4) == one);
  EXPECT_TRUE(bytes_with(3) == one);
}

TEST_F(Forms, ShardsHoldTheSameStream) {
  write_bytes(in_ / "a.jsonl", json_lines());
  const PrepareOptions whole{.paths = {in_ / "a.jsonl"}, .output = out_ / "one", .tokenizer = model()};
  prepare(whole);
  auto sharded = whole;
  sharded.output = out_ / "set/";
  sharded.shard_tokens = 2000;
  const auto summary = prepare(sharded);
  EXPECT_GE(summary.info.files, 4);
  for (const auto& entry : fs::directory_iterator(out_ / "set")) {
    if (entry.path().extension() == ".bin") {
      EXPECT_LE(TokenArray::open(entry.path())->tokens, 2000);
    }
  }
  const TokenFile one = TokenFile::open(out_ / "one");
  const TokenFile set = TokenFile::open(out_ / "set");
  EXPECT_EQ(set.info().checksum, one.info().checksum);
  EXPECT_EQ(set.info().unigram_entropy, one.info().unigram_entropy);
  EXPECT_EQ(set.info().seed, one.info().seed);
  EXPECT_EQ(set.info().source, one.info().source);
  EXPECT_EQ(set.tokenizer_model(), one.tokenizer_model());
  for (const auto split : {Split::train, Split::validation}) {
    EXPECT_EQ(set.document_ends(split), one.document_ends(split));
    const TokenStreamOptions order{.sequence_length = 15, .global_batch = 4, .seed = 3};
    const TokenStream expected(one, split, order, 0, 1), found(set, split, order, 0, 1);
    EXPECT_EQ(found.steps_per_epoch(), expected.steps_per_epoch());
    for (std::int64_t step = 0; step < 2 * expected.steps_per_epoch(); ++step) EXPECT_EQ(found.hash(step), expected.hash(step));
  }
  EXPECT_THAT(message_of(ErrorKind::input, [&] { prepare(sharded); }), HasSubstr("set: exists already"));
}

TEST_F(Forms, DamagedShardIsNamed) {
  write_bytes(in_ / "a.jsonl", json_lines());
  prepare({.paths = {in_ / "a.jsonl"}, .output = out_ / "set", .shard_tokens = 9000});
  const auto refused_after = [&](const std::function<void(std::string&)>& change) {
    const auto path = out_ / "set/tokens-00001.bin";
    const std::string good = read_bytes(path);
    std::string bytes = good;
    change(bytes);
    write_bytes(path, bytes);
    const auto message = message_of(ErrorKind::input, [&] { (void)TokenFile::open(out_ / "set"); });
    write_bytes(path, good);
    return message;
  };
  EXPECT_THAT(refused_after([](auto& bytes) { bytes[300] ^= 1; }), HasSubstr("tokens-00001.bin: bytes 256 to "));
  EXPECT_THAT(refused_after([](auto& bytes) { bytes.pop_back(); }), HasSubstr("tokens-00001.bin: truncated at byte "));
  const std::string other = read_bytes(out_ / "set/tokens-00000.bin");
  EXPECT_THAT(refused_after([&](auto& bytes) { bytes = other; }), HasSubstr("tokens.toml: line "));
  fs::remove(out_ / "set/tokens-00001.bin");
  EXPECT_THAT(message_of(ErrorKind::input, [&] { (void)TokenFile::open(out_ / "set"); }), HasSubstr("tokens-00001.bin: cannot be"));
}

TEST_F(Forms, DamagedInputLeavesNothing) {
  write_bytes(in_ / "a.jsonl", json_lines() + "{\"text\": \n");
  write_bytes(in_ / "b.jsonl.gz", testing::gzip(json_lines()).substr(0, 500));
  write_bytes(in_ / "few.jsonl", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n");
  for (const std::int64_t shard : {0, 1000}) {
    const auto message = [&](const std::string& name) {
      return message_of(ErrorKind::input, [&] { run({.paths = {in_ / name}, .shard_tokens = shard}); });
    };
    EXPECT_THAT(message("a.jsonl"), HasSubstr("a.jsonl: line 61: damaged JSON"));
    EXPECT_THAT(message("b.jsonl.gz"), HasSubstr("b.jsonl.gz: truncated at byte 500: the gzip data go on"));
    EXPECT_THAT(message("few.jsonl"), HasSubstr("few.jsonl: 2 documents are too few to split, 20 needed"));
    EXPECT_THAT(out_.entries(), IsEmpty());
  }
  EXPECT_THAT(message_of(ErrorKind::input, [&] { run({.paths = {in_ / "a.jsonl"}, .field = "body"}); }),
              HasSubstr("a.jsonl: line 1: no field 'body'"));
  write_bytes(in_ / "plain", text("plain", 2000));
  EXPECT_THAT(message_of(ErrorKind::usage, [&] { run({.paths = {in_ / "plain"}, .field = "text"}); }),
              HasSubstr("no file holds lines"));
}

// The limit on the size of a file stands for a disk that is full.
TEST_F(Forms, FullDiskLeavesNothing) {
  write_bytes(in_ / "a.txt", text("a", 40000));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 100000, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  std::vector<std::string> messages;
  for (const std::int64_t shard : {0, 300000}) {
    messages.push_back(message_of(ErrorKind::input, [&] { run({.paths = {in_ / "a.txt"}, .shard_tokens = shard}); }));
  }
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(messages, ::testing::Each(HasSubstr("cannot be written: File too large")));
  EXPECT_THAT(out_.entries(), IsEmpty());
}

TEST_F(Forms, KilledProcessLeavesNothingWithTheFinalName) {
  write_bytes(in_ / "a.txt", text("a", 200000));
  for (const std::int64_t shard : {0, 100000}) {
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        prepare({.paths = {in_ / "a.txt"}, .output = out_ / "tokens.bin", .shard_tokens = shard},
                [](const PrepareProgress& now) { now.bytes_done > now.bytes_total / 2 ? ::raise(SIGKILL) : 0; });
      } catch (...) {
      }
      ::_exit(1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    EXPECT_FALSE(fs::exists(out_ / "tokens.bin"));
  }
}

TEST_F(Prepare, DefaultTextIsTheManualWithoutItsTables) {
  EXPECT_FALSE(find_default_text(in_.path()).has_value());
  EXPECT_FALSE(find_default_text(in_ / "missing").has_value());
  const auto pods = in_ / "5.99.0/pod";
  fs::create_directories(pods);
  fs::create_directories(in_ / "5.99.1/pod");  // newer, but holds too little
  write_bytes(in_ / "5.99.1/pod/perldiag.pod", text("diag", 100));
  for (const std::string name : {"perlfunc.pod", "perlop.pod", "perl5360delta.pod", "perltoc.pod", "perljp.pod", "README"}) {
    write_bytes(pods / name, text(name, 60000));
  }
  const auto found = find_default_text(in_.path());
  ASSERT_TRUE(found.has_value());
  EXPECT_THAT(found->paths, ElementsAre(pods / "perlfunc.pod", pods / "perlop.pod"));
  EXPECT_EQ(found->description, "manual of Perl 5.99.0 (Debian package perl-doc), 2 files");
}

}  // namespace
}  // namespace scape
