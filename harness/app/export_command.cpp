// scape export, scape import: models to and from the files of other programs.
#include <fmt/format.h>

#include <memory>
#include <optional>

#include "commands.hpp"
#include "exchange/hugging_face.hpp"
#include "scape/error.hpp"

namespace scape {

namespace {

struct ExportArguments {
  std::string checkpoint, format = "hf", out, data, tokenizer;
};

int run_export(const ExportArguments& arguments) {
  const SavedModel saved = SavedModel::open(arguments.checkpoint);
  std::optional<Tokenizer> tokenizer;
  try {
    tokenizer = saved.tokenizer(arguments.tokenizer, arguments.data);
  } catch (const Error& error) {  // the weights are complete without it
    if (!arguments.tokenizer.empty() || !arguments.data.empty()) throw;
    fmt::print(stderr, "scape export: no tokenizer is written: {}\n", error.what());
  }
  export_hugging_face(saved, tokenizer ? &*tokenizer : nullptr, arguments.out);
  fmt::print("{}: {} parameters of step {}, for {}\n", arguments.out, parameter_layout(saved.config).size(),
             saved.checkpoint.info().step, saved.config.positions == Positions::rotary ? "LlamaForCausalLM" : "GPT2LMHeadModel");
  return 0;
}

}  // namespace

void add_exchange_commands(CLI::App& app, Action& action) {
  const auto out = std::make_shared<ExportArguments>();
  CLI::App* command = app.add_subcommand("export", "a trained model as a folder that other programs load");
  command->add_option("checkpoint", out->checkpoint, "checkpoint, or folder of them: the last one")->required();
  command->add_option("--format", out->format, "hf: model.safetensors and config.json of Hugging Face's transformers")
      ->capture_default_str()
      ->check(CLI::IsMember({"hf"}));
  command->add_option("--out", out->out, "new folder")->required();
  command->add_option("--data", out->data, "tokens that say the tokenizer (default: the run's)");
  command->add_option("--tokenizer", out->tokenizer, "bytes, or a SentencePiece model (default: what made the data)");
  command->callback([out, &action] { action = [out] { return run_export(*out); }; });

  const auto in = std::make_shared<ExportArguments>();
  command = app.add_subcommand("import", "a GPT-2 or Llama of Hugging Face's transformers as a checkpoint of step 0");
  command->add_option("folder", in->checkpoint, "folder with config.json and .safetensors files")->required();
  command->add_option("--out", in->out, "folder for the checkpoint")->required();
  command->callback([in, &action] {
    action = [in] {
      import_hugging_face(in->checkpoint, in->out);
      const SavedModel saved = SavedModel::open(in->out);
      fmt::print("{}: {} parameters\n", saved.checkpoint.folder().string(), parameter_layout(saved.config).size());
      return 0;
    };
  });
}

}  // namespace scape
