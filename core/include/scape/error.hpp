// The one exception type of the suite. An Error says in one line what is wrong and where, and its kind decides the exit
// status of the `scape` program, so that scripts and batch jobs can tell a typo from a damaged file or a dead rank.
#pragma once

#include <stdexcept>
#include <string>

namespace scape {

enum class ErrorKind {
  internal,       ///< a broken invariant: a bug in this suite                                exit status 1
  usage,          ///< an option, argument or call that cannot be meant                        exit status 2
  input,          ///< a file or data set that cannot be used; the message names file and byte exit status 3
  stopped,        ///< stopped on request (signal), state saved                                exit status 4
  communication,  ///< a rank or a collective failed                                          exit status 5
  diverged,       ///< training produced non-finite gradients too often                       exit status 6
};

/// Exit status documented for `kind` (see ErrorKind).
constexpr int exit_status(ErrorKind kind) {
  return 1 + static_cast<int>(kind);
}

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  [[nodiscard]] ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

/// Throws Error(kind, message) unless `condition` holds.
inline void require(bool condition, ErrorKind kind, const char* message) {
  if (!condition) throw Error(kind, message);
}

}  // namespace scape
