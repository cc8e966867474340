// Settings from TOML files. A run's file is a flat list of options; a sweep's file adds [[run]] tables:
//
//   steps = 800                      # for every run
//   [[run]]
//   name = "scape"
//   optimizer = "scape"
//   density = [0.1, 0.01]            # a list makes one run for each value: scape-density=0.1, scape-density=0.01
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "scape/config.hpp"

namespace scape {

/// The options of a run's file; `origin` of each is "file:line". Throws Error(input) for what cannot be read, is no file or is not
/// TOML, naming line and column, and Error(usage) for a value that is not a number, text or true/false.
[[nodiscard]] std::vector<Setting> read_settings(const std::filesystem::path& path);

struct PlannedRun {
  std::string name;
  std::vector<Setting> settings;  // common ones first
};

/// The runs of a sweep's file, lists expanded (all combinations, the first list varies slowest). Throws as read_settings does,
/// and Error(usage) for a run without a name, an empty list, two runs of one name, or no run at all.
[[nodiscard]] std::vector<PlannedRun> read_sweep(const std::filesystem::path& path);

}  // namespace scape
