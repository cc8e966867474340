// The safetensors format against bytes written by hand, and checkpoints of several ranks written and read in one process.
#include <gmock/gmock.h>

#include <cstring>
#include <filesystem>

#include "checkpoint/checkpoint_writer.hpp"
#include "message_of.hpp"
#include "temporary_folder.hpp"

namespace scape {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing::read_bytes;
using testing::TemporaryFolder;
using testing::write_bytes;

template <class Work>
std::string refusal(const Work& work) {
  return testing::message_of(ErrorKind::input, work);
}

// A file as the format's definition has it.
std::string safetensors(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + data;
}

TEST(Safetensors, ReadsAFileMadeByHand) {
  const TemporaryFolder folder;
  write_bytes(folder / "a", safetensors(R"({"__metadata__":{"by":"hand"},"x":{"dtype":"F32","shape":[1,2],"data_offsets":[2,10]},)"
                                        R"("h":{"dtype":"BF16","shape":[],"data_offsets":[0,2]}})",
                                        "ab12345678"));
  const SafetensorsFile file = SafetensorsFile::open(folder / "a");
  EXPECT_EQ(file.metadata(), (Metadata{{"by", "hand"}}));
  const StoredTensor* x = file.find("x");
  ASSERT_NE(x, nullptr);
  EXPECT_EQ(x->dtype, "F32");
  EXPECT_EQ(x->shape, (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(std::memcmp(x->bytes.data(), "12345678", 8), 0);
  EXPECT_EQ(file.find("h")->bytes.size(), 2U);
  EXPECT_EQ(file.find("y"), nullptr);
}

TEST(Safetensors, WritesWhatItReads) {
  const TemporaryFolder folder;
  const std::vector<float> values{1, -0.0F, 3e38F};
  const std::vector<StoredTensor> tensors{{"a \"quoted\"\n", "F32", {3}, std::as_bytes(std::span(values))},
                                          {"none", "U8", {0, 5}, {}}};
  const FileSummary written = write_safetensors(folder / "f", tensors, {{"k\\", "v"}});
  const SafetensorsFile file = SafetensorsFile::open(folder / "f");
  EXPECT_EQ(file.metadata(), (Metadata{{"k\\", "v"}}));
  ASSERT_EQ(file.tensors().size(), 2U);
  EXPECT_EQ(file.tensors()[0].name, tensors[0].name);
  EXPECT_EQ(std::memcmp(file.tensors()[0].bytes.data(), values.data(), 12), 0);
  EXPECT_EQ(written.bytes, static_cast<std::int64_t>(fs::file_size(folder / "f")));
  EXPECT_EQ(file.summary().crc, written.crc);
  std::uint64_t header = 0;
  std::memcpy(&header, read_bytes(folder / "f").data(), 8);
  EXPECT_EQ(header % 8, 0U);  // the data is aligned
}

TEST(Safetensors, RefusesDamageAndSaysWhat) {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& bytes) {
    write_bytes(folder / "bad", bytes);
    return refusal([&] { (void)SafetensorsFile::open(folder / "bad"); });
  };
  EXPECT_THAT(refusal([&] { (void)SafetensorsFile::open(folder / "none"); }), HasSubstr("none: cannot be opened"));
  EXPECT_THAT(refused("abc"), HasSubstr("it has 3 bytes"));
  EXPECT_THAT(refused(safetensors("{}", "").substr(0, 9)), HasSubstr("cut short"));
  EXPECT_THAT(refused(safetensors("{\"x\":", "")), HasSubstr("cannot be read"));
  EXPECT_THAT(refused(safetensors("{\"x\":{\"dtype\":\"F32\"}}", "")), HasSubstr("cannot be read"));
  const auto one = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return R"({"x":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  EXPECT_THAT(refused(safetensors(one("F32", "[1]", "[0,4]"), "123")), HasSubstr("not in the file"));
  EXPECT_THAT(refused(safetensors(one("F32", "[1]", "[4,0]"), "1234")), HasSubstr("not in the file"));
  EXPECT_THAT(refused(safetensors(one("F32", "[2]", "[0,4]"), "1234")), HasSubstr("its shape and type want 2 elements of 4"));
  EXPECT_THAT(refused(safetensors(one("F32", "[4611686018427387904,8]", "[0,4]"), "1234")), HasSubstr("cannot be meant"));
  EXPECT_THAT(refused(safetensors(one("Q5", "[4]", "[0,4]"), "1234")), HasSubstr("unknown type 'Q5'"));
  EXPECT_THAT(refused(safetensors(one("U8", "[3]", "[0,3]"), "1234")), HasSubstr("belong to none"));
  EXPECT_THAT(refused(safetensors(one("U8", "[3]", "[1,4]"), "1234")), HasSubstr("gap at byte 0"));
}

// The state of rank r of N: a replicated vector of 7, a shard of an 11 vector, 3 numbers of the rank's own.
struct RankState {
  std::vector<float> params{1, 2, 3, 4, 5, 6, 7};
  std::vector<std::int64_t> shard;
  std::vector<float> residual;
  RankState(std::int64_t rank, std::int64_t ranks) {
    for (std::int64_t i = 11 * rank / ranks; i < 11 * (rank + 1) / ranks; ++i) shard.push_back(100 + i);
    for (std::int64_t i = 0; i < 3; ++i) residual.push_back(static_cast<float>(rank * 10 + i) / 8);
  }
  std::vector<StateEntry> entries() {
    return {state_entry("params", StateScope::replicated, Span<float>(std::span(params))),
            state_entry("m/shard", StateScope::shard, Span<std::int64_t>(std::span(shard))),
            state_entry("residual", StateScope::per_rank, Span<float>(std::span(residual)))};
  }
};

std::vector<CheckpointWriter::Outcome> write(const fs::path& folder, std::int64_t step, std::int64_t ranks, std::int64_t keep = 9) {
  const CheckpointInfo info{.ranks = ranks, .options = {{"density", "0.01"}}, .facts = {{"data", "a \"text\""}}};
  std::vector<std::unique_ptr<CheckpointWriter>> writers;
  std::vector<CheckpointWriter::Part> parts;
  for (int rank = 0; rank < ranks; ++rank) {
    RankState state(rank, ranks);
    writers.push_back(std::make_unique<CheckpointWriter>(folder, keep, info, rank));
    if (rank == 0) writers[0]->prepare(1000);
    writers.back()->begin(step, state.entries(), Stream());
    EXPECT_TRUE(writers.back()->busy());
  }
  for (const auto& writer : writers) parts.push_back(writer->part(true));
  std::vector<CheckpointWriter::Outcome> outcomes;
  for (const auto& writer : writers) outcomes.push_back(writer->finish(parts));
  return outcomes;
}

TEST(Checkpoint, ComesBackOnOneRankAsItWasOnMany) {
  const TemporaryFolder folder;
  const auto outcomes = write(folder.path(), 17, 3);
  EXPECT_EQ(outcomes[0].error, "");
  EXPECT_GT(outcomes[0].bytes, 7 * 4 + 11 * 8 + 3 * 12);
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  EXPECT_EQ(checkpoint.folder().filename(), "step-00000017");
  EXPECT_EQ(checkpoint.info().step, 17);
  EXPECT_EQ(checkpoint.info().ranks, 3);
  EXPECT_EQ(checkpoint.info().options.at("density"), "0.01");
  EXPECT_EQ(checkpoint.info().facts.at("data"), "a \"text\"");
  checkpoint.verify(0, 1);

  RankState loaded(0, 1);
  const RankState expected(0, 1);
  loaded.params.assign(7, 0);
  loaded.shard.assign(11, 0);
  const auto self = make_communicator("self", MPI_COMM_SELF, cpu_device);
  checkpoint.load(loaded.entries(), *self);
  EXPECT_EQ(loaded.params, expected.params);
  EXPECT_EQ(loaded.shard, expected.shard);
  for (std::size_t i = 0; i < 3; ++i) {  // the mean over the ranks stays: 1/3 · (e_0 + e_1 + e_2)
    EXPECT_FLOAT_EQ(loaded.residual[i], (10.0F + static_cast<float>(i)) / 8);
  }
  std::vector<float> alone(7);
  checkpoint.read(state_entry("params", StateScope::replicated, Span<float>(std::span(alone))));
  EXPECT_EQ(alone, expected.params);
}

TEST(Checkpoint, KeepsTheNewestAndReplacesWhatHasItsName) {
  const TemporaryFolder folder;
  for (const std::int64_t step : {10, 20, 30, 20}) write(folder.path(), step, 2, 2);
  std::vector<std::int64_t> steps;
  for (const auto& [step, path] : checkpoints_in(folder.path())) steps.push_back(step);
  EXPECT_EQ(steps, (std::vector<std::int64_t>{20, 30}));
  for (const auto& entry : fs::directory_iterator(folder.path())) EXPECT_FALSE(entry.path().filename().string().starts_with("."));
}

TEST(Checkpoint, WhatWasNotFinishedDoesNotCount) {
  const TemporaryFolder folder;
  {
    RankState state(0, 2);
    CheckpointWriter writer(folder.path(), 2, {.ranks = 2}, 0);
    writer.begin(5, state.entries(), Stream());  // and the process dies here
  }
  EXPECT_THAT(refusal([&] { (void)Checkpoint::open(folder.path()); }), HasSubstr("holds no checkpoint"));
  CheckpointWriter(folder.path(), 2, {.ranks = 2}, 0).prepare(0);
  EXPECT_FALSE(fs::exists(folder.path()));
}

TEST(Checkpoint, AFolderHasOneWriter) {
  const TemporaryFolder folder;
  CheckpointWriter second(folder.path(), 2, {}, 0);
  {
    CheckpointWriter first(folder.path(), 2, {}, 0);
    first.prepare(0);
    EXPECT_THAT(refusal([&] { second.lock(); }), HasSubstr(folder.path().string() + ": another process has it open"));
    EXPECT_TRUE(fs::exists(folder.path()));
  }
  second.lock();
}

TEST(Checkpoint, AFailedPartIsToldAndLeavesTheOldOnes) {
  const TemporaryFolder folder;
  write(folder.path(), 1, 2);
  write_bytes(folder / ".unfinished-step-00000002", "a file where the folder should be");
  const CheckpointInfo info{.ranks = 2};
  CheckpointWriter first(folder.path(), 2, info, 0);
  RankState state(0, 2);
  first.begin(2, state.entries(), Stream());
  const CheckpointWriter::Part part = first.part(true);
  EXPECT_EQ(part.state, CheckpointWriter::Part::State::failed);
  const auto outcome = first.finish(std::vector{part, CheckpointWriter::Part{CheckpointWriter::Part::State::written, {}}});
  EXPECT_NE(outcome.error, "");
  EXPECT_EQ(Checkpoint::open(folder.path()).info().step, 1);
}

// Case 10: nothing is half-loaded, and the message names what is wrong.
TEST(Checkpoint, RefusesWhatIsDamagedMissingOrOneTooMany) {
  const TemporaryFolder folder;
  const auto self = make_communicator("self", MPI_COMM_SELF, cpu_device);
  const auto rank_file = [&](int rank) { return folder / "step-00000001" / detail::rank_file_name(rank); };
  const auto open = [&] { (void)Checkpoint::open(folder.path()); };
  EXPECT_THAT(refusal([&] { (void)Checkpoint::open(folder / "none"); }), HasSubstr("no such folder"));

  write(folder.path(), 1, 2);
  std::string bytes = read_bytes(rank_file(1));
  bytes[bytes.size() - 5] ^= 1;
  write_bytes(rank_file(1), bytes);
  const Checkpoint damaged = Checkpoint::open(folder.path());
  damaged.verify(0, 2);
  EXPECT_THAT(refusal([&] { damaged.verify(1, 2); }), HasSubstr("rank-0001.safetensors: is damaged: its CRC-32"));
  write_bytes(rank_file(1), bytes.substr(0, bytes.size() - 1));
  EXPECT_THAT(refusal(open), HasSubstr("rank-0001.safetensors: has"));
  fs::remove(rank_file(1));
  EXPECT_THAT(refusal(open), HasSubstr("rank-0001.safetensors: missing"));
  write_bytes(folder / "step-00000001" / "manifest.json", "{\"format\": \"scape-checkpoint\", ");
  EXPECT_THAT(refusal(open), HasSubstr("manifest.json: cannot be read"));
  write_bytes(folder / "step-00000001" / "manifest.json", "{\"format\": \"other\"}");
  EXPECT_THAT(refusal(open), HasSubstr("is not the manifest of a checkpoint"));

  write(folder.path(), 1, 2);
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  RankState state(0, 1);
  const std::vector<float> before = state.residual;
  const auto load = [&](const std::vector<StateEntry>& entries) { return refusal([&] { checkpoint.load(entries, *self); }); };
  std::vector<StateEntry> entries = state.entries();
  entries.pop_back();
  EXPECT_THAT(load(entries), HasSubstr("has 'residual', which this run does not know"));
  entries = state.entries();
  entries.push_back(state_entry("more", StateScope::replicated, Span<float>(std::span(state.params))));
  EXPECT_THAT(load(entries), HasSubstr("has no 'more'"));
  entries = state.entries();
  entries[0].bytes = entries[0].bytes.subspan(0, 24);
  EXPECT_THAT(load(entries), HasSubstr("'params' has 28 bytes, the run wants 24"));
  entries = state.entries();
  entries[1].type = DType::f64;
  EXPECT_THAT(load(entries), HasSubstr("'m/shard' is shard I64, the run wants shard F64"));
  entries = state.entries();
  entries[0].scope = StateScope::per_rank;
  EXPECT_THAT(load(entries), HasSubstr("'params' is replicated F32, the run wants per_rank F32"));
  EXPECT_EQ(state.residual, before);
}

}  // namespace
}  // namespace scape
