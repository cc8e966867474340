// The conventions of nccl-tests, with the numbers of its documentation: S = 1 GB in 1 s on 8 ranks.
#include "bandwidth.hpp"

#include <gtest/gtest.h>

namespace scape::bench {

namespace {

TEST(Bandwidth, BusFactorsOfEightRanks) {
  EXPECT_DOUBLE_EQ(bus_factor(Collective::all_reduce, 8), 1.75);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::reduce_scatter, 8), 0.875);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::all_gather, 8), 0.875);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::all_to_all, 8), 0.875);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::broadcast, 8), 1);
}

TEST(Bandwidth, OneRankUsesNoLink) {
  for (const Collective collective : all_collectives) {
    EXPECT_DOUBLE_EQ(bus_factor(collective, 1), collective == Collective::broadcast ? 1 : 0) << to_string(collective);
  }
}

TEST(Message, SizeIsTheTotalOverTheRanks) {
  for (const Collective collective : {Collective::reduce_scatter, Collective::all_gather, Collective::all_to_all}) {
    const auto message = message_of(collective, 1024, 8);
    ASSERT_TRUE(message) << to_string(collective);
    EXPECT_EQ(message->elements, 256);
    EXPECT_EQ(message->elements_block, 32);
    EXPECT_DOUBLE_EQ(message->bytes(), 1024);
  }
  for (const Collective collective : {Collective::all_reduce, Collective::broadcast}) {
    const auto message = message_of(collective, 1024, 8);
    ASSERT_TRUE(message) << to_string(collective);
    EXPECT_EQ(message->elements, 256);
    EXPECT_EQ(message->elements_block, 256);
  }
}

TEST(Message, IsRoundedDownToEqualBlocks) {
  const auto message = message_of(Collective::all_gather, 1000, 3);
  ASSERT_TRUE(message);
  EXPECT_EQ(message->elements_block, 83);
  EXPECT_DOUBLE_EQ(message->bytes(), 996);
}

TEST(Message, NothingForARankIsNotAvailable) {
  EXPECT_FALSE(message_of(Collective::reduce_scatter, 12, 4));
  EXPECT_FALSE(message_of(Collective::all_gather, 12, 4));
  EXPECT_FALSE(message_of(Collective::all_to_all, 12, 4));
  EXPECT_TRUE(message_of(Collective::all_gather, 16, 4));
  EXPECT_TRUE(message_of(Collective::all_reduce, 4, 4));
  EXPECT_FALSE(message_of(Collective::broadcast, 3, 4));
}

}  // namespace

}  // namespace scape::bench
