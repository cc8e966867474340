// Runs the device code of core/src/cuda on the CPU, for tests without a GPU: a fiber for each thread of a block, one block
// after the other. A fiber runs until it must wait for others; then the first one that can does. Some threads are thus as far
// ahead of others as barriers let them be, and doing so forwards and backwards brings missing barriers to light. Waiting for a
// thread that never comes is an error, and shared memory starts as garbage. See cuda/block.cuh and cuda/launch.cuh.
#pragma once

#include <ucontext.h>

#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "cuda/block.cuh"
#include "scape/error.hpp"
#include "scape/stream.hpp"

namespace scape::cuda::testing {

enum class Order { forward, backward };

/// The threads of one block and what they wait at.
class FiberBlock {
 public:
  FiberBlock() {
    for (Fiber& fiber : fibers_) fiber.stack.resize(stack_bytes);
  }

  /// Calls body(index) on a fiber for each thread of a block, and returns when all have returned.
  void run(const std::function<void(int)>& body, Order order) {
    body_ = &body;
    block_.arrived = 0;
    for (Warp& warp : warps_) warp.meeting.arrived = 0;
    for (int i = 0; i < block_threads; ++i) start(i);
    int alive = block_threads;
    for (int i = 0; i < block_threads; ++i) {
      running_ = order == Order::forward ? i : block_threads - 1 - i;
      Fiber& fiber = fiber_at(running_);
      if (fiber.done || fiber.waits()) continue;
      released_ = false;
      swapcontext(&scheduler_, &fiber.context);
      if (fiber.done) --alive;
      if (released_) i = -1;  // the first fiber that can run is always the next to run
    }
    require(alive == 0, ErrorKind::internal, "device code: threads wait for others that do not come");
  }

  void meet_block() { meet(block_, block_threads); }

  using Values = std::array<std::uint64_t, warp_threads>;
  /// Every thread of the running thread's warp gives a value and gets all 32.
  const Values& exchange(std::uint64_t value) {
    Warp& warp = warps_[static_cast<std::size_t>(running_ / warp_threads)];
    Values& values = warp.values[warp.meeting.round % 2];  // the next values do not overwrite these before all have read them
    values[static_cast<std::size_t>(running_ % warp_threads)] = value;
    meet(warp.meeting, warp_threads);
    return values;
  }

 private:
  static constexpr std::size_t stack_bytes = 64 << 10;
  struct Meeting {
    int arrived = 0;
    std::uint64_t round = 0;
  };
  struct Warp {
    Meeting meeting;
    std::array<Values, 2> values;
  };
  struct Fiber {
    ucontext_t context;
    std::vector<char> stack;
    bool done;
    const Meeting* meeting;  // waits for its round to end
    std::uint64_t round;
    [[nodiscard]] bool waits() const { return meeting != nullptr && meeting->round == round; }
  };

  Fiber& fiber_at(int index) { return fibers_[static_cast<std::size_t>(index)]; }

  void start(int index) {
    Fiber& fiber = fiber_at(index);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    fiber.context.uc_link = &scheduler_;
    fiber.done = false;
    fiber.meeting = nullptr;
    starting_ = this;
    makecontext(
        &fiber.context, [] { starting_->enter(); }, 0);
  }
  void enter() {
    const int index = running_;
    (*body_)(index);
    fiber_at(index).done = true;
  }
  void meet(Meeting& meeting, int threads) {
    if (++meeting.arrived == threads) {
      meeting.arrived = 0;
      ++meeting.round;
      released_ = true;
      return;
    }
    Fiber& fiber = fiber_at(running_);
    fiber.meeting = &meeting;
    fiber.round = meeting.round;
    swapcontext(&fiber.context, &scheduler_);
  }

  inline static FiberBlock* starting_ = nullptr;
  std::array<Fiber, block_threads> fibers_;
  ucontext_t scheduler_{};
  const std::function<void(int)>* body_ = nullptr;
  int running_ = 0;
  bool released_ = false;
  Meeting block_;
  std::array<Warp, block_warps> warps_{};
};

class FiberThread {
 public:
  FiberThread(FiberBlock& fibers, int index, int block, int blocks)
      : fibers_(fibers), index_(index), block_(block), blocks_(blocks) {}

  [[nodiscard]] int index() const { return index_; }
  [[nodiscard]] int block() const { return block_; }
  [[nodiscard]] int blocks() const { return blocks_; }
  void sync() const { fibers_.meet_block(); }
  void fence() const {}

  [[nodiscard]] std::uint32_t ballot(bool value) const {
    std::uint32_t bits = 0;
    const FiberBlock::Values& all = fibers_.exchange(value ? 1 : 0);
    for (std::size_t lane = 0; lane < all.size(); ++lane) bits |= static_cast<std::uint32_t>(all[lane]) << lane;
    return bits;
  }
  template <class T>
  [[nodiscard]] T shuffle_up(T value, int distance) const {
    return from(value, lane() < distance ? lane() : lane() - distance);
  }
  template <class T>
  [[nodiscard]] T shuffle_xor(T value, int distance) const {
    return from(value, lane() ^ distance);
  }

  template <class T>
  T atomic_add(T* to, T value) const {
    const T old = *to;
    *to += value;
    return old;
  }

  [[nodiscard]] int popcount(std::uint64_t word) const { return std::popcount(word); }
  [[nodiscard]] int lowest_bit(std::uint64_t word) const { return std::countr_zero(word); }
  [[nodiscard]] std::uint32_t bits(float value) const { return std::bit_cast<std::uint32_t>(value); }
  [[nodiscard]] float from_bits(std::uint32_t word) const { return std::bit_cast<float>(word); }

 private:
  [[nodiscard]] int lane() const { return index_ % warp_threads; }
  template <class T>
  [[nodiscard]] T from(T value, int lane) const {
    static_assert(sizeof(T) <= sizeof(std::uint64_t));
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(T));
    const std::uint64_t other = fibers_.exchange(bits)[static_cast<std::size_t>(lane)];
    std::memcpy(&value, &other, sizeof(T));
    return value;
  }

  FiberBlock& fibers_;
  int index_, block_, blocks_;
};

/// Few blocks, so that each has many turns at small sizes.
template <Order order>
struct FiberLauncher {
  static constexpr std::int64_t most_joint_blocks = 5;

  static Scratch* scratch(const Stream&) {
    static const auto scratch = std::make_unique<Scratch>();  // zeroed
    return scratch.get();
  }
  template <class Kernel>
  static void launch(const Kernel& kernel, std::int64_t blocks, const Stream&) {
    static FiberBlock fibers;
    const int count = static_cast<int>(blocks < most_blocks ? blocks : most_blocks);
    for (int i = 0; i < count; ++i) {
      const int block = order == Order::forward ? i : count - 1 - i;
      auto shared = std::make_unique_for_overwrite<typename Kernel::Shared>();
      std::memset(static_cast<void*>(shared.get()), 0xa5, sizeof(*shared));
      fibers.run([&](int index) { kernel(FiberThread(fibers, index, block, count), *shared); }, order);
    }
  }
  template <class Kernel>
  static void launch_joint(const Kernel& kernel, std::int64_t blocks, const Stream& stream) {
    launch(kernel, blocks < 1 ? 1 : blocks < most_joint_blocks ? blocks : most_joint_blocks, stream);
  }

 private:
  static constexpr std::int64_t most_blocks = 7;
};

}  // namespace scape::cuda::testing
