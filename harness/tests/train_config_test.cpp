// From settings to runs: options of run and method, TOML files, sweeps, and the learning-rate schedule.
#include <gmock/gmock.h>

#include "message_of.hpp"
#include "temporary_folder.hpp"
#include "train/run_config.hpp"
#include "train/schedule.hpp"
#include "train/settings_file.hpp"

namespace scape {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;

Registry core_registry() {
  Registry registry;
  register_core(registry);
  return registry;
}

std::vector<Setting> settings(const std::vector<std::string>& assignments) {
  std::vector<Setting> list;
  for (const std::string& assignment : assignments) list.push_back(parse_setting(assignment, "--set"));
  return list;
}

struct TemporaryFile {
  explicit TemporaryFile(const std::string& text) { testing::write_bytes(path(), text); }
  [[nodiscard]] std::filesystem::path path() const { return folder / "settings.toml"; }
  const testing::TemporaryFolder folder;
};

TEST(RunConfig, ComparesWithTheAttributesOfARunFile) {
  TokenFileInfo data{.vocabulary = 300, .train_tokens = 5, .checksum = "0123"};
  const auto differences = [&](const std::vector<std::string>& mine, bool complete = false) {
    std::map<std::string, std::string> attributes = RunConfig(core_registry(), settings({"optimizer=scape", "vocab=300"})).texts();
    attributes.merge(facts_of({.vocabulary = 300, .train_tokens = 5, .checksum = "0123"}));
    attributes["started"] = "2026-11-29";
    return RunConfig(core_registry(), settings(mine)).differences_from_run_file(attributes, data, complete);
  };
  EXPECT_EQ(differences({"optimizer=scape"}), "");
  EXPECT_EQ(differences({"optimizer=scape", "vocab=300", "data=elsewhere", "threads=2"}), "");
  EXPECT_EQ(differences({"optimizer=scape", "vocab=256"}), "vocab=300 there, 256 here");
  EXPECT_EQ(differences({"optimizer=scape", "seed=7"}), "init_seed=1 there, 7 here, seed=1 there, 7 here");
  EXPECT_EQ(differences({"optimizer=scape", "validate_every=7", "checkpoint_every=3"}), "");
  EXPECT_EQ(differences({"optimizer=scape", "validate_every=7", "checkpoint_every=3"}, true), "validate_every=50 there, 7 here");
  data.checksum = "4567";
  EXPECT_EQ(differences({"optimizer=scape"}), "data_checksum=0123 there, 4567 here");
}

TEST(RunConfig, RefusesWhatCannotRun) {
  for (const char* setting : {"sequence_length=65", "threads=1025", "layers=10001"}) {
    SCOPED_TRACE(setting);
    message_of(ErrorKind::usage, [&] { RunConfig(core_registry(), settings({"model=gpt-nano", setting})); });
  }
}

TEST(RunConfig, LaterSettingsWinAndMethodOptionsArePart) {
  const RunConfig config(core_registry(),
                         settings({"optimizer=scape", "density=0.1", "model=llama-nano", "density=0.02", "steps=7"}));
  EXPECT_EQ(config.train.steps, 7);
  EXPECT_EQ(config.model.norm, Norm::rms_norm);
  EXPECT_EQ(config.train.sequence_length, config.model.context);
  EXPECT_TRUE(config.table().contains("density"));
  EXPECT_TRUE(config.table().contains("beta1"));
  EXPECT_EQ(config.label(), "scape density=0.02");
}

TEST(RunConfig, SeedGovernsTheModelUnlessItHasItsOwn) {
  EXPECT_EQ(RunConfig(core_registry(), settings({"seed=5"})).model.init_seed, 5);
  EXPECT_EQ(RunConfig(core_registry(), settings({"init_seed=9", "seed=5"})).model.init_seed, 9);
}

TEST(RunConfig, TyposAndForeignOptionsAreAnsweredWithNames) {
  const auto message = [](const std::vector<std::string>& assignments) {
    return message_of(ErrorKind::usage, [&] { RunConfig(core_registry(), settings(assignments)); });
  };
  EXPECT_THAT(message({"stepz=7"}), AllOf(HasSubstr("unknown option 'stepz'"), HasSubstr("'steps'")));
  EXPECT_THAT(message({"optimizer=adamw", "density=0.1"}), HasSubstr("'density' is an option of optimizer=scape"));
  EXPECT_THAT(message({"optimizer=adamv"}), HasSubstr("'adamw'"));
  EXPECT_THAT(message({"optimizer=adamw", "sync=dens"}), HasSubstr("'dense'"));
  EXPECT_THAT(message({"optimizer=scape", "sync=topk"}), HasSubstr("takes no sync"));
  EXPECT_THAT(message({"model=gpt-nan"}), HasSubstr("gpt-nano"));
  EXPECT_THAT(message({"steps=0"}), HasSubstr("at least 1"));
}

TEST(SettingsFile, KeepsOrderAndTellsLines) {
  const TemporaryFile file("steps = 800\noptimizer = \"scape\"\ndensity = 0.01\ncommunication_stream = false\n");
  const std::vector<Setting> read = read_settings(file.path());
  ASSERT_EQ(read.size(), 4U);
  EXPECT_EQ(read[0].name, "steps");
  EXPECT_EQ(read[2].text, "0.01");
  EXPECT_EQ(read[3].text, "false");
  EXPECT_THAT(read[2].origin, HasSubstr(".toml:3"));
}

TEST(SettingsFile, RefusesWhatIsNotToml) {
  const TemporaryFile file("steps = 800\ndensity == 1\n");
  EXPECT_THAT(message_of(ErrorKind::input, [&] { (void)read_settings(file.path()); }), HasSubstr(file.path().string() + ":2:"));
  EXPECT_THAT(message_of(ErrorKind::input, [] { (void)read_settings("/nonexistent/x.toml"); }), HasSubstr("/nonexistent/x.toml"));
  for (const std::string what : {"/tmp", "/dev/null"}) {
    EXPECT_EQ(message_of(ErrorKind::input, [&] { (void)read_settings(what); }), what + ": is not a file");
  }
  const TemporaryFile nested("steps = {a = 1}\n");
  message_of(ErrorKind::usage, [&] { (void)read_settings(nested.path()); });
}

TEST(Sweep, ListsMakeAllCombinations) {
  const TemporaryFile file(
      "steps = 10\n[[run]]\nname = \"dense\"\noptimizer = \"adamw\"\n[[run]]\nname = \"s\"\ndensity = [0.1, 0.01]\nmask_delay = "
      "[1, 4]\n");
  std::vector<std::string> names;
  for (const PlannedRun& run : read_sweep(file.path())) names.push_back(run.name);
  EXPECT_THAT(names, ElementsAre("dense", "s-density=0.1-mask_delay=1", "s-density=0.1-mask_delay=4", "s-density=0.01-mask_delay=1",
                                 "s-density=0.01-mask_delay=4"));
  const std::vector<PlannedRun> runs = read_sweep(file.path());
  EXPECT_EQ(runs[4].settings.front().name, "steps");
  EXPECT_EQ(runs[4].settings.back().text, "4");
}

TEST(Sweep, RefusesRunsThatCannotBeMeant) {
  for (const char* text : {"steps = 1\n", "[[run]]\nsteps = 1\n", "[[run]]\nname = \"a\"\n[[run]]\nname = \"a\"\n", "run = [1]\n",
                           "[[run]]\nname=\"a/b\"\n", "[[run]]\nname = \"a\"\nseed = []\n[[run]]\nname = \"b\"\n"}) {
    const TemporaryFile file(text);
    SCOPED_TRACE(text);
    message_of(ErrorKind::usage, [&] { (void)read_sweep(file.path()); });
  }
}

TEST(Schedule, WarmsUpPeaksAndFallsToTheFloor) {
  LearningRateSchedule schedule;
  schedule.learning_rate = 2;
  schedule.warmup_fraction = 0.1;
  schedule.floor_ratio = 0.1;
  EXPECT_DOUBLE_EQ(schedule.at(1, 100), 0.2);
  EXPECT_DOUBLE_EQ(schedule.at(10, 100), 2);
  EXPECT_DOUBLE_EQ(schedule.at(55, 100), 2 * (0.1 + 0.9 / 2));  // half way down the cosine
  EXPECT_NEAR(schedule.at(100, 100), 0.2, 1e-12);
  schedule.shape = LearningRateSchedule::Shape::constant;
  EXPECT_DOUBLE_EQ(schedule.at(100, 100), 2);
  schedule.warmup_fraction = 0;
  EXPECT_DOUBLE_EQ(schedule.at(1, 100), 2);
}

}  // namespace
}  // namespace scape
