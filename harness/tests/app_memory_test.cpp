// What `scape info model` prints is what is really allocated: models exactly, methods but for roundings.
#include <gtest/gtest.h>

#include "app/method_memory.hpp"
#include "model/model.hpp"
#include "ops/bf16.hpp"
#include "scape/baselines.hpp"

namespace scape {
namespace {

// The method built for this very layout: bytes of each state entry, and of all that it allocates.
std::vector<MemoryItem> really_allocated(const MethodChoice& method, const ParameterLayout& layout, int ranks) {
  const std::int64_t before = detail::allocated_bytes();
  const auto built = method.make({.layout = layout, .device = cpu_device, .ranks = ranks});
  const auto all = static_cast<double>(detail::allocated_bytes() - before);
  std::vector<MemoryItem> items;
  for (const StateEntry& entry : built->state()) items.push_back({entry.name, static_cast<double>(entry.bytes.size())});
  items.push_back({"all", all});
  return items;
}

void expect_agreement(const Registry& registry, const std::string& optimizer, const std::string& sync,
                      const std::vector<std::string>& settings = {}) {
  MethodChoice method(registry, optimizer, sync);
  OptionTable table;
  method.declare(table);
  for (const std::string& setting : settings) table.set(parse_setting(setting, "test"));
  for (const char* model : {"gpt-nano", "llama-nano"}) {
    const ParameterLayout layout = parameter_layout(model_config(model));
    for (const int ranks : {1, 3, 8}) {
      SCOPED_TRACE(optimizer + " " + sync + " " + model + " on " + std::to_string(ranks));
      std::vector<MemoryItem> reckoned = method_memory(method, layout, ranks);
      double all = 0;
      for (const MemoryItem& item : reckoned) all += item.bytes;
      reckoned.back() = {"all", all};  // in place of the working buffers
      for (const MemoryItem& real : really_allocated(method, layout, ranks)) {
        const auto found =
            std::find_if(reckoned.begin(), reckoned.end(), [&](const MemoryItem& item) { return item.name == real.name; });
        ASSERT_NE(found, reckoned.end()) << real.name;
        const double rounding = real.name == "all" ? 0.04 : 0.005;  // chunks of 48 keep another share than those of 64
        EXPECT_NEAR(found->bytes, real.bytes, rounding * real.bytes + 1024) << real.name;
      }
    }
  }
}

TEST(MethodMemory, IsWhatEveryRegisteredMethodAllocates) {
  Registry registry;
  register_core(registry);
  register_baselines(registry);
  for (const auto& optimizer : registry.optimizers.all()) expect_agreement(registry, optimizer.name, "");
  for (const auto& rule : registry.rules.all()) expect_agreement(registry, rule.name, "dense");
  for (const auto& sync : registry.syncs.all()) expect_agreement(registry, "adamw", sync.name);
  expect_agreement(registry, "scape", "", {"form=sharded", "mask_delay=4"});
  expect_agreement(registry, "scape", "", {"payload=fp8"});
  expect_agreement(registry, "adams", "topk", {"density=0.1", "momentum_correction=0.9"});
}

TEST(ModelMemory, IsWhatAModelAllocates) {
  for (const std::string variant : {"gpt-nano", "llama-nano", "llama-nano recompute", "gpt-nano bf16"}) {
    ModelConfig config = model_config(variant.substr(0, variant.find(' ')));
    if (variant.ends_with("recompute")) config.recompute = Recompute::layer;
    if (variant.ends_with("bf16")) config.compute = Compute::bf16;
    if (config.compute == Compute::bf16 && !ops::bf16_products(cpu_device)) continue;
    const std::int64_t before = detail::allocated_bytes();
    const auto model = make_model(config);
    const std::vector<std::int32_t> ids(static_cast<std::size_t>(3 * 50));
    const Span<const std::int32_t> span{std::span<const std::int32_t>(ids)};
    model->forward_backward({span, span, 3, 50}, 1.0, Stream());
    const ModelMemory memory = model_memory(config, 3, 50);
    EXPECT_EQ(memory.parameters, 4 * model->layout().size());
    EXPECT_EQ(memory.gradients, 4 * model->layout().size());
    EXPECT_NEAR(static_cast<double>(memory.parameters + memory.gradients + memory.narrow_weights + memory.activations),
                static_cast<double>(detail::allocated_bytes() - before), 64)
        << variant;
  }
}

}  // namespace
}  // namespace scape
