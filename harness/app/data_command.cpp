// scape data prepare: text to tokens.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <memory>

#include "commands.hpp"
#include "data/prepare.hpp"

namespace scape {

namespace {

int prepare_and_tell(PrepareOptions options, bool synthetic) {
  if (options.paths.empty() && !synthetic) {
    if (const auto text = find_default_text()) {
      options.paths = text->paths;
      options.description = text->description;
      fmt::print("no text named: using {}\n", text->description);
    } else {
      fmt::print("no text named and no perl-doc package here: using the built-in synthetic language\n");
    }
  }
  const bool terminal = isatty(STDERR_FILENO) == 1;
  const PrepareSummary summary = prepare(options, [&](const PrepareProgress& progress) {
    if (terminal && progress.bytes_total > 0) {
      fmt::print(stderr, "\r{:3d}% of {} bytes", 100 * progress.bytes_done / progress.bytes_total, progress.bytes_total);
    }
  });
  if (terminal) fmt::print(stderr, "\r\x1b[2K");
  const TokenFileInfo& info = summary.info;
  fmt::print("{}: {} training and {} validation tokens in {} documents, vocabulary {}, unigram entropy {:.3f} nat/token\n",
             options.output.string(), info.train_tokens, info.validation_tokens, info.train_documents + info.validation_documents,
             info.vocabulary, info.unigram_entropy);
  fmt::print("source: {}{}\n", info.source,
             summary.skipped_files > 0 ? fmt::format(" ({} empty or binary files skipped)", summary.skipped_files) : "");
  return 0;
}

}  // namespace

void add_data_command(CLI::App& app, Action& action) {
  struct Arguments {
    PrepareOptions options;
    bool synthetic = false;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* data = app.add_subcommand("data", "prepare token files");
  data->require_subcommand(1);
  CLI::App* command = data->add_subcommand("prepare", "make a token file from text files and folders (tokens are bytes)");
  command->add_option(
      "paths", arguments->options.paths,
      "text files and folders; none: the manual of Perl if the package perl-doc is here, else a synthetic language");
  command->add_option("--out", arguments->options.output, "token file to write")->required();
  command->add_option("--validation", arguments->options.validation_fraction, "fraction of the documents kept for validation")
      ->capture_default_str();
  command->add_option("--seed", arguments->options.seed, "seed of the split and of the synthetic language")->capture_default_str();
  command->add_flag("--synthetic", arguments->synthetic, "use the built-in synthetic language");
  command->callback(
      [arguments, &action] { action = [arguments] { return prepare_and_tell(arguments->options, arguments->synthetic); }; });
}

}  // namespace scape
