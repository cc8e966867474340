// record_sample PATH: writes a complete run of 100 sample steps, their diagnostics and two evaluations, for the tests in plots/.
#include <cstdio>

#include "record/hdf5_recorder.hpp"
#include "record_support.hpp"
#include "scape/error.hpp"

int main(int argc, char** argv) try {
  scape::Hdf5Recorder recorder(argc == 2 ? argv[1] : "");
  recorder.begin(scape::testing::sample_info());
  recorder.evaluate({.step = 0, .tokens = 0, .loss = 5.5, .seconds = 0.25});
  for (int step = 1; step <= 100; ++step) scape::testing::record_sample(recorder, step);
  recorder.evaluate({.step = 100, .tokens = 102400, .loss = 0.5, .seconds = 0.25});
  recorder.end({});
  return 0;
} catch (const scape::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return scape::exit_status(error.kind());
}
