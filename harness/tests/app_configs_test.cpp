// Every TOML file under harness/configs can be run: each of its settings is an option of the method and model that it chooses.
#include <gmock/gmock.h>

#include <filesystem>
#include <map>

#include "scape/baselines.hpp"
#include "train/run_config.hpp"
#include "train/settings_file.hpp"

namespace scape {
namespace {

TEST(Configs, EveryRunResolves) {
  Registry registry;
  register_core(registry);
  register_baselines(registry);
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(CONFIGS)) {
    if (entry.path().extension() != ".toml") continue;
    ++files;
    for (const PlannedRun& run : read_sweep(entry.path())) {
      SCOPED_TRACE(entry.path().string() + ": " + run.name);
      const RunConfig config(registry, run.settings);
      const ParameterLayout layout = parameter_layout(config.model);
      EXPECT_EQ(config.train.global_batch % std::max<std::int64_t>(1, config.train.micro_batch), 0);
      if (layout.size() < 10'000'000) {  // the large ones would cost gigabytes; their options are those of the small
        EXPECT_NO_THROW((void)config.method().make({.layout = layout, .device = cpu_device, .total_steps = config.train.steps}));
      }
    }
  }
  EXPECT_GE(files, 5);
}

// What the paper fixes is the same in all three of its files.
TEST(Configs, ThePaperIsFollowed) {
  Registry registry;
  register_core(registry);
  register_baselines(registry);
  for (const char* name : {"gpt-345m", "llama-500m", "llama-1.8b"}) {
    std::vector<double> densities;
    for (const PlannedRun& run : read_sweep(std::filesystem::path(CONFIGS) / "paper" / (std::string(name) + ".toml"))) {
      const RunConfig config(registry, run.settings);
      EXPECT_EQ(config.train.model, name);
      EXPECT_EQ(config.train.sequence_length, config.model.context);
      const std::map<std::string, OptionValue> fixed{{"mask_delay", std::int64_t{1}}, {"clip_norm", 1.0}, {"init_std", 0.02}};
      for (const OptionTable::Option& option : config.table().options()) {
        if (option.name == "density") densities.push_back(std::get<double>(option.value()));
        const auto expected = fixed.find(option.name);
        if (expected != fixed.end()) {
          EXPECT_EQ(option.value(), expected->second) << run.name << ": " << option.name;
        }
      }
    }
    EXPECT_THAT(densities, ::testing::IsSupersetOf({0.1, 0.01})) << name;
  }
}

}  // namespace
}  // namespace scape
