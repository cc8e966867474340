// The device code of the CUDA kernels, run on the CPU: threads forwards and backwards (see support/fiber_device.hpp).
#include "cuda/quant.cuh"
#include "cuda/sparse.cuh"
#include "cuda/update.cuh"
#include "support/fiber_device.hpp"
#include "support/kernel_suite.hpp"

namespace scape::testing {

namespace {

using cuda::testing::FiberLauncher;
using cuda::testing::Order;

template <class Interface, template <class> class Kernels, Order order>
const Interface& kernels(Device) {
  static const Kernels<FiberLauncher<order>> instance;
  return instance;
}

template <Order order>
KernelsUnderTest under_test(const char* name) {
  return {name, cpu_device, kernels<UpdateKernels, cuda::DeviceUpdateKernels, order>,
          kernels<SparseKernels, cuda::DeviceSparseKernels, order>, kernels<QuantKernels, cuda::DeviceQuantKernels, order>};
}

INSTANTIATE_TEST_SUITE_P(Fibers, KernelSuite,
                         ::testing::Values(under_test<Order::forward>("forward"), under_test<Order::backward>("backward")),
                         kernels_name);

// The executor itself: it must notice what it is there to notice.
struct WaitsForNobody {
  struct Shared {};
  template <class Thread>
  void operator()(const Thread& t, Shared&) const {
    if (t.index() != 7) t.sync();
  }
};

struct LacksBarrier {
  int* result;
  struct Shared {
    int value;
  };
  template <class Thread>
  void operator()(const Thread& t, Shared& shared) const {
    if (t.index() == 100) shared.value = 1;
    if (t.index() == 50 || t.index() == 150) result[t.index() / 100] = shared.value;
  }
};

TEST(FiberDevice, NoticesABarrierThatNotAllThreadsReach) {
  EXPECT_THROW(FiberLauncher<Order::forward>::launch(WaitsForNobody{}, 1, Stream()), Error);
}

TEST(FiberDevice, ShowsAMissingBarrierInOneOrderOrTheOther) {
  int forward[2];
  int backward[2];
  FiberLauncher<Order::forward>::launch(LacksBarrier{forward}, 1, Stream());
  FiberLauncher<Order::backward>::launch(LacksBarrier{backward}, 1, Stream());
  EXPECT_NE(forward[0], 1);
  EXPECT_EQ(forward[1], 1);
  EXPECT_EQ(backward[0], 1);
  EXPECT_NE(backward[1], 1);
}

}  // namespace

}  // namespace scape::testing
