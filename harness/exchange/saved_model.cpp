#include "exchange/saved_model.hpp"

#include <fmt/format.h>

#include <charconv>

#include "checkpoint/checkpoint_writer.hpp"
#include "io/file.hpp"
#include "scape/error.hpp"

namespace scape {

namespace {

ModelConfig config_of(const Checkpoint& checkpoint) {
  ModelConfig config;
  OptionTable table;
  config.declare(table);
  const Texts& saved = checkpoint.info().options;
  const std::string origin = checkpoint.folder().string();
  try {
    for (const std::string name : {"vocab", "context", "layers", "width"}) {
      if (!saved.contains(name)) fail(checkpoint.folder(), "does not say the model's '{}'", name);
    }
    for (const OptionTable::Option& option : std::vector(table.options())) {  // one that is missing is younger than the checkpoint
      if (const auto found = saved.find(option.name); found != saved.end()) table.set({option.name, found->second, origin});
    }
    config.validate();
  } catch (const Error& error) {
    throw Error(ErrorKind::input, error.what());
  }
  return config;
}

void expect_vocabulary(const ModelConfig& config, std::int64_t vocabulary, const std::string& what) {
  if (vocabulary <= config.vocab) return;
  throw Error(ErrorKind::input,
              fmt::format("{}: token ids reach {}, but the model's vocab is {}", what, vocabulary - 1, config.vocab));
}

}  // namespace

SavedModel SavedModel::open(const std::filesystem::path& path) {
  Checkpoint checkpoint = Checkpoint::open(path);
  checkpoint.verify(0, 1);
  const ModelConfig config = config_of(checkpoint);
  return {std::move(checkpoint), config};
}

std::string SavedModel::option(const std::string& name) const {
  const auto found = checkpoint.info().options.find(name);
  return found == checkpoint.info().options.end() ? "" : found->second;
}

std::int64_t SavedModel::number(const std::string& name, std::int64_t otherwise) const {
  const std::string text = option(name);
  if (text.empty()) return otherwise;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) fail(checkpoint.folder(), "option '{}' is '{}'", name, text);
  return value;
}

std::vector<float> SavedModel::params() const {
  std::vector<float> params(static_cast<std::size_t>(parameter_layout(config).size()));
  checkpoint.read(state_entry("params", StateScope::replicated, Span<float>(std::span(params))));
  return params;
}

std::unique_ptr<Model> SavedModel::load() const {
  std::unique_ptr<Model> model = make_model(config);
  checkpoint.read(state_entry("params", StateScope::replicated, model->params()));
  return model;
}

TokenFile SavedModel::tokens(const std::string& data) const {
  const std::string path = data.empty() ? option("data") : data;
  require(!path.empty(), ErrorKind::usage, "the checkpoint names no tokens: give --data PATH, or --tokenizer where text is enough");
  try {
    TokenFile file = TokenFile::open(path);
    expect_vocabulary(config, file.info().vocabulary, path);
    const auto known = checkpoint.info().facts.find("data_checksum");  // empty, here or there: not known
    if (data.empty() && known != checkpoint.info().facts.end() && !known->second.empty() && !file.info().checksum.empty() &&
        known->second != file.info().checksum) {
      fail(path, "holds other tokens than the run trained on");
    }
    return file;
  } catch (const Error& error) {
    if (!data.empty()) throw;
    throw Error(error.kind(), fmt::format("{} (--data names the tokens instead of the run's options)", error.what()));
  }
}

Tokenizer SavedModel::tokenizer(const std::string& name, const std::string& data) const {
  const std::filesystem::path own = checkpoint.folder() / tokenizer_file;
  const bool here = name.empty() && std::filesystem::exists(own);
  const Tokenizer tokenizer = here ? Tokenizer(own.string()) : name.empty() ? Tokenizer(tokens(data)) : Tokenizer(name);
  expect_vocabulary(config, tokenizer.vocabulary(), tokenizer.description());
  return tokenizer;
}

std::filesystem::path save_model(const ModelConfig& config, std::span<float> params, const Texts& facts,
                                 const std::filesystem::path& out) {
  if (!checkpoints_in(out).empty()) throw Error(ErrorKind::usage, out.string() + ": holds checkpoints");
  CheckpointInfo info{.options = {}, .facts = facts};
  ModelConfig copy = config;
  OptionTable table;
  copy.declare(table);
  for (const OptionTable::Option& option : table.options()) info.options[option.name] = to_string(option.value());
  CheckpointWriter writer(out, 1, info, 0);
  const std::vector<StateEntry> state{state_entry("params", StateScope::replicated, Span<float>(params))};
  writer.prepare(writer.part_bytes(state));
  writer.begin(0, state, Stream());
  const std::vector<CheckpointWriter::Part> parts{writer.part(true)};
  const CheckpointWriter::Outcome outcome = writer.finish(parts);
  if (!outcome.error.empty()) throw Error(ErrorKind::input, outcome.error);
  return outcome.path;
}

}  // namespace scape
