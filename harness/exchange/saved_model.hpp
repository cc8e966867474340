// A trained model out of a checkpoint: its settings, its parameters and the tokenizer that it was trained with. Nothing of the
// method, the ranks or the run is needed.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "data/token_file.hpp"
#include "model/model.hpp"

namespace scape {

struct SavedModel {
  Checkpoint checkpoint;
  ModelConfig config;

  /// `path`: a checkpoint or a folder of them, of which the last is taken. Reads all of it once to verify its checksums. Throws
  /// Error(input) naming the file and what is wrong.
  [[nodiscard]] static SavedModel open(const std::filesystem::path& path);

  /// An option of the run that made it; empty when the checkpoint does not say it, as one of `scape import`.
  [[nodiscard]] std::string option(const std::string& name) const;
  /// The same for a whole number; `otherwise` when the checkpoint does not say it.
  [[nodiscard]] std::int64_t number(const std::string& name, std::int64_t otherwise) const;
  /// All parameters, in the coordinates of parameter_layout(config).
  [[nodiscard]] std::vector<float> params() const;
  /// The model, on the CPU.
  [[nodiscard]] std::unique_ptr<Model> load() const;

  /// What `data` names, or, if it is empty, the tokens of the run. Throws Error(usage) if neither names any, and Error(input) when
  /// an id may be outside the model's vocabulary or the run's name now stands for other tokens.
  [[nodiscard]] TokenFile tokens(const std::string& data) const;
  /// The tokenizer `name`; if that is empty, the one in the checkpoint, which `scape import` puts there, or else the one that made
  /// tokens(data). Throws as tokens() does.
  [[nodiscard]] Tokenizer tokenizer(const std::string& name, const std::string& data) const;
};

/// Writes a model alone as a checkpoint of step 0 in the folder `out`, and returns the checkpoint's own folder. `facts` go into the
/// manifest. Throws Error(usage) when `out` holds checkpoints and Error(input) when it cannot be written.
std::filesystem::path save_model(const ModelConfig& config, std::span<float> params, const Texts& facts,
                                 const std::filesystem::path& out);

/// The file of a SentencePiece model in a checkpoint of `scape import` and in a folder of `scape export`.
inline constexpr const char* tokenizer_file = "tokenizer.model";

}  // namespace scape
