// scape data: text to tokens, and what token files of any format hold.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <memory>

#include "commands.hpp"
#include "data/prepare.hpp"
#include "data/token_set.hpp"
#include "data/tokenizer.hpp"
#include "progress_bar.hpp"
#include "scape/error.hpp"

namespace scape {

namespace {

int prepare_and_tell(PrepareOptions options, bool synthetic) {
  require(options.paths.empty() || !synthetic, ErrorKind::usage, "--synthetic takes no text files");
  if (options.paths.empty() && !synthetic) {
    if (const auto text = find_default_text()) {
      options.paths = text->paths;
      options.description = text->description;
      fmt::print("no text named: using {}\n", text->description);
    } else {
      fmt::print("no text named and no perl-doc package here: using the built-in synthetic language\n");
    }
  }
  const PrepareSummary summary = [&] {
    ProgressBar bar;
    return prepare(options, [&](const PrepareProgress& progress) {
      bar.show(progress.bytes_done, progress.bytes_total, progress.text_bytes);
    });
  }();
  const TokenFileInfo& info = summary.info;
  fmt::print("{}: {} training and {} validation tokens in {} documents, vocabulary {}, unigram entropy {:.3f} nat/token\n",
             options.output.string(), info.train_tokens, info.validation_tokens, info.train_documents + info.validation_documents,
             info.vocabulary, info.unigram_entropy);
  if (info.files > 1) fmt::print("shards: {}\n", info.files);
  fmt::print("source: {}\n", info.source);
  if (summary.skipped_files > 0) fmt::print("skipped: {} empty or binary files\n", summary.skipped_files);
  if (summary.empty_documents > 0) fmt::print("skipped: {} documents without text\n", summary.empty_documents);
  return 0;
}

void print_info(const TokenFile& file) {
  const TokenFileInfo& info = file.info();
  const auto line = [](const char* key, const std::string& value) { fmt::print("{:14}{}\n", key, value); };
  const auto split = [&](std::int64_t tokens, std::int64_t documents) {
    return fmt::format("{} tokens, {}", tokens, documents > 0 ? fmt::format("{} documents", documents) : "document ends not known");
  };
  line("path", file.path().string());
  line("format", fmt::format("{}, {} bytes a token", info.format, info.token_bytes));
  line("files", fmt::format("{} with {} bytes", info.files, info.bytes));
  line("train", split(info.train_tokens, info.train_documents));
  line("validation", split(info.validation_tokens, info.validation_documents));
  line("vocabulary", std::to_string(info.vocabulary));
  line("tokenizer", info.tokenizer == TokenizerKind::unknown ? "not known" : Tokenizer(file).description());
  line("entropy", std::isnan(info.unigram_entropy) ? "not known" : fmt::format("{:.6f} nat/token (unigram)", info.unigram_entropy));
  line("checksum", fmt::format("{}{}", info.checksum.empty() ? "not known" : info.checksum,
                               info.verified ? ", all tokens checked" : "; `scape data verify` reads and checks all tokens"));
  line("source", info.source.empty() ? "not known" : info.source);
}

int inspect(const std::string& path) {
  print_info(TokenFile::open(path));
  return 0;
}

int verify(const std::string& path) {
  TokenFile file = TokenFile::open(path);
  {
    ProgressBar bar;
    file.verify([&](std::int64_t done, std::int64_t total) { bar.show(done, total, done); });
  }
  print_info(file);
  return 0;
}

int describe(DescribeOptions options, const std::vector<std::string>& validation) {
  for (const std::string& value : validation) {
    char* end = nullptr;
    const double fraction = std::strtod(value.c_str(), &end);
    if (end == value.c_str() + value.size()) {
      require(validation.size() == 1, ErrorKind::usage, "--validation takes files or one fraction");
      require(fraction > 0, ErrorKind::usage, "the fraction for validation must be in (0, 0.5]");
      options.validation_fraction = fraction;
    } else {
      options.validation.emplace_back(value);
    }
  }
  const auto path = [&] {
    ProgressBar bar;
    return describe_tokens(options, [&](std::int64_t done, std::int64_t total) { bar.show(done, total, done); });
  }();
  print_info(TokenFile::open(path));
  return 0;
}

void add_prepare(CLI::App& data, Action& action) {
  struct Arguments {
    PrepareOptions options;
    bool synthetic = false;
  };
  auto arguments = std::make_shared<Arguments>();
  PrepareOptions& options = arguments->options;
  CLI::App* command = data.add_subcommand("prepare", "make tokens from text: files, folders, .jsonl, each also as .gz or .zst");
  command->add_option(
      "paths", options.paths,
      "text files and folders; none: the manual of Perl if the package perl-doc is here, else a synthetic language");
  command->add_option("--out", options.output, "token file to write; with --shard-tokens a new folder")->required();
  command->add_flag("--overwrite", options.overwrite, "replace an existing token file; any other file is refused");
  command->add_option("--tokenizer", options.tokenizer, "bytes, or a SentencePiece model")->capture_default_str();
  command->add_option("--field", options.field, "field of a line of .jsonl that has the text (default: text)");
  command->add_option("--shard-tokens", options.shard_tokens, "most tokens in a shard; 0: one file")->capture_default_str();
  command->add_option("--threads", options.threads, "threads that tokenise; 0: one per processor; the tokens are the same for any")
      ->capture_default_str();
  command->add_option("--validation", options.validation_fraction, "fraction of the documents kept for validation")
      ->capture_default_str();
  command->add_option("--seed", options.seed, "seed of the split and of the synthetic language")->capture_default_str();
  command->add_flag("--synthetic", arguments->synthetic, "use the built-in synthetic language");
  command->callback(
      [arguments, &action] { action = [arguments] { return prepare_and_tell(arguments->options, arguments->synthetic); }; });
}

void add_describe(CLI::App& data, Action& action) {
  struct Arguments {
    DescribeOptions options;
    std::vector<std::string> validation;
  };
  auto arguments = std::make_shared<Arguments>();
  DescribeOptions& options = arguments->options;
  CLI::App* command = data.add_subcommand(
      "describe",
      "check token files of nanoGPT, llm.c or Megatron and write down what they do not say, so that data= can name them");
  command->add_option("paths", options.paths, "token files (.bin, .idx) or folders with *train* and *val* files")->required();
  command->add_option("--out", options.output, "description to write (.toml); default: tokens.toml in the folder");
  command->add_option("--vocabulary", options.vocabulary, "number of ids, for formats that do not say it (GPT-2: 50257)");
  command->add_option("--validation", arguments->validation,
                      "validation tokens: a fraction, taken from the end of the training tokens, or files");
  command->add_option("--tokenizer", options.tokenizer, "what made the tokens: bytes, or a SentencePiece model");
  command->add_option("--end-token", options.end_token, "id behind every document");
  command->add_option("--source", options.source, "where the text comes from, for run files");
  command->callback([arguments, &action] { action = [arguments] { return describe(arguments->options, arguments->validation); }; });
}

void add_look(CLI::App& data, Action& action, const char* name, const char* help, int (*look)(const std::string&)) {
  auto path = std::make_shared<std::string>();
  CLI::App* command = data.add_subcommand(name, help);
  command->add_option("path", *path, "what data= may name: a token file, a folder, a description (.toml)")->required();
  command->callback([=, &action] { action = [=] { return look(*path); }; });
}

}  // namespace

void add_data_command(CLI::App& app, Action& action) {
  CLI::App* data = app.add_subcommand("data", "make tokens from text; describe, inspect and verify token files");
  data->require_subcommand(1);
  add_prepare(*data, action);
  add_describe(*data, action);
  add_look(*data, action, "inspect", "format, splits, vocabulary, tokenizer and checksum of tokens", inspect);
  add_look(*data, action, "verify", "read all tokens and check them", verify);
}

}  // namespace scape
