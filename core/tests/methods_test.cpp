// Choosing methods by name, options common to all of them, and the arithmetic of clipping and of counted bytes.
#include <gmock/gmock.h>

#include "scape/communicator.hpp"
#include "scape/registry.hpp"
#include "support/message_of.hpp"

namespace scape {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;

Registry core_registry() {
  Registry registry;
  register_core(registry);
  return registry;
}

TEST(Registry, KnowsTheMethodsOfTheCore) {
  const Registry registry = core_registry();
  EXPECT_NE(registry.optimizers.find("scape"), nullptr);
  EXPECT_NE(registry.rules.find("adamw"), nullptr);
  EXPECT_NE(registry.rules.find("adams"), nullptr);
  EXPECT_NE(registry.syncs.find("dense"), nullptr);
  EXPECT_EQ(registry.syncs.find("dens"), nullptr);
  const auto described = [](const auto& methods) {
    for (const auto& method : methods.all()) EXPECT_FALSE(method.name.empty() || method.summary.empty() || method.source.empty());
  };
  described(registry.optimizers);
  described(registry.rules);
  described(registry.syncs);
}

TEST(MethodChoice, NamesTheNearestMethodForAnUnknownOne) {
  const Registry registry = core_registry();
  EXPECT_THAT(message_of(ErrorKind::usage, [&] { const MethodChoice choice(registry, "scpae", ""); }),
              AllOf(HasSubstr("unknown optimizer 'scpae'"), HasSubstr("'scape'")));
  EXPECT_THAT(message_of(ErrorKind::usage, [&] { const MethodChoice choice(registry, "adamv", "dense"); }), HasSubstr("'adamw'"));
  EXPECT_THAT(message_of(ErrorKind::usage, [&] { const MethodChoice choice(registry, "adamw", "dnse"); }),
              AllOf(HasSubstr("unknown sync 'dnse'"), HasSubstr("'dense'")));
  EXPECT_THAT(message_of(ErrorKind::usage, [&] { const MethodChoice choice(registry, "", ""); }),
              HasSubstr("unknown optimizer ''"));
  EXPECT_THAT(message_of(ErrorKind::usage, [&] { const MethodChoice choice(registry, "scape", "topk"); }),
              AllOf(HasSubstr("'scape'"), HasSubstr("takes no sync"), HasSubstr("'topk'")));
}

TEST(MethodChoice, MakesEveryMethodWithItsOptions) {
  const Registry registry = core_registry();
  ParameterLayout layout;
  layout.add("w", {3, 5}, TensorRole::matrix);
  const MethodContext context{.layout = layout, .device = cpu_device};
  const auto options_of = [&](const char* optimizer, const char* sync) {
    MethodChoice choice(registry, optimizer, sync);
    OptionTable table;
    choice.declare(table);
    for (const char* common : {"beta1", "beta2", "epsilon", "weight_decay", "clip_norm"}) EXPECT_TRUE(table.contains(common));
    const auto made = choice.make(context);
    EXPECT_NE(made, nullptr);
    EXPECT_FALSE(made->state().empty());
    return table.options().size();
  };
  EXPECT_EQ(options_of("adamw", ""), options_of("adamw", "dense"));  // dense is the default sync
  for (const char* rule : {"adamw", "adams"}) options_of(rule, "dense");
  options_of("scape", "");
}

TEST(MethodChoice, RefusesOptionsThatCannotBeMeant) {
  const Registry registry = core_registry();
  MethodChoice choice(registry, "scape", "");
  OptionTable table;
  choice.declare(table);
  for (const char* text :
       {"density=0", "density=1.5", "density=-0.1", "mask_delay=-1", "mask_delay=65", "mask_refresh=0", "beta1=1", "beta2=-0.1",
        "epsilon=-1", "clip_norm=-1", "weight_decay=nan", "density_warmup_fraction=1.1", "density_warmup=cubic",
        "density_warmup_steps=-1", "mask_scope=all", "mask_statistic=norm", "mask_coding=zip", "bias_correction=adam"}) {
    EXPECT_THAT(message_of(ErrorKind::usage, [&] { table.set(parse_setting(text, "--set")); }), HasSubstr("is not accepted"))
        << text;
  }
  EXPECT_THAT(message_of(ErrorKind::usage, [&] { table.set(parse_setting("mask_dealy=2", "--set")); }), HasSubstr("'mask_delay'"));
  for (const char* text : {"density=1", "mask_delay=0", "mask_delay=64", "clip_norm=0", "beta1=0", "bias_correction=official"}) {
    EXPECT_NO_THROW(table.set(parse_setting(text, "--set"))) << text;
  }
}

TEST(Clipping, CoefficientBringsTheNormToTheLimit) {
  EXPECT_EQ(clip_coefficient(5, 1), 0.2);
  EXPECT_EQ(clip_coefficient(0.5, 1), 1);
  EXPECT_EQ(clip_coefficient(1, 1), 1);
  EXPECT_EQ(clip_coefficient(0, 1), 1);
  EXPECT_EQ(clip_coefficient(1e30, 0), 1);  // off
}

TEST(WeightDecay, IsForMatricesOnly) {
  const CommonOptions options{.weight_decay = 0.25};
  EXPECT_EQ(weight_decay_of(TensorRole::matrix, options), 0.25F);
  EXPECT_EQ(weight_decay_of(TensorRole::vector, options), 0);
}

TEST(WireBytes, AreThoseOfABandwidthOptimalAlgorithm) {
  constexpr double gigabyte = 1e9;
  EXPECT_DOUBLE_EQ(wire_bytes(Collective::all_reduce, gigabyte, 8), 1.75 * gigabyte);
  EXPECT_DOUBLE_EQ(wire_bytes(Collective::reduce_scatter, gigabyte, 8), 0.875 * gigabyte);
  EXPECT_DOUBLE_EQ(wire_bytes(Collective::all_gather, gigabyte, 8), 0.875 * gigabyte);
  EXPECT_DOUBLE_EQ(wire_bytes(Collective::all_to_all, gigabyte, 8), 0.875 * gigabyte);
  // A root sends S, spread over the ranks' mean as one copy to each of the others: (N−1)/N · S, as the header says.
  EXPECT_DOUBLE_EQ(wire_bytes(Collective::broadcast, gigabyte, 8), 0.875 * gigabyte);
  for (const Collective collective : all_collectives) {
    EXPECT_EQ(wire_bytes(collective, gigabyte, 1), 0) << to_string(collective);
    EXPECT_EQ(wire_bytes(collective, 0, 8), 0) << to_string(collective);
  }
}

TEST(Traffic, SumsAndSubtracts) {
  Traffic traffic;
  traffic[Collective::all_reduce] = {3, 100, 150, 0.5};
  traffic[Collective::broadcast] = {1, 8, 4, 0.25};
  const CollectiveTraffic total = traffic.total();
  EXPECT_EQ(total.calls, 4);
  EXPECT_EQ(total.payload_bytes, 108);
  EXPECT_EQ(total.wire_bytes, 154);
  EXPECT_EQ(total.seconds, 0.75);
  Traffic later = traffic;
  later[Collective::all_reduce] = {5, 160, 240, 0.75};
  const Traffic difference = later.since(traffic);
  EXPECT_EQ(difference[Collective::all_reduce].calls, 2);
  EXPECT_EQ(difference[Collective::all_reduce].payload_bytes, 60);
  EXPECT_EQ(difference[Collective::all_reduce].wire_bytes, 90);
  EXPECT_EQ(difference[Collective::all_reduce].seconds, 0.25);
  EXPECT_EQ(difference[Collective::broadcast].calls, 0);
}

}  // namespace
}  // namespace scape
