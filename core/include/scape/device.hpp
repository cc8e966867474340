// A place where memory lives and kernels run. The CPU is device {cpu, 0}; CUDA devices are numbered as the runtime does.
#pragma once

#include <string>

namespace scape {

enum class DeviceKind { cpu, cuda };

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

inline constexpr Device cpu_device{DeviceKind::cpu, 0};

/// Devices of this kind that this process can use: 1 for the CPU; 0 for CUDA without a GPU or in a build without CUDA.
[[nodiscard]] int device_count(DeviceKind kind);

/// Human-readable model name, for example "AMD EPYC" or "NVIDIA H200". Throws Error(usage) for a device that is not there.
[[nodiscard]] std::string device_name(Device device);

/// "cpu", "cuda:0", …
[[nodiscard]] std::string to_string(Device device);

}  // namespace scape
