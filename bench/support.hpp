// What the benchmark programs share: their main(), the devices they measure, and the rules for timing on several ranks.
//
// Every rank runs the same benchmarks; rank 0 alone reports. The time of an iteration on several ranks is that of the slowest
// rank, the same number on all of them, so that Google Benchmark decides alike everywhere how many iterations to run.
#pragma once

#include <benchmark/benchmark.h>

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "scape/buffer.hpp"

namespace scape::bench {

/// main() of a program: starts MPI, lets Google Benchmark take its flags, calls `declare` with the arguments that are left, and
/// runs what it registered. Returns the exit status: 0, 1 if a benchmark failed, or that of an Error (scape/error.hpp). `help`
/// says in lines what arguments `declare` takes.
int run(int argc, char** argv, const std::function<void(std::vector<std::string> arguments)>& declare, std::string_view help = "");

/// Throws Error(usage) if a program that takes no arguments of its own was given one.
void require_no_arguments(const std::vector<std::string>& arguments);

/// Ends this benchmark with a message, and the program with exit status 1.
void fail(benchmark::State& state, const std::string& message);

/// The CPU and, where there are GPUs, one that this rank shares with as few others as possible.
[[nodiscard]] std::vector<Device> devices();

/// A stream for computing on `device`; the CPU's is immediate.
[[nodiscard]] Stream stream_on(Device device);

/// The first n of an endless list of standard normal numbers. Valid until the next call.
[[nodiscard]] std::span<const float> normal_values(std::int64_t n);

/// The longest of the ranks' times. Collective.
[[nodiscard]] double slowest(double seconds);

/// Throws Error(internal) unless all ranks are about to run the same number of iterations. Collective.
void require_same_iterations(const benchmark::State& state);

}  // namespace scape::bench
