// Resolving settings into a run.
#include "train/run_config.hpp"

#include <algorithm>
#include <array>

#include "scape/error.hpp"

namespace scape {

namespace {

// "scape" and "optimizer", for example, if another method than the chosen one has the option `name`.
template <class Base>
std::string owner(const MethodList<Base>& methods, const char* selector, const std::string& name) {
  for (const Method<Base>& method : methods.all()) {
    OptionTable table;
    const auto recipe = method.recipe();
    recipe->declare(table);
    if (table.contains(name)) return std::string(selector) + "=" + method.name;
  }
  return "";
}

std::string last_value(std::span<const Setting> settings, std::string_view name, std::string value) {
  for (const Setting& setting : settings) {
    if (setting.name == name) value = setting.text;
  }
  return value;
}

}  // namespace

void TrainOptions::declare(OptionTable& table) {
  table.add("data", data, "tokens: a file or folder of `scape data prepare`, of llm.c, or a description of `scape data describe`");
  table.add("model", model, "model preset");
  table.add("optimizer", optimizer, "method: a complete optimizer or an update rule");
  table.add("sync", sync, "gradient synchronisation for an update rule");
  table.add("device", device, "where to compute: cpu | cuda");
  table.add("communicator", communicator,
            "auto | self | mpi | nccl; for MPI on GPU memory also staged (copies in host memory) | cuda_aware; mpi finds out");
  table.add("communication_stream", communication_stream,
            "collectives on a stream of their own, so that they can overlap with computing");
  table.add("threads", threads, "threads of a rank; 0: OMP_NUM_THREADS, else the node's processors shared by its ranks",
            {.min = 0, .max = 1024});
  table.add("steps", steps, "training steps", {.min = 1});
  table.add("global_batch", global_batch, "sequences per step over all ranks", {.min = 1});
  table.add("micro_batch", micro_batch, "sequences per forward pass on a rank; 0: all at once", {.min = 0});
  table.add("sequence_length", sequence_length, "tokens per sequence; 0: the model's context", {.min = 0});
  schedule.declare(table);
  table.add("validate_every", validate_every, "steps between evaluations", {.min = 1});
  table.add("validation_batches", validation_batches, "most batches of global_batch sequences in an evaluation", {.min = 1});
  table.add("diagnostics_every", diagnostics_every,
            "steps between records of masks, residuals and gradients tensor by tensor; 0: none", {.min = 0});
  table.add("most_skipped_in_a_row", most_skipped_in_a_row, "end the run after so many refused steps in a row", {.min = 1});
  table.add("checkpoint_every", checkpoint_every, "steps between checkpoints; 0: only when the run ends or is stopped", {.min = 0});
  table.add("checkpoint_last", checkpoint_last, "a checkpoint after the last step, for `scape evaluate` and `scape export`");
  table.add("checkpoint_keep", checkpoint_keep, "so many of the newest checkpoints stay", {.min = 1});
  table.add("peak_teraflops", peak_teraflops,
            "what a rank's processor can do at most, 10^12 operations/s, for flops_utilisation; 0: not known", {.min = 0});
  table.add("max_minutes", max_minutes, "stop, with a checkpoint, after so much wall time; 0: no limit", {.min = 0});
  table.add("job_margin_seconds", job_margin_seconds,
            "stop, with a checkpoint, so long before the batch job's time limit, or a tenth of it if that is less; 0: never",
            {.min = 0});
  table.add("silence_seconds", watchdog.silence_seconds,
            "end the job when a rank gives no sign of life for so long; 0: no watchdog", {.min = 0});
  table.add("hang_minutes", watchdog.hang_minutes, "end the job when a collective takes so long; 0: never", {.min = 0});
  table.add("seed", seed, "data order, random numbers of the method, and initial parameters unless init_seed is given", {.min = 0});
}

bool TrainOptions::is_operational(std::string_view option) {
  constexpr std::array names{"data",           "device",      "communicator",       "communication_stream", "threads",
                             "micro_batch",    "recompute",   "validate_every",     "validation_batches",   "most_skipped_in_a_row",
                             "peak_teraflops", "max_minutes", "job_margin_seconds", "silence_seconds",      "hang_minutes"};
  return option.starts_with("checkpoint_") || std::ranges::find(names, option) != names.end();
}

TokenFile open_data(const TrainOptions& options) {
  require(!options.data.empty(), ErrorKind::usage,
          "no data: give --set data=PATH, tokens made by `scape data prepare` or known to `scape data inspect`");
  return TokenFile::open(options.data);
}

std::map<std::string, std::string> facts_of(const TokenFileInfo& data) {
  return {{"data_source", data.source},
          {"data_checksum", data.checksum},
          {"train_tokens", std::to_string(data.train_tokens)},
          {"validation_tokens", std::to_string(data.validation_tokens)}};
}

RunConfig::RunConfig(const Registry& registry, std::span<const Setting> settings) {
  train.model = last_value(settings, "model", train.model);
  train.optimizer = last_value(settings, "optimizer", train.optimizer);
  train.sync = last_value(settings, "sync", train.sync);
  model = model_config(train.model);
  method_ = std::make_unique<MethodChoice>(registry, train.optimizer, train.sync);

  train.declare(table_);
  model.declare(table_);
  method_->declare(table_);
  method_->declare(method_table_);
  bool init_seed_given = false;
  for (const Setting& setting : settings) {
    if (!table_.contains(setting.name)) {
      std::string method = owner(registry.optimizers, "optimizer", setting.name);
      if (method.empty()) method = owner(registry.syncs, "sync", setting.name);
      if (method.empty()) method = owner(registry.rules, "optimizer", setting.name);
      if (!method.empty()) {
        const std::string chosen = "optimizer=" + train.optimizer + (train.sync.empty() ? "" : " sync=" + train.sync);
        throw Error(ErrorKind::usage, setting.origin + ": '" + setting.name + "' is an option of " + method + ", not of " + chosen);
      }
    }
    table_.set(setting);
    if (method_table_.contains(setting.name)) method_table_.set(setting);
    init_seed_given = init_seed_given || setting.name == "init_seed";
    vocab_given = vocab_given || setting.name == "vocab";
  }
  if (!init_seed_given) model.init_seed = train.seed;
  model.validate();
  if (train.sequence_length == 0) train.sequence_length = model.context;
  if (train.sequence_length > model.context) {
    throw Error(ErrorKind::usage, "sequence_length=" + std::to_string(train.sequence_length) +
                                      " exceeds the model's context=" + std::to_string(model.context));
  }
  require(train.device == "cpu" || train.device == "cuda", ErrorKind::usage, "option 'device' takes cpu or cuda");
}

std::map<std::string, std::string> RunConfig::texts() const {
  std::map<std::string, std::string> texts;
  for (const OptionTable::Option& option : table_.options()) texts[option.name] = to_string(option.value());
  return texts;
}

namespace {

using Texts = std::map<std::string, std::string>;

// "a=1 there, 2 here" for each name for which matters(name) and the texts differ.
template <class Matters>
std::string tell_differences(const Texts& saved, const Texts& mine, Matters matters) {
  std::string text;
  const auto tell = [&](const std::string& name, const std::string& there, const std::string& here) {
    if (there != here && matters(name)) text += (text.empty() ? "" : ", ") + name + "=" + there + " there, " + here + " here";
  };
  for (const auto& [name, here] : mine) tell(name, saved.contains(name) ? saved.at(name) : "unknown", here);
  for (const auto& [name, there] : saved) {
    if (!mine.contains(name)) tell(name, there, "unknown");
  }
  return text;
}

}  // namespace

std::string RunConfig::differences(const Texts& saved) const {
  return tell_differences(saved, texts(), [](const std::string& name) { return !TrainOptions::is_operational(name); });
}

std::string RunConfig::differences_from_run_file(const Texts& attributes, const TokenFileInfo& data, bool complete) const {
  Texts mine = texts();
  if (!vocab_given) mine["vocab"] = std::to_string(data.vocabulary);
  mine.merge(facts_of(data));
  Texts saved = attributes;
  std::erase_if(saved, [&](const auto& attribute) { return !mine.contains(attribute.first); });
  return tell_differences(saved, mine, [&](const std::string& name) {
    return !TrainOptions::is_operational(name) || (complete && (name == "validate_every" || name == "validation_batches"));
  });
}

std::string RunConfig::label() const {
  std::string text = train.optimizer + (train.sync.empty() ? "" : "+" + train.sync);
  for (const OptionTable::Option& option : method_table_.options()) {
    if (option.given) text += " " + option.name + "=" + to_string(option.value());
  }
  return text;
}

}  // namespace scape
