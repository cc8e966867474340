// What the tests of the data share: a folder that goes with the test, the errors that bad input must give, packed text, a small
// tokenizer.
#pragma once

#include <string>

#include "message_of.hpp"
#include "temporary_folder.hpp"

namespace scape::testing {

/// The text, packed.
[[nodiscard]] std::string gzip(const std::string& text);
[[nodiscard]] std::string zstd(const std::string& text);

/// A SentencePiece model of 300 ids (byte-pair encoding; what it never saw becomes bytes; 2 ends a document), trained on the spot.
[[nodiscard]] const std::string& small_model();

}  // namespace scape::testing
