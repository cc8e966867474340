// Option tables: what is accepted, and what a person is told otherwise.
#include "scape/config.hpp"

#include <gmock/gmock.h>

#include "support/message_of.hpp"

namespace scape {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

enum class Policy { keep, none };

struct Options {
  double density = 0.01;
  std::int64_t delay = 1;
  bool overlap = false;
  Policy policy = Policy::keep;
  OptionTable table;

  Options() {
    table.add("density", density, "kept fraction", {.max = 1, .above = 0});
    table.add("mask_delay", delay, "steps", {.min = 0});
    table.add("overlap", overlap, "overlap");
    table.add("residual", policy, "policy", {{"keep", Policy::keep}, {"none", Policy::none}});
  }
  void set(const std::string& assignment) { table.set(parse_setting(assignment, "--set")); }
  std::string error_of(const std::string& assignment) {
    return testing::message_of(ErrorKind::usage, [&] { set(assignment); });
  }
};

TEST(OptionTable, SetsEveryKindOfOption) {
  Options options;
  for (const char* text : {"density=1e-3", "mask_delay=4", "overlap=true", "residual=none"}) EXPECT_NO_THROW(options.set(text));
  EXPECT_EQ(options.density, 1e-3);
  EXPECT_EQ(options.delay, 4);
  EXPECT_TRUE(options.overlap);
  EXPECT_EQ(options.policy, Policy::none);
  EXPECT_EQ(to_string(options.table.options()[0].value()), "0.001");
  EXPECT_EQ(to_string(options.table.options()[3].value()), "none");
}

TEST(OptionTable, RefusesWithTheReasonAndChangesNothing) {
  Options options;
  EXPECT_THAT(options.error_of("densty=0.1"), AllOf(HasSubstr("--set"), HasSubstr("did you mean 'density'")));
  EXPECT_THAT(options.error_of("density=0"), HasSubstr("number in (0, 1]"));
  for (const char* text : {"density=nan", "density=0.1x", "density=", "density=inf"})
    EXPECT_THAT(options.error_of(text), HasSubstr("is not accepted"));
  EXPECT_THAT(options.error_of("mask_delay=1.5"), HasSubstr("whole number of at least 0"));
  EXPECT_THAT(options.error_of("residual=drop"), HasSubstr("keep | none"));
  EXPECT_THAT(options.error_of("density"), HasSubstr("name=value"));
  EXPECT_EQ(options.density, 0.01);
  EXPECT_EQ(options.delay, 1);
}

}  // namespace
}  // namespace scape
