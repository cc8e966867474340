// Everything that defines one training run: the trainer's own options, the model's settings and the chosen method's, resolved
// from settings that a TOML file and the command line give (later ones win).
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "data/token_file.hpp"
#include "model/config.hpp"
#include "scape/config.hpp"
#include "scape/registry.hpp"
#include "train/schedule.hpp"
#include "train/watchdog.hpp"

namespace scape {

struct TrainOptions {
  std::string data;                   // what TokenFile::open() takes
  std::string model = "gpt-nano";     // preset; its settings are options, too
  std::string optimizer = "scape";    // complete method or update rule
  std::string sync;                   // gradient synchronisation of a rule; "" is dense
  std::string device = "cpu";         // cpu | cuda
  std::string communicator = "auto";  // make_communicator
  bool communication_stream = true;   // false: collectives run on the compute stream
  std::int64_t threads = 0;           // of a rank's computing; 0: OMP_NUM_THREADS, else the node's processors shared by its ranks
  std::int64_t steps = 200;
  std::int64_t global_batch = 32;    // sequences per step, over all ranks
  std::int64_t micro_batch = 0;      // sequences per forward pass on a rank; 0: all of the rank's at once
  std::int64_t sequence_length = 0;  // 0: the model's context
  LearningRateSchedule schedule;
  std::int64_t validate_every = 50;      // steps; also before the first and after the last step
  std::int64_t validation_batches = 16;  // of global_batch sequences; fewer when the split is smaller
  std::int64_t diagnostics_every = 0;    // steps; 0: no diagnostics
  std::int64_t most_skipped_in_a_row = 10;
  std::int64_t checkpoint_every = 0;  // steps; 0: only at the end
  bool checkpoint_last = true;        // after the last step, too; a run that is stopped always writes one
  std::int64_t checkpoint_keep = 2;   // newest ones that stay
  double peak_teraflops = 0;          // of the processor that a rank computes on, in the model's type; 0: not known
  double max_minutes = 0;             // of wall time, then the run stops; 0: no limit
  double job_margin_seconds = 120;    // before the end of the batch job, see TimeLimit
  WatchdogOptions watchdog;
  std::int64_t seed = 1;  // of data order and method; of the model as well unless init_seed is given

  void declare(OptionTable& table);
  /// Whether a run may go on from a checkpoint with another value of this option: it says where and how the run is done, not what
  /// it computes.
  [[nodiscard]] static bool is_operational(std::string_view option);
};

/// The tokens that option `data` names. Throws Error(usage) if it names none.
[[nodiscard]] TokenFile open_data(const TrainOptions& options);
/// What checkpoints and run files say of the data: the names and texts of facts that are other for other tokens.
[[nodiscard]] std::map<std::string, std::string> facts_of(const TokenFileInfo& data);

/// A resolved run. Not movable: the table refers to its members.
class RunConfig {
 public:
  /// Throws Error(usage), naming the origin of the setting, for anything unknown or unacceptable; for an option of another
  /// method the message names that method.
  RunConfig(const Registry& registry, std::span<const Setting> settings);
  RunConfig(const RunConfig&) = delete;
  RunConfig& operator=(const RunConfig&) = delete;

  TrainOptions train;
  ModelConfig model;
  bool vocab_given = false;  // else the tokens decide

  [[nodiscard]] const MethodChoice& method() const { return *method_; }
  /// All options with their values, in the order of their declaration.
  [[nodiscard]] const OptionTable& table() const { return table_; }
  /// All options as text, by name.
  [[nodiscard]] std::map<std::string, std::string> texts() const;
  /// "learning_rate=0.01 there, 0.02 here" for the options that a checkpoint with `saved` options has otherwise and that are not
  /// operational; empty: the run can go on from it.
  [[nodiscard]] std::string differences(const std::map<std::string, std::string>& saved) const;
  /// The same for a run file's attributes, and for its data. What a complete one says depends on the validation options, too.
  [[nodiscard]] std::string differences_from_run_file(const std::map<std::string, std::string>& attributes,
                                                      const TokenFileInfo& data, bool complete) const;
  /// "scape density=0.01": the method and what was set of it, for people.
  [[nodiscard]] std::string label() const;

 private:
  OptionTable table_;
  OptionTable method_table_;  // the method's options alone
  std::unique_ptr<MethodChoice> method_;
};

}  // namespace scape
