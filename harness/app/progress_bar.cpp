#include "progress_bar.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

namespace scape {

ProgressBar::ProgressBar(std::string unit, double size)
    : unit_(std::move(unit)), size_(size), terminal_(isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() {
  if (terminal_ && shown_) fmt::print(stderr, "\r\x1b[2K");
}

void ProgressBar::show(std::int64_t done, std::int64_t total, std::int64_t work) {
  const auto now = Clock::now();
  if (total <= 0 || now - last_ < (terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(30000))) return;
  last_ = now;
  shown_ = true;
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  const double fraction = static_cast<double>(done) / static_cast<double>(total);
  const auto left = static_cast<std::int64_t>(fraction > 0 ? seconds * (1 - fraction) / fraction : 0);
  const std::string numbers =
      fmt::format("{:3.0f}%  {:.1f} {}  {}:{:02}:{:02} left", 100 * fraction, static_cast<double>(work) / seconds / size_, unit_,
                  left / 3600, left / 60 % 60, left % 60);
  if (terminal_) {
    constexpr int width = 30;
    const auto full = static_cast<std::size_t>(fraction * width);
    fmt::print(stderr, "\r\x1b[2K[{:<{}}] {}", std::string(full, '#'), width, numbers);
  } else {
    fmt::print(stderr, "{}\n", numbers);
  }
}

}  // namespace scape
