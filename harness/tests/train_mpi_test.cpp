// Training on several ranks: what must not depend on the number of ranks or micro-batches, what a run records, how ranks stop
// together, and how a run goes on from a checkpoint.
#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <optional>

#include "data/prepare.hpp"
#include "message_of.hpp"
#include "model_test_support.hpp"
#include "scape/baselines.hpp"
#include "scape/error.hpp"
#include "train/trainer.hpp"

namespace scape {
namespace {

Registry all_methods() {
  Registry registry;
  register_core(registry);
  register_baselines(registry);
  return registry;
}

// One small synthetic data set for all tests; written by one rank a program run.
const TokenFile& tokens() {
  static const TokenFile file = [] {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    int id = getpid();
    MPI_Bcast(&id, 1, MPI_INT, 0, MPI_COMM_WORLD);
    const auto path = std::filesystem::temp_directory_path() / ("train_mpi_test_" + std::to_string(id) + ".bin");
    if (rank == 0) prepare({.output = path, .synthetic_bytes = 1 << 20});
    MPI_Barrier(MPI_COMM_WORLD);
    TokenFile opened = TokenFile::open(path);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) std::filesystem::remove(path);
    return opened;
  }();
  return file;
}

class Memory final : public Recorder {
 public:
  std::vector<StepRecord> steps;
  std::vector<ValidationRecord> evaluations;
  std::vector<DiagnosticsRecord> diagnostics;
  std::vector<CheckpointRecord> checkpoints;
  RunOutcome outcome;
  std::int64_t fails_in_step = 0;
  void begin(const RunInfo&) override {}
  void step(const StepRecord& record) override {
    if (record.step == fails_in_step) throw Error(ErrorKind::input, "run.h5: no space");
    steps.push_back(record);
  }
  void evaluate(const ValidationRecord& record) override { evaluations.push_back(record); }
  void diagnose(const DiagnosticsRecord& record) override { diagnostics.push_back(record); }
  void checkpoint(const CheckpointRecord& record) override { checkpoints.push_back(record); }
  void end(const RunOutcome& end) override {
    outcome = end;
    if (told != nullptr) *told = end;
  }
  RunOutcome* told = nullptr;
};

// Breaks the gradient of one rank in chosen steps.
class Sabotage final : public Optimizer {
 public:
  Sabotage(std::unique_ptr<Optimizer> inner, std::function<bool(std::int64_t)> broken)
      : inner_(std::move(inner)), broken_(std::move(broken)) {}
  StepResult step(const StepContext& context) override {
    if (context.comm.rank() == context.comm.size() - 1 && broken_(context.step)) context.grads.host()[3] = INFINITY;
    return inner_->step(context);
  }
  std::vector<StateEntry> state() override { return inner_->state(); }
  StepView inspect(const StepContext& context) const override { return inner_->inspect(context); }
  double expected_wire_bytes(std::int64_t step) const override { return inner_->expected_wire_bytes(step); }

 private:
  std::unique_ptr<Optimizer> inner_;
  std::function<bool(std::int64_t)> broken_;
};

struct Outcome {
  Memory record;
  RunStatus status = RunStatus::complete;
  std::vector<float> params;
};

struct Hooks {
  std::function<StopReason()> stop = [] { return StopReason::none; };
  std::function<bool(std::int64_t)> broken{};
  std::filesystem::path checkpoints{};  // none if empty
  bool resume = false;
  std::int64_t record_fails_in_step = 0;  // on rank 0
  RunOutcome* told = nullptr;             // how the run ended, also one that throws
};

// Stops after `steps` steps.
std::function<StopReason()> after(int steps) {
  return [steps, asked = 0]() mutable { return ++asked == steps ? StopReason::signal : StopReason::none; };
}

// A folder that all ranks see.
class SharedFolder {
 public:
  SharedFolder() : path(std::filesystem::temp_directory_path() / ("train_mpi_test_" + std::to_string(common_id()))) {
    std::filesystem::create_directories(path);
  }
  ~SharedFolder() {
    MPI_Barrier(MPI_COMM_WORLD);
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
    MPI_Barrier(MPI_COMM_WORLD);
  }
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;
  const std::filesystem::path path;

 private:
  static int common_id() {
    int id = getpid();
    MPI_Bcast(&id, 1, MPI_INT, 0, MPI_COMM_WORLD);
    return id;
  }
};

std::vector<Setting> tiny_settings() {
  std::vector<Setting> settings;
  for (const char* base : {"layers=2", "width=32", "heads=2", "kv_heads=2", "ffn=64", "context=16", "global_batch=24",
                           "validation_batches=2", "validate_every=1000", "steps=8"}) {
    settings.push_back(parse_setting(base, "test"));
  }
  return settings;
}

// Trains over `world` with the given options on top of a tiny model and a small batch.
Outcome train(const std::vector<std::string>& assignments, const Hooks& hooks = {}, MPI_Comm world = MPI_COMM_WORLD) {
  std::vector<Setting> settings = tiny_settings();
  for (const std::string& assignment : assignments) settings.push_back(parse_setting(assignment, "test"));
  const RunConfig config(all_methods(), settings);
  const TrainOptions& options = config.train;
  const auto communicator = make_communicator("auto", world, cpu_device);
  const TokenStreamOptions order{.sequence_length = options.sequence_length, .global_batch = options.global_batch, .seed = 1};
  const TokenStream training(tokens(), Split::train, order, communicator->rank(), communicator->size());
  const TokenStream validation(tokens(), Split::validation, order, communicator->rank(), communicator->size());
  const auto model = make_model(config.model);
  auto optimizer = config.method().make({.layout = model->layout(),
                                         .device = cpu_device,
                                         .rank = communicator->rank(),
                                         .ranks = communicator->size(),
                                         .total_steps = options.steps,
                                         .seed = 1});
  if (hooks.broken) optimizer = std::make_unique<Sabotage>(std::move(optimizer), hooks.broken);
  const Stream stream;
  const Stream comm_stream = options.communication_stream ? Stream(cpu_device) : stream;
  Outcome outcome;
  outcome.record.told = hooks.told;
  if (communicator->rank() == 0) outcome.record.fails_in_step = hooks.record_fails_in_step;
  std::optional<CheckpointWriter> writer;
  const CheckpointInfo info{.ranks = communicator->size(), .options = config.texts()};
  if (!hooks.checkpoints.empty()) writer.emplace(hooks.checkpoints, options.checkpoint_keep, info, communicator->rank());
  Trainer trainer({.model = *model,
                   .optimizer = *optimizer,
                   .communicator = *communicator,
                   .training = training,
                   .validation = validation,
                   .recorder = outcome.record,
                   .stream = stream,
                   .comm_stream = comm_stream,
                   .checkpoints = writer ? &*writer : nullptr},
                  options);
  if (hooks.resume) {
    const Checkpoint checkpoint = Checkpoint::open(hooks.checkpoints);
    checkpoint.verify(communicator->rank(), communicator->size());
    EXPECT_EQ(config.differences(checkpoint.info().options), "");
    trainer.resume(checkpoint);
  }
  outcome.status = trainer.run(hooks.stop);
  outcome.params.assign(model->params().host().begin(), model->params().host().end());
  return outcome;
}

double last_loss(const Outcome& outcome) {
  return outcome.record.evaluations.back().loss;
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, static_cast<double>(std::abs(a[i] - b[i])));
  return largest;
}

// Case 16: a tied embedding is one tensor with one moment, counted once in n and k, and after 50 steps its two uses are the same.
TEST(Trainer, ATiedEmbeddingStaysOneTensor) {
  const std::vector<std::string> settings{"optimizer=scape", "density=0.1", "density_warmup_fraction=0", "steps=50"};
  const Outcome trained = train(settings, {}, MPI_COMM_SELF);
  std::vector<Setting> all = tiny_settings();
  for (const std::string& assignment : settings) all.push_back(parse_setting(assignment, "test"));
  const RunConfig config(all_methods(), all);
  ASSERT_TRUE(config.model.tied_embedding);
  const auto model = make_model(config.model);
  const auto untied = untied_twin(*model, config.model);
  EXPECT_EQ(model->layout().size(), untied->layout().size() - config.model.vocab * config.model.width);
  std::int64_t kept = 0;
  for (const ParameterTensor& tensor : model->layout().tensors()) {
    kept += tensor.role == TensorRole::vector ? tensor.range.size() : std::max<std::int64_t>(1, tensor.range.size() / 10);
  }
  const auto size = static_cast<double>(model->layout().size());
  EXPECT_EQ(trained.record.steps.back().result.density, static_cast<double>(kept) / size);

  EXPECT_NE(copy_of(model->params()), trained.params);
  std::copy(trained.params.begin(), trained.params.end(), model->params().data());
  const Sample sample(config.model, 2, config.model.context);
  EXPECT_EQ(model->evaluate(sample.batch(), Stream()), untied_twin(*model, config.model)->evaluate(sample.batch(), Stream()));
  const auto method = config.method().make({.layout = model->layout(), .device = cpu_device, .total_steps = 50});
  std::int64_t moments = 0;
  for (const StateEntry& entry : method->state()) {
    if (entry.name == "scape/m") moments += entry.bytes.size() / 4;
  }
  EXPECT_EQ(moments, model->layout().size());
}

TEST(Trainer, OneRankWithTheWholeBatchEqualsManyRanksWithAShare) {
  const Outcome many = train({"optimizer=adamw", "learning_rate=0.01"});
  const Outcome one = train({"optimizer=adamw", "learning_rate=0.01"}, {}, MPI_COMM_SELF);
  for (std::size_t i = 0; i < one.record.steps.size(); ++i) EXPECT_NEAR(many.record.steps[i].loss, one.record.steps[i].loss, 2e-5);
  EXPECT_NEAR(last_loss(many), last_loss(one), 2e-5);
  EXPECT_LT(last_loss(one), one.record.evaluations.front().loss - 0.5);  // it learns at all
}

// Every method of the registry, as settings.
std::vector<std::vector<std::string>> each_method() {
  const Registry registry = all_methods();
  std::vector<std::vector<std::string>> methods;
  for (const auto& method : registry.optimizers.all()) methods.push_back({"optimizer=" + method.name});
  for (const auto& method : registry.rules.all()) methods.push_back({"optimizer=" + method.name});
  for (const auto& method : registry.syncs.all()) methods.push_back({"optimizer=adamw", "sync=" + method.name});
  return methods;
}

double norm(const std::vector<float>& values) {
  double squares = 0;
  for (const float value : values) squares += static_cast<double>(value) * value;
  return std::sqrt(squares);
}

// Case 6. A large epsilon keeps Adam's update a smooth function of the gradient, as it is not around 0.
TEST(Trainer, MicroBatchesDoNotMatter) {
  for (std::vector<std::string> method : each_method()) {
    SCOPED_TRACE(::testing::PrintToString(method));
    method.insert(method.end(), {"steps=1", "epsilon=0.01"});
    const Outcome whole = train(method);
    method.emplace_back("micro_batch=2");
    const Outcome parts = train(method);
    std::vector<float> difference = whole.params;
    for (std::size_t i = 0; i < difference.size(); ++i) difference[i] -= parts.params[i];
    EXPECT_LT(norm(difference), 1e-6 * norm(whole.params));
    const StepRecord& one = whole.record.steps[0];
    const StepRecord& many = parts.record.steps[0];
    EXPECT_EQ(one.traffic.total().calls, many.traffic.total().calls);
    EXPECT_EQ(one.traffic.total().payload_bytes, many.traffic.total().payload_bytes);
    EXPECT_NEAR(many.loss, one.loss, 1e-6 * one.loss);
  }
}

TEST(Trainer, ScapeAtFullDensityIsDenseAdamS) {
  const Outcome dense = train({"optimizer=adams"});
  const Outcome scape = train({"optimizer=scape", "density=1"});
  for (std::size_t i = 0; i < dense.record.steps.size(); ++i)
    EXPECT_NEAR(dense.record.steps[i].loss, scape.record.steps[i].loss, 1e-4);
  EXPECT_NEAR(last_loss(dense), last_loss(scape), 1e-4);
}

TEST(Trainer, CommunicationOnAStreamOfItsOwnChangesNoBit) {
  for (const char* method : {"optimizer=scape", "optimizer=adams"}) {
    EXPECT_EQ(train({method}).params, train({method, "communication_stream=false"}).params) << method;
  }
  EXPECT_LT(largest_difference(train({"optimizer=adamw"}).params,
                               train({"optimizer=adamw", "overlap=bucketed", "bucket_megabytes=0.01"}).params),
            2e-4);
}

TEST(Trainer, RecordsWhatWasSentAndItEqualsTheFormula) {
  for (const std::vector<std::string>& method :
       std::vector<std::vector<std::string>>{{"optimizer=adamw"},
                                             {"optimizer=scape", "density=0.01"},
                                             {"optimizer=adamw", "sync=topk", "density=0.01"},
                                             {"optimizer=adamw", "sync=quantized"}}) {
    for (const StepRecord& record : train(method).record.steps) {
      EXPECT_NEAR(record.traffic.total().wire_bytes, record.expected_wire_bytes, 0.05 * record.expected_wire_bytes)
          << method.back();
      EXPECT_GT(record.seconds, 0);
    }
  }
}

TEST(Trainer, RanksStopTogetherAfterOneIsAsked) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  int asked = 0;
  const Outcome stopped =
      train({"optimizer=scape"},
            {.stop = [&] { return ++asked == 3 && rank == 0 ? StopReason::signal : StopReason::none; }, .broken = {}});
  EXPECT_EQ(stopped.status, RunStatus::stopped);
  EXPECT_EQ(stopped.record.steps.size(), 3U);
  EXPECT_EQ(stopped.record.outcome.status, RunStatus::stopped);
}

TEST(Trainer, ARefusedStepIsRecordedAndTenInARowEndTheRun) {
  for (const char* method : {"optimizer=scape", "optimizer=adamw"}) {
    const Outcome once =
        train({method}, {.stop = [] { return StopReason::none; }, .broken = [](std::int64_t step) { return step == 4; }});
    EXPECT_EQ(once.status, RunStatus::complete);
    for (const StepRecord& record : once.record.steps) EXPECT_EQ(record.result.applied, record.step != 4);
    EXPECT_TRUE(std::isfinite(last_loss(once)));
    const auto forever = [&] {
      train({method, "steps=30"}, {.stop = [] { return StopReason::none; }, .broken = [](std::int64_t step) { return step > 5; }});
    };
    EXPECT_THAT(testing::message_of(ErrorKind::diverged, forever), ::testing::HasSubstr("the last was step 15"));
  }
}

// Diagnostics change no bit of a run, and see the gradients as the backward pass left them, whoever overwrites them and when.
TEST(Trainer, DiagnosticsOnlyWatch) {
  std::vector<std::vector<DiagnosticsRecord>> records;
  for (const std::vector<std::string>& method :
       std::vector<std::vector<std::string>>{{"optimizer=scape", "density=0.1", "density_warmup=none"},
                                             {"optimizer=adamw"},
                                             {"optimizer=adamw", "overlap=bucketed", "bucket_megabytes=0.01"}}) {
    std::vector<std::string> watched = method;
    watched.insert(watched.end(), {"diagnostics_every=1", "micro_batch=2"});
    std::vector<std::string> unwatched = method;
    unwatched.emplace_back("micro_batch=2");
    const Outcome with = train(watched);
    EXPECT_EQ(with.params, train(unwatched).params) << method.back();
    records.push_back(with.record.diagnostics);
    for (const StepRecord& step : with.record.steps) {
      EXPECT_GT(step.seconds, 0);
      EXPECT_GT(step.phase_seconds[static_cast<std::size_t>(Phase::forward_backward)], 0);
    }
  }
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (const auto& record : records) ASSERT_EQ(record.size(), rank == 0 ? 8U : 0U);
  if (rank != 0) return;
  for (std::size_t tensor = 0; tensor < records[0][0].tensors.size(); ++tensor) {
    const TensorDiagnostics& scape = records[0][0].tensors[tensor];  // after step 1: the parameters were the same
    EXPECT_EQ(records[1][0].tensors[tensor].gradient_histogram, scape.gradient_histogram);
    EXPECT_EQ(records[2][0].tensors[tensor].gradient_histogram, scape.gradient_histogram);
    EXPECT_TRUE(std::isnan(records[1][7].tensors[tensor].share_previous));
    const TensorDiagnostics& last = records[0][7].tensors[tensor];
    EXPECT_GT(last.energy_overlap, 0);
    EXPECT_LE(last.energy_overlap, 1 + 1e-9);
    EXPECT_GE(last.share_previous, last.jaccard_previous);
  }
}

TEST(Trainer, ARefusedStepHasNoDiagnostics) {
  const Outcome outcome = train({"optimizer=scape", "diagnostics_every=2"},
                                {.stop = [] { return StopReason::none; }, .broken = [](std::int64_t step) { return step == 4; }});
  std::vector<std::int64_t> steps;
  for (const DiagnosticsRecord& record : outcome.record.diagnostics) steps.push_back(record.step);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  EXPECT_EQ(steps, rank == 0 ? (std::vector<std::int64_t>{2, 6, 8}) : std::vector<std::int64_t>());
}

// Case 9, for every method, and with masks that are on their way when the run is saved.
TEST(Resume, GoesOnWithTheSameBits) {
  std::vector<std::vector<std::string>> methods = each_method();
  for (const char* form : {"replicated", "sharded"}) {
    methods.push_back({"optimizer=scape", std::string("form=") + form, "density=0.05", "mask_delay=3", "mask_refresh=2"});
  }
  methods.push_back({"optimizer=scape", "diagnostics_every=1", "density=0.05"});
  for (std::vector<std::string> method : methods) {
    SCOPED_TRACE(::testing::PrintToString(method));
    const SharedFolder folder;
    method.emplace_back("steps=6");
    const Outcome whole = train(method);
    const Outcome first = train(method, {.stop = after(3), .checkpoints = folder.path});
    EXPECT_EQ(first.status, RunStatus::stopped);
    EXPECT_EQ(first.record.steps.size(), 3U);
    const Outcome second = train(method, {.checkpoints = folder.path, .resume = true});
    EXPECT_EQ(second.status, RunStatus::complete);
    EXPECT_EQ(second.params, whole.params);
    ASSERT_EQ(second.record.steps.size(), 3U);
    for (std::size_t i = 0; i < 3; ++i) {  // case 12: the same data, too
      EXPECT_EQ(second.record.steps[i].step, whole.record.steps[i + 3].step);
      EXPECT_EQ(second.record.steps[i].loss, whole.record.steps[i + 3].loss);
      EXPECT_EQ(second.record.steps[i].data_hash, whole.record.steps[i + 3].data_hash);
      EXPECT_NE(second.record.steps[i].data_hash, whole.record.steps[i].data_hash);
    }
    for (std::size_t i = 0; i < second.record.diagnostics.size(); ++i) {
      for (std::size_t t = 0; t < second.record.diagnostics[i].tensors.size(); ++t) {
        EXPECT_EQ(second.record.diagnostics[i].tensors[t].age_histogram, whole.record.diagnostics[i + 3].tensors[t].age_histogram);
      }
    }
  }
}

// Case 11: parameters, moments and the mean residual are the same on another number of ranks.
TEST(Resume, GoesOnOnAnotherNumberOfRanks) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (const std::vector<std::string>& method : std::vector<std::vector<std::string>>{
           {"optimizer=adamw"}, {"optimizer=zero1"}, {"optimizer=scape", "density=0.1"}, {"optimizer=scape", "form=sharded"}}) {
    SCOPED_TRACE(::testing::PrintToString(method));
    const SharedFolder folder;
    const Outcome whole = train(method);
    train(method, {.stop = after(4), .checkpoints = folder.path});
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank != 0) continue;
    const Outcome one = train(method, {.checkpoints = folder.path, .resume = true}, MPI_COMM_SELF);
    ASSERT_EQ(one.record.steps.size(), 4U);
    EXPECT_NEAR(one.record.steps[0].loss, whole.record.steps[4].loss, 1e-5);  // the parameters are the same
    EXPECT_NEAR(last_loss(one), last_loss(whole), 0.02);                      // masks may differ: another owner chooses them
  }
}

TEST(Checkpoints, AreWrittenWhileTrainingGoesOnAndChangeNothing) {
  const SharedFolder folder;
  const Outcome with = train({"optimizer=scape", "checkpoint_every=2"}, {.checkpoints = folder.path});
  EXPECT_EQ(with.params, train({"optimizer=scape"}).params);
  std::vector<std::int64_t> steps;
  for (const CheckpointRecord& record : with.record.checkpoints) {
    EXPECT_EQ(record.error, "");
    EXPECT_GT(record.bytes, 0);
    EXPECT_GE(record.seconds, record.waited_seconds);
    steps.push_back(record.step);
  }
  EXPECT_EQ(steps, (std::vector<std::int64_t>{2, 4, 6, 8}));
  MPI_Barrier(MPI_COMM_WORLD);
  const auto there = checkpoints_in(folder.path);
  ASSERT_EQ(there.size(), 2U);
  EXPECT_EQ(there.begin()->first, 6);
}

TEST(Checkpoints, OneThatCannotBeWrittenIsToldAndTrainingGoesOn) {
  const SharedFolder folder;
  std::ofstream(folder.path / ".unfinished-step-00000004") << "in the way";
  const Outcome outcome = train({"optimizer=scape", "checkpoint_every=4"}, {.checkpoints = folder.path});
  EXPECT_EQ(outcome.status, RunStatus::complete);
  ASSERT_EQ(outcome.record.checkpoints.size(), 2U);
  EXPECT_NE(outcome.record.checkpoints[0].error, "");
  EXPECT_EQ(outcome.record.checkpoints[1].error, "");
  EXPECT_EQ(Checkpoint::open(folder.path).info().step, 8);
}

TEST(Checkpoints, TheOneThatIsOwedAtTheEndMustBeWritten) {
  const SharedFolder folder;
  std::ofstream(folder.path / ".unfinished-step-00000008") << "in the way";
  RunOutcome told;
  EXPECT_THROW(train({"optimizer=scape", "checkpoint_every=8"}, {.checkpoints = folder.path, .told = &told}), AgreedError);
  EXPECT_EQ(told.status, RunStatus::failed);
}

// A run that is evaluated afterwards.
TEST(Checkpoints, OneIsWrittenAtTheEndUnlessItIsSwitchedOff) {
  for (const bool last : {true, false}) {
    const SharedFolder folder;
    train({"optimizer=scape", last ? "checkpoint_every=0" : "checkpoint_last=false"}, {.checkpoints = folder.path});
    MPI_Barrier(MPI_COMM_WORLD);
    const auto there = checkpoints_in(folder.path);
    ASSERT_EQ(there.size(), last ? 1U : 0U);
    if (last) {
      EXPECT_EQ(there.begin()->first, 8);
    }
  }
}

// What diverges replaces no good checkpoint; a step that is refused by chance only puts one off.
TEST(Checkpoints, NoneIsBegunWhileStepsAreRefused) {
  const auto broken = [](std::int64_t step) { return step == 4 || step > 9; };
  {
    const SharedFolder folder;
    const std::string message = testing::message_of(ErrorKind::diverged, [&] {
      train({"optimizer=scape", "steps=30", "checkpoint_every=2"}, {.broken = broken, .checkpoints = folder.path});
    });
    EXPECT_THAT(message, ::testing::EndsWith("; the last good checkpoint is " + (folder.path / "step-00000008").string()));
    MPI_Barrier(MPI_COMM_WORLD);
    EXPECT_EQ(Checkpoint::open(folder.path).info().step, 8);
  }
  const SharedFolder folder;
  const Outcome once = train({"optimizer=scape", "checkpoint_every=4"}, {.broken = broken, .checkpoints = folder.path});
  ASSERT_EQ(once.record.checkpoints.size(), 2U);
  EXPECT_EQ(once.record.checkpoints[0].step, 5);
}

// A full disk under the run file: the run stops on all ranks, its state saved.
TEST(Checkpoints, SaveTheStateWhenTheRunFileFails) {
  const SharedFolder folder;
  try {
    train({"optimizer=scape"}, {.checkpoints = folder.path, .record_fails_in_step = 3});
    ADD_FAILURE() << "the run should have failed";
  } catch (const AgreedError& error) {
    EXPECT_EQ(error.kind(), ErrorKind::input);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  EXPECT_EQ(Checkpoint::open(folder.path).info().step, 4);
}

// Case 21.
TEST(Trainer, UtilisationIsAbsentWithoutAPeakAndNeverAboveOne) {
  for (const StepRecord& record : train({"optimizer=adamw", "steps=2"}).record.steps) {
    EXPECT_TRUE(std::isnan(record.flops_utilisation));
  }
  int ranks = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const Outcome known = train({"optimizer=adamw", "steps=2", "peak_teraflops=1000"});
  const auto model = make_model(RunConfig(all_methods(), tiny_settings()).model);
  for (const StepRecord& record : known.record.steps) {
    const double most = model->flops_per_token() * 24 * 16 / (record.seconds * ranks * 1e15);  // by this rank's own seconds
    EXPECT_GT(record.flops_utilisation, 0);
    EXPECT_LE(record.flops_utilisation, most * (1 + 1e-9));
    if (ranks == 1) {
      EXPECT_NEAR(record.flops_utilisation, most, 1e-9 * most);
    }
  }
  const SharedFolder folder;
  try {
    train({"optimizer=adamw", "peak_teraflops=1e-9"}, {.checkpoints = folder.path});
    ADD_FAILURE() << "more than the peak";
  } catch (const AgreedError& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_THAT(error.what(), ::testing::StartsWith("peak_teraflops is too low: step 1 did "));
  }
  MPI_Barrier(MPI_COMM_WORLD);
  const Outcome rest = train({"optimizer=adamw"}, {.checkpoints = folder.path, .resume = true});  // nothing is lost
  EXPECT_EQ(rest.record.steps.front().step, 2);
}

TEST(Trainer, RefusesAMicroBatchThatDoesNotDivide) {
  EXPECT_THROW(train({"optimizer=scape", "micro_batch=5"}), Error);
}

}  // namespace
}  // namespace scape
