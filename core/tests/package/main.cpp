// Linear regression with SCAPE, on any number of ranks: mpirun -n 2 least_squares
// Every rank draws examples (x, y = x·w) of its own; all ranks learn the same w by sending a tenth of the coordinates a step.
#include <scape/rng.hpp>
#include <scape/scape.hpp>

#include <algorithm>
#include <cstdio>
#include <vector>

int main(int argc, char** argv) {
  const scape::MpiSession mpi(argc, argv);
  const auto comm = scape::make_communicator("auto", MPI_COMM_WORLD, scape::cpu_device);
  const scape::Stream compute;                           // runs at once, on this thread
  const scape::Stream communication(scape::cpu_device);  // a thread of its own, so that collectives overlap with computing

  constexpr int n = 64, batch = 32, steps = 500;
  scape::ParameterLayout layout;  // names the parts of one flat vector
  layout.add("w", {n}, scape::TensorRole::matrix);
  scape::Buffer<float> theta(n), gradient(n);

  const scape::Scape::Options options{.density = {.density = 0.1}};
  const scape::CommonOptions common{.weight_decay = 0};
  scape::Scape optimizer(options, common, {layout, scape::cpu_device, comm->rank(), comm->size(), steps});

  scape::Telemetry telemetry;
  scape::Rng random(1, static_cast<std::uint64_t>(comm->rank()));
  double first_loss = 0, loss = 0;
  for (int t = 1; t <= steps; ++t) {
    std::ranges::fill(gradient.host(), 0.0F);
    loss = 0;
    for (int example = 0; example < batch; ++example) {
      std::vector<float> x(n);
      float error = 0;  // of the prediction x·θ, where w = (1, −1, 1, −1, …)
      for (int i = 0; i < n; ++i) {
        x[i] = random.normal();
        error += x[i] * (theta.host()[i] - (i % 2 == 0 ? 1.0F : -1.0F));
      }
      for (int i = 0; i < n; ++i) gradient.host()[i] += error * x[i] / batch;
      loss += 0.5 * error * error / batch;
    }
    if (t == 1) first_loss = loss;
    optimizer.step({theta, gradient, layout, *comm, compute, communication, telemetry, t, 0.05 * (1 - t / (steps + 1.0))});
  }

  // The ranks saw different examples and hold the same bits.
  scape::Buffer<float> lowest(n), highest(n);
  scape::copy(lowest.span(), theta, compute);
  scape::copy(highest.span(), theta, compute);
  comm->all_reduce(lowest.span(), scape::ReduceOp::min, compute);
  comm->all_reduce(highest.span(), scape::ReduceOp::max, compute);
  const bool equal = std::ranges::equal(lowest.host(), highest.host());
  std::printf("rank %d of %d: loss %.4g -> %.4g, replicas %s, %.0f bytes sent\n", comm->rank(), comm->size(), first_loss, loss,
              equal ? "agree" : "differ", comm->traffic().total().wire_bytes);
  return equal && loss < first_loss / 100 ? 0 : 1;
}
