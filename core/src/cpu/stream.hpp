// CPU streams: immediate (runs on the caller) and queued (a worker thread), and the events between them.
#pragma once

#include <memory>

#include "backend.hpp"

namespace scape::detail {

[[nodiscard]] std::shared_ptr<StreamBackend> make_queued_stream();
[[nodiscard]] std::shared_ptr<EventBackend> make_cpu_event();

}  // namespace scape::detail
