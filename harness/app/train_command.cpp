// scape train: one run, under an MPI launcher or alone.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>

#include "checkpoint/checkpoint_writer.hpp"
#include "commands.hpp"
#include "data/token_file.hpp"
#include "ops/threads.hpp"
#include "ranks.hpp"
#include "record/console_recorder.hpp"
#include "record/hdf5_recorder.hpp"
#include "scape/error.hpp"
#include "train/run_config.hpp"
#include "train/settings_file.hpp"
#include "train/stop.hpp"
#include "train/trainer.hpp"
#include "train/watchdog.hpp"

namespace scape {

namespace {

struct Arguments {
  std::string config;
  std::vector<std::string> settings;
  std::string out;
  std::string checkpoints;
  std::string init;
  std::string max_minutes;
  bool overwrite = false;
  bool resume = false;
  bool allow_changes = false;
  bool list = false;
  std::string command_line;
};

void list_options(const OptionTable& table) {
  for (const OptionTable::Option& option : table.options()) {
    fmt::print("      {:26} {} ({}; default {})\n", option.name, option.help, option.accepts, to_string(option.value()));
  }
}

template <class Base>
void list_methods(const char* heading, const MethodList<Base>& methods) {
  fmt::print("{}\n", heading);
  for (const Method<Base>& method : methods.all()) {
    fmt::print("  {:12} {} [{}]\n", method.name, method.summary, method.source);
    OptionTable table;
    const auto recipe = method.recipe();
    recipe->declare(table);
    list_options(table);
  }
}

int list_all() {
  const Registry registry = make_registry();
  list_methods("optimizer=  complete methods", registry.optimizers);
  list_methods("optimizer=  update rules, combined with a sync", registry.rules);
  list_methods("sync=       gradient synchronisation", registry.syncs);
  fmt::print("options of every run\n");
  TrainOptions train;
  CommonOptions common;
  OptionTable table;
  train.declare(table);
  common.declare(table);
  list_options(table);
  fmt::print("model=      ");
  for (const std::string& name : model_presets()) fmt::print("{} ", name);
  ModelConfig model = model_config(train.model);
  OptionTable settings;
  model.declare(settings);
  fmt::print("\noptions of every model, with the defaults of {}; init_seed's is the seed\n", train.model);
  list_options(settings);
  return 0;
}

// The run file without ".h5": what else it has behind a dot may tell one run from another, as 0.1 from 0.01.
std::filesystem::path run_name(const Arguments& arguments) {
  std::filesystem::path name = arguments.out;
  return name.extension() == ".h5" ? name.replace_extension() : name;
}

// The folder of a run's checkpoints: as given, or beside its run file; empty if it has neither.
std::filesystem::path checkpoint_folder(const Arguments& arguments) {
  if (!arguments.checkpoints.empty() || arguments.out.empty()) return arguments.checkpoints;
  return run_name(arguments) += ".ckpt";
}

std::vector<Setting> settings_of(const Arguments& arguments) {
  std::vector<Setting> settings;
  if (!arguments.config.empty()) settings = read_settings(arguments.config);
  for (Setting& setting : parse_settings(arguments.settings)) settings.push_back(std::move(setting));
  if (!arguments.max_minutes.empty()) settings.push_back({"max_minutes", arguments.max_minutes, "--max-minutes"});
  return settings;
}

// What there is to continue of the run file, which rank 0 alone may see.
struct FoundRunFile {
  std::int64_t last_step = 0;
  bool complete = false;
  bool of_this_run = false;     // complete, and only operational options differ
  std::string obstacle{};       // on rank 0: why it cannot be continued at all
  std::string other_options{};  // on rank 0

  static FoundRunFile find(const Arguments& arguments, int rank) {  // collective
    FoundRunFile found;
    if (arguments.resume && rank == 0 && !arguments.out.empty()) found.look(arguments);
    std::array<std::int64_t, 3> sent{found.last_step, found.complete ? 1 : 0, found.of_this_run ? 1 : 0};
    MPI_Bcast(sent.data(), static_cast<int>(sent.size()), MPI_INT64_T, 0, MPI_COMM_WORLD);
    found.last_step = sent[0];
    found.complete = sent[1] != 0;
    found.of_this_run = sent[2] != 0;
    return found;
  }

 private:
  void look(const Arguments& arguments) {
    std::error_code unreadable;
    last_step = -1;
    if (!std::filesystem::exists(arguments.out, unreadable)) {
      obstacle = arguments.out + " is missing";
      return;
    }
    try {
      const RunFileState state = read_run_file_state(arguments.out);
      last_step = state.last_step;
      complete = state.complete;
      if (complete) {
        const Registry registry = make_registry();
        const RunConfig config(registry, settings_of(arguments));
        other_options = config.differences_from_run_file(state.attributes, open_data(config.train).info(), true);
        of_this_run = other_options.empty();
      }
      obstacle = fmt::format("{} ends at step {}", arguments.out, last_step);
    } catch (const Error& error) {  // a wrong option is told when the run is built
      obstacle = error.what();
    }
  }
};

// All that a run needs. Building it can fail on one rank alone (a file that is missing on its node), so nothing in here is
// collective except at the places that say so.
struct Run {
  Registry registry = make_registry();
  std::optional<RunConfig> config;
  std::optional<TokenFile> tokens;
  std::optional<TokenStream> training, validation;
  std::unique_ptr<Model> model;
  std::optional<Checkpoint> checkpoint;  // to go on from
  std::string not_continued;             // why there is none although there are checkpoints
  std::optional<CheckpointWriter> checkpoints;
  std::unique_ptr<Recorder> recorder = std::make_unique<NullRecorder>();

  Run(const Arguments& arguments, const FoundRunFile& found, int rank, int ranks) {
    const TrainOptions& train = config.emplace(registry, settings_of(arguments)).train;
    tokens.emplace(open_data(train));
    const std::int64_t vocabulary = tokens->info().vocabulary;
    if (!config->vocab_given) config->model.vocab = vocabulary;
    if (config->model.vocab < vocabulary) {
      throw Error(ErrorKind::input, fmt::format("{}: token ids reach {}, but the model's vocab is {}", train.data, vocabulary - 1,
                                                config->model.vocab));
    }
    const TokenStreamOptions order{.sequence_length = train.sequence_length,
                                   .global_batch = train.global_batch,
                                   .seed = static_cast<std::uint64_t>(train.seed)};
    training.emplace(*tokens, Split::train, order, rank, ranks);
    validation.emplace(*tokens, Split::validation, order, rank, ranks);
    model = make_model(config->model, train.device == "cpu" ? cpu_device : Device{DeviceKind::cuda, 0});
    if (!checkpoint_folder(arguments).empty()) open_checkpoints(arguments, found, rank, ranks);
    if (!arguments.init.empty() && !checkpoint) initialise_from(arguments.init, rank, ranks);
  }

  void initialise_from(const std::string& path, int rank, int ranks) {
    const Checkpoint source = Checkpoint::open(path);
    source.verify(rank, ranks);
    ModelConfig mine = config->model;
    OptionTable table;
    mine.declare(table);
    for (const OptionTable::Option& option : table.options()) {
      const auto found = source.info().options.find(option.name);
      constexpr std::array how{"init_seed", "init_std", "compute", "recompute"};  // not which parameters there are
      const bool matters = std::ranges::find(how, option.name) == how.end();
      if (matters && (found == source.info().options.end() || found->second != to_string(option.value()))) {
        throw Error(ErrorKind::usage,
                    fmt::format("{}: its model has {}={}, this run {}", source.folder().string(), option.name,
                                found == source.info().options.end() ? "none" : found->second, to_string(option.value())));
      }
    }
    source.read(state_entry("params", StateScope::replicated, model->params()));
  }

  // The last checkpoint is damaged; the one before it may not be.
  [[noreturn]] static void tell_the_way_round(const std::filesystem::path& folder, const Error& error) {
    const auto there = checkpoints_in(folder);
    if (there.size() < 2) throw error;
    throw Error(error.kind(), fmt::format("{}; without {} the run goes on from step {}", error.what(),
                                          there.rbegin()->second.string(), std::next(there.rbegin())->first));
  }

  void open_checkpoints(const Arguments& arguments, const FoundRunFile& found, int rank, int ranks) {
    const std::filesystem::path folder = checkpoint_folder(arguments);
    const CheckpointInfo info{.ranks = ranks, .options = config->texts(), .facts = facts_of(tokens->info())};
    checkpoints.emplace(folder, config->train.checkpoint_keep, info, rank);
    if (rank == 0) checkpoints->lock();
    if (checkpoints_in(folder).empty()) return;
    if (!arguments.resume && !arguments.overwrite) {
      throw Error(ErrorKind::usage,
                  folder.string() + ": holds checkpoints of a run; give --resume to go on from the last, or --overwrite");
    }
    if (!arguments.resume) return;
    try {
      checkpoint.emplace(Checkpoint::open(folder));
    } catch (const Error& error) {
      tell_the_way_round(folder, error);
    }
    std::string obstacle;
    if (const std::string changed = config->differences(checkpoint->info().options); !changed.empty() && !arguments.allow_changes) {
      obstacle = "was written with other options: " + changed + " (--allow-changes goes on with them)";
    } else if (checkpoint->info().facts != info.facts && !arguments.allow_changes) {
      obstacle = "was written with other data (--allow-changes goes on with these)";
    } else if (checkpoint->info().step > config->train.steps) {
      obstacle = fmt::format("is of step {}, behind the last step {}", checkpoint->info().step, config->train.steps);
    }
    if (!arguments.out.empty() && found.last_step < checkpoint->info().step && obstacle.empty()) {
      obstacle = fmt::format("is of step {}, but {}", checkpoint->info().step, found.obstacle);
    }
    if (obstacle.empty()) {
      try {
        checkpoint->verify(rank, ranks);
      } catch (const Error& error) {
        tell_the_way_round(folder, error);
      }
    } else if (arguments.overwrite) {
      not_continued = checkpoint->folder().string() + " " + obstacle;
      checkpoint.reset();
    } else {
      throw Error(ErrorKind::usage, checkpoint->folder().string() + ": " + obstacle);
    }
  }

  [[nodiscard]] RunInfo info(const Arguments& arguments, const Communicator& communicator, bool oversubscribed) const {
    const TrainOptions& train = config->train;
    RunInfo info;
    info.name = run_name(arguments).filename().string();
    info.command_line = arguments.command_line;
    info.ranks = communicator.size();
    info.oversubscribed = oversubscribed;
    info.planned_steps = train.steps;
    info.tokens_per_step = train.global_batch * train.sequence_length;
    info.diagnostics_every = train.diagnostics_every;
    info.tensors = model->layout().tensors();
    for (const OptionTable::Option& option : config->table().options()) info.attributes.emplace_back(option.name, option.value());
    info.attributes.emplace_back("label", config->label());
    if (!arguments.init.empty()) info.attributes.emplace_back("initialised_from", arguments.init);
    info.attributes.emplace_back("communicator_used", communicator.name());
    if (!communicator.reason().empty()) info.attributes.emplace_back("communicator_reason", communicator.reason());
    info.attributes.emplace_back("device_name", device_name(model->params().device()));
    info.attributes.emplace_back("parameters", model->layout().size());
    info.attributes.emplace_back("flops_per_token", model->flops_per_token());
    const TokenFileInfo& data = tokens->info();
    info.attributes.emplace_back("data_source", data.source);
    info.attributes.emplace_back("data_format", data.format);
    info.attributes.emplace_back("data_checksum", data.checksum);
    info.attributes.emplace_back("data_verified", data.verified);
    info.attributes.emplace_back("train_tokens", data.train_tokens);
    info.attributes.emplace_back("validation_tokens", data.validation_tokens);
    if (!std::isnan(data.unigram_entropy)) info.attributes.emplace_back("unigram_entropy", data.unigram_entropy);
    return info;
  }
};

void tell_where_it_begins(const Arguments& arguments, const Run& run, const FoundRunFile& found) {
  if (run.checkpoint) {
    fmt::print("goes on from {}\n", run.checkpoint->folder().string());
  } else if (found.last_step > 0) {
    fmt::print("{}: begun anew, its {} steps have no checkpoint{}\n", arguments.out, found.last_step,
               run.not_continued.empty() ? "" : " to go on from: " + run.not_continued);
  }
}

int train(const Arguments& arguments, Run& run, const FoundRunFile& found, const TimeLimit& limit, int rank, int ranks) {
  const TrainOptions& options = run.config->train;
  const StopSignal stop;
  const Device device = run.model->params().device();
  const Stream stream = device.kind == DeviceKind::cpu ? Stream() : Stream(device);
  const Stream comm_stream = options.communication_stream ? Stream(device) : stream;
  const NodeShare node;
  if (options.threads > 0 || std::getenv("OMP_NUM_THREADS") == nullptr) {
    ops::set_threads(options.threads > 0 ? static_cast<int>(options.threads) : node.threads(), stream);
  }
  std::unique_ptr<Communicator> communicator;
  std::unique_ptr<Optimizer> optimizer;
  std::optional<Trainer> trainer;
  const int refused = on_all_ranks("scape train", [&] {  // an error in the collective parts is the same on all ranks
    communicator = make_communicator(options.communicator, MPI_COMM_WORLD, device);
    optimizer = run.config->method().make({.layout = run.model->layout(),
                                           .device = device,
                                           .rank = rank,
                                           .ranks = ranks,
                                           .total_steps = options.steps,
                                           .seed = static_cast<std::uint64_t>(options.seed)});
    trainer.emplace(TrainingSetup{.model = *run.model,
                                  .optimizer = *optimizer,
                                  .communicator = *communicator,
                                  .training = *run.training,
                                  .validation = *run.validation,
                                  .recorder = *run.recorder,
                                  .stream = stream,
                                  .comm_stream = comm_stream,
                                  .checkpoints = run.checkpoints ? &*run.checkpoints : nullptr},
                    options);
    if (run.checkpoint) trainer->resume(*run.checkpoint);
    RunInfo info = run.info(arguments, *communicator, node.crowded);
    info.first_step = trainer->first_step();
    if (rank == 0 && run.checkpoints) run.checkpoints->prepare(ranks * run.checkpoints->part_bytes(trainer->state()));
    if (rank == 0) tell_where_it_begins(arguments, run, found);
    run.recorder->begin(info);  // refused while another run writes the file, whose checkpoints then stay, too
    if (rank == 0 && run.checkpoints && !run.checkpoint) run.checkpoints->clear();
  });
  if (refused != 0) return refused;
  Watchdog watchdog(MPI_COMM_WORLD, options.watchdog,
                    {{"method's collectives", communicator.get()}, {"trainer's collectives", &trainer->control()}});
  RunStatus status = RunStatus::failed;
  try {
    status = trainer->run([&] { return stop.requested() ? StopReason::signal : limit.reached(); });
  } catch (const AgreedError&) {
    watchdog.finish();
    throw;
  }
  watchdog.finish();
  return status == RunStatus::complete ? 0 : exit_status(ErrorKind::stopped);
}

int run_train(const Arguments& arguments, int argc, char** argv) {
  if (arguments.list) return list_all();
  require(!arguments.resume || !checkpoint_folder(arguments).empty(), ErrorKind::usage,
          "--resume needs --out or --checkpoints, to know where the checkpoints are");
  const MpiSession mpi(argc, argv);
  int rank = 0;
  int ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (rank == 0 && arguments.out.empty()) {
    fmt::print(stderr, "scape train: no --out: nothing is recorded{}\n",
               arguments.checkpoints.empty() ? ", and no checkpoint is written" : "");
  }
  std::optional<Run> run;
  std::optional<TimeLimit> limit;
  const FoundRunFile found = FoundRunFile::find(arguments, rank);
  if (found.of_this_run) {
    if (rank == 0) fmt::print("{}: complete, nothing to resume\n", arguments.out);
    return 0;
  }
  int status = on_all_ranks("scape train", [&] {
    run.emplace(arguments, found, rank, ranks);
    limit.emplace(run->config->train.max_minutes, run->config->train.job_margin_seconds);
    if (rank != 0) return;
    std::vector<std::unique_ptr<Recorder>> recorders;
    if (!arguments.out.empty()) {
      const bool starts_anew = !run->checkpoint && arguments.overwrite;
      if (found.complete && !run->checkpoint && !starts_anew) {
        throw Error(ErrorKind::usage,
                    fmt::format("{}: is complete, with other options: {}; it has no checkpoint to go on from, so give "
                                "another --out, or --overwrite",
                                arguments.out, found.other_options));
      }
      recorders.push_back(std::make_unique<Hdf5Recorder>(arguments.out, starts_anew        ? ExistingFile::overwrite
                                                                        : arguments.resume ? ExistingFile::append
                                                                                           : ExistingFile::refuse));
    }
    recorders.push_back(std::make_unique<ConsoleRecorder>());
    run->recorder = std::make_unique<TeeRecorder>(std::move(recorders));
  });
  if (status != 0) return status;
  try {
    return train(arguments, *run, found, *limit, rank, ranks);
  } catch (const std::exception& error) {
    const auto* known = dynamic_cast<const Error*>(&error);
    status = exit_status(known != nullptr ? known->kind() : ErrorKind::internal);
    const bool everywhere = dynamic_cast<const AgreedError*>(&error) != nullptr;
    if (!everywhere || rank == 0)
      fmt::print(stderr, "scape train: {}{}\n", everywhere ? "" : fmt::format("rank {}: ", rank), error.what());
    if (!everywhere) MPI_Abort(MPI_COMM_WORLD, status);  // the others wait in a collective
    return status;
  }
}

}  // namespace

void add_train_command(CLI::App& app, Action& action, int argc, char** argv) {
  auto arguments = std::make_shared<Arguments>();
  for (int i = 0; i < argc; ++i) arguments->command_line += (i > 0 ? " " : "") + std::string(argv[i]);
  CLI::App* command = app.add_subcommand("train", "train one model with one method (start it with mpirun for several ranks)");
  command->add_option("--config", arguments->config, "TOML file with options");
  command->add_option("--set", arguments->settings, "option, name=value, stronger than the file; may be repeated");
  command->add_option("--max-minutes", arguments->max_minutes,
                      "stop with a checkpoint after so much time, like --set max_minutes=M");
  command->add_option("--out", arguments->out, "run file to write (HDF5)");
  command->add_option("--checkpoints", arguments->checkpoints, "folder for checkpoints (default: beside the run file, NAME.ckpt)");
  command->add_option("--init", arguments->init, "checkpoint whose parameters the run begins with (`scape import` makes one, too)");
  command->add_flag("--resume", arguments->resume, "go on from the last checkpoint, if there is one");
  command->add_flag("--allow-changes", arguments->allow_changes,
                    "resume although options or data differ from those of the checkpoint");
  command->add_flag("--overwrite", arguments->overwrite,
                    "replace an existing run file and its checkpoints; with --resume only if the run cannot go on from them");
  command->add_flag("--list", arguments->list, "list all methods and options");
  command->callback([arguments, &action, argc, argv] { action = [=] { return run_train(*arguments, argc, argv); }; });
}

}  // namespace scape
