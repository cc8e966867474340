// Models in the form that the library transformers of Hugging Face reads and writes: a folder with config.json and the weights as
// model.safetensors, or as several such files with model.safetensors.index.json. Two of its classes are the family members that the
// presets are: GPT2LMHeadModel (layer norm, learned positions, GELU, biases) and LlamaForCausalLM (RMS norm, rotary positions,
// SwiGLU, no biases), both with tied embeddings or not. Every tensor there is a part of one here; GPT-2 keeps its matrices as [in,
// out]. Rotary positions pair the same elements, so no row moves. Values are not changed on the way out, and F32 comes back bit for
// bit.
#pragma once

#include <filesystem>

#include "data/tokenizer.hpp"
#include "exchange/saved_model.hpp"

namespace scape {

/// Writes `model` in F32 as a new folder `out`, with tokenizer.model if `tokenizer` is a SentencePiece model. The folder has its
/// name only when it is complete. Throws Error(usage) when `out` is in use or neither class can express the model, saying why, and
/// Error(input) when it cannot be written.
void export_hugging_face(const SavedModel& model, const Tokenizer* tokenizer, const std::filesystem::path& out);

/// Writes the model in the folder `from` as a checkpoint of step 0 in the folder `out`: parameters, settings, and tokenizer.model
/// if it is there. Reads F32, F16 and BF16. Throws Error(input) naming file and tensor or setting for what is missing, damaged,
/// superfluous or cannot be expressed here, and Error(usage) when `out` holds checkpoints.
void import_hugging_face(const std::filesystem::path& from, const std::filesystem::path& out);

}  // namespace scape
