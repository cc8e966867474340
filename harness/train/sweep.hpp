// A sweep: the runs of a TOML file one after the other, each a process of its own under the MPI launcher, with its run file
// in one folder. Run again, it executes only what is not complete.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "scape/config.hpp"
#include "scape/registry.hpp"

namespace scape {

struct SweepOptions {
  std::filesystem::path file;     // TOML, see settings_file.hpp
  std::filesystem::path folder;   // run files go to folder/NAME.h5
  std::filesystem::path program;  // the scape program
  std::string launcher;           // command in front of it; "{ranks}" stands for the number of ranks
  int ranks = 4;
  bool overwrite = false;  // replace runs of other options
  int part = 0;            // of `parts`
  int parts = 1;
  std::vector<Setting> overrides;  // for every run, stronger than the file
};

/// "mpirun -n {ranks}", with more ranks than processors allowed where that is needed.
[[nodiscard]] std::string default_launcher(int ranks);

/// Checks every run before it starts the first. A run whose file is complete, has the planned steps and a finite last loss is
/// kept; one that was stopped goes on from its last checkpoint; one that is damaged is made again. One of other options or data,
/// begun or complete, or a complete one on another number of ranks, is Error(usage) unless `overwrite`: neither is it this sweep's
/// result, nor may it be lost. With `parts` > 1 only the runs part, part + parts, … of the file are this sweep's business: a job
/// array shares a sweep. Returns 0 if all runs are complete at the end, else the exit status of the first that failed; a signal
/// (TERM, USR1, INT) stops the run and the sweep, with the status of stopped. Throws Error(usage | input) for a sweep that cannot
/// be meant.
[[nodiscard]] int run_sweep(const Registry& registry, const SweepOptions& options);

}  // namespace scape
