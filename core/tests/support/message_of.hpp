// What a test asks of a call that must be refused: an Error of the right kind, whose message it then reads.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "scape/error.hpp"

namespace scape::testing {

/// The message, one line, of the Error of `kind` that `call` throws; a failure when it does not.
template <class Call>
std::string message_of(ErrorKind kind, const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << "more than one line: " << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no Error";
  return {};
}

}  // namespace scape::testing
