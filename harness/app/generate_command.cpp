// scape generate: text that a trained model writes.
#include <cstdio>
#include <memory>

#include "commands.hpp"
#include "evaluate/generate.hpp"
#include "exchange/saved_model.hpp"
#include "scape/error.hpp"

namespace scape {

namespace {

struct Arguments {
  std::string checkpoint, prompt, data, tokenizer;
  SamplingOptions sampling;
};

int run_generate(const Arguments& arguments) {
  validate(arguments.sampling);
  const SavedModel saved = SavedModel::open(arguments.checkpoint);
  const Tokenizer tokenizer = saved.tokenizer(arguments.tokenizer, arguments.data);
  std::vector<std::int32_t> text = tokenizer.encode(arguments.prompt);
  if (text.empty() && tokenizer.end_token() >= 0) text.push_back(tokenizer.end_token());  // where a document begins
  require(!text.empty(), ErrorKind::usage, "give a --prompt: this tokenizer has no token to begin a document with");
  const auto written = generate(*saved.load(), text, tokenizer.end_token(), arguments.sampling);
  text.insert(text.end(), written.begin(), written.end());
  const std::string all = tokenizer.decode(text) + "\n";
  std::fwrite(all.data(), 1, all.size(), stdout);
  return 0;
}

}  // namespace

void add_generate_command(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<Arguments>();
  SamplingOptions& sampling = arguments->sampling;
  CLI::App* command = app.add_subcommand("generate", "text that a trained model writes");
  command->add_option("checkpoint", arguments->checkpoint, "checkpoint, or folder of them: the last one")->required();
  command->add_option("--prompt", arguments->prompt, "text to go on with");
  command->add_option("--tokens", sampling.tokens, "how many tokens to write")->capture_default_str();
  command
      ->add_option("--temperature", sampling.temperature, "0: always the most likely token; above 1: flatter than the model says")
      ->capture_default_str();
  command->add_option("--top-k", sampling.top_k, "draw among so many of the most likely tokens; 0: all")->capture_default_str();
  command->add_option("--seed", sampling.seed, "the same seed writes the same text")->capture_default_str();
  command->add_option("--data", arguments->data, "tokens that say the tokenizer (default: the run's)");
  command->add_option("--tokenizer", arguments->tokenizer, "bytes, or a SentencePiece model (default: what made the data)");
  command->callback([arguments, &action] { action = [arguments] { return run_generate(*arguments); }; });
}

}  // namespace scape
