// Whole methods on a GPU against the CPU: one rank, no clipping (whose norm is a sum in another order), so every bit is the same.
// Where there is no GPU, queued CPU streams take its place.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "comm/transports.hpp"
#include "scape/registry.hpp"
#include "scape/rng.hpp"

namespace scape {
namespace {

ParameterLayout odd_layout() {
  ParameterLayout layout;
  layout.add("w1", {37, 11}, TensorRole::matrix);
  layout.add("b1", {37}, TensorRole::vector);
  layout.add("w2", {5, 3, 13}, TensorRole::matrix);
  layout.add("b2", {9}, TensorRole::vector);
  return layout;
}

struct Outcome {
  std::vector<float> params;
  std::vector<std::vector<std::byte>> state;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

// Twenty steps, one of them refused.
Outcome run(const std::string& optimizer, const std::vector<std::string>& settings, Device device) {
  Registry registry;
  register_core(registry);
  MethodChoice choice(registry, optimizer, "");
  OptionTable table;
  choice.declare(table);
  table.set(parse_setting("clip_norm=0", "test"));
  bool replica = false;
  for (const std::string& text : settings) {
    table.set(parse_setting(text, "test"));
    replica = replica || text == "offload=replica";
  }
  const ParameterLayout layout = odd_layout();
  const std::int64_t size = layout.size();
  constexpr std::int64_t steps = 20;
  const auto method = choice.make({.layout = layout, .device = device, .total_steps = steps});
  Communicator comm(detail::make_self_transport());
  const Stream stream(device), comm_stream(device);
  Telemetry telemetry;
  const Buffer<float> here(replica ? 0 : size, device), grads(size, device);
  const PinnedBuffer<float> away(replica ? size : 0, device);
  const Span<float> params = replica ? away.span() : here.span();
  std::vector<float> values(static_cast<std::size_t>(size));
  const auto draw = [&](std::uint64_t seed, Span<float> to) {
    Rng rng(seed);
    for (float& value : values) value = rng.normal();
    if (seed == 7) values[100] = NAN;
    copy(to, Span<const float>(std::span(values)), stream);
    stream.synchronize();
  };
  draw(99, params);
  for (std::int64_t t = 1; t <= steps; ++t) {
    draw(static_cast<std::uint64_t>(t), grads.span());
    const StepContext context{params, grads, layout, comm, stream, comm_stream, telemetry, t, 0.01};
    for (auto tensor = layout.tensors().rbegin(); tensor != layout.tensors().rend(); ++tensor)
      method->gradients_ready(context, tensor->range);
    EXPECT_EQ(method->step(context).applied, t != 7) << t;
    stream.synchronize();
    comm_stream.synchronize();
  }
  Outcome outcome;
  copy(Span<float>(std::span(values)), params, stream);
  stream.synchronize();
  outcome.params = values;
  for (const StateEntry& entry : method->state()) {
    outcome.state.emplace_back(static_cast<std::size_t>(entry.bytes.size()));
    scape::copy<std::byte>(std::span(outcome.state.back()), entry.bytes, stream);
    stream.synchronize();
  }
  return outcome;
}

TEST(Methods, GiveTheSameBitsOnAGpu) {
  const Device device = device_count(DeviceKind::cuda) > 0 ? Device{DeviceKind::cuda, 0} : cpu_device;
  const std::vector<std::pair<std::string, std::vector<std::string>>> methods{
      {"adamw", {}},
      {"adams", {"overlap=bucketed"}},
      {"zero1", {}},
      {"zero1", {"payload=int8", "parameter_payload=bf16"}},
      {"scape", {"density=0.1"}},
      {"scape", {"density=0.1", "mask_delay=0", "mask_refresh=3", "residual=decay"}},
      {"scape", {"density=0.1", "overlap=bucketed", "offload=residual", "offload_piece=64"}},
      {"scape", {"density=0.1", "payload=bf16", "offload=replica", "offload_piece=64"}},
      {"scape", {"density=0.1", "payload=fp8", "mask_statistic=update"}},
      {"scape", {"density=0.1", "backlog_scaling=sqrt", "mask_scope=global"}},
      {"scape", {"density=0.1", "normaliser=block", "mask_coding=bitmap"}},
      {"scape", {"density=0.1", "form=sharded", "offload=residual", "offload_piece=64"}},
      {"scape", {"density=0.1", "form=sharded", "payload=fp8", "offload=replica", "offload_piece=64"}},
      {"scape", {"density=0.1", "form=sharded", "sharded_payload=all_reduce", "mask_statistic=random"}},
  };
  for (const auto& [optimizer, settings] : methods) {
    std::string name = optimizer;
    for (const std::string& setting : settings) name += " " + setting;
    EXPECT_TRUE(run(optimizer, settings, cpu_device) == run(optimizer, settings, device)) << name;
  }
}

}  // namespace
}  // namespace scape
