// What a device's kernels must do, whatever the device: the tests of cuda_kernel_suite.cpp run for every KernelsUnderTest that a
// test program instantiates them with.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "scape/kernels.hpp"

namespace scape::testing {

struct KernelsUnderTest {
  std::string name;
  Device device;
  // Called only if the device is there.
  const UpdateKernels& (*update)(Device);
  const SparseKernels& (*sparse)(Device);
  const QuantKernels& (*quant)(Device);
};

/// Kernels, and a stream to run them on.
struct KernelBench {
  Device device;
  Stream stream;
  const UpdateKernels& update;
  const SparseKernels& sparse;
  const QuantKernels& quant;
};

class KernelSuite : public ::testing::TestWithParam<KernelsUnderTest> {
 protected:
  void SetUp() override {
    const KernelsUnderTest& kernels = GetParam();
    if (device_count(kernels.device.kind) == 0) GTEST_SKIP() << "no device " << to_string(kernels.device);
    const Stream stream = kernels.device.kind == DeviceKind::cpu ? Stream() : Stream(kernels.device);
    tested_.reset(new KernelBench{kernels.device, stream, kernels.update(kernels.device), kernels.sparse(kernels.device),
                                  kernels.quant(kernels.device)});
  }

  KernelBench& tested() { return *tested_; }
  KernelBench& oracle() { return oracle_; }

 private:
  std::unique_ptr<KernelBench> tested_;
  KernelBench oracle_{cpu_device, Stream(), update_kernels(cpu_device), sparse_kernels(cpu_device), quant_kernels(cpu_device)};
};

inline std::string kernels_name(const ::testing::TestParamInfo<KernelsUnderTest>& info) {
  return info.param.name;
}

}  // namespace scape::testing
