"""Run files made up for the tests, with numbers that can be followed by hand."""

import h5py
import numpy as np

STEPS = 40


def write_run(path, optimizer="adamw", sync=None, wire_bytes=1000.0, loss=None, seconds=0.1, communication=0.025, steps=STEPS, recorded=None,
              **attributes):  # fmt: skip
    """A run of `steps` planned steps; loss falls as 100 - step and is evaluated every 10 steps, 0.5 higher. With `recorded`, only so
    many steps are there and placeholders follow, as in a run that was killed."""
    step = np.arange(1, steps + 1)
    columns = {
        "step": step,
        "loss": np.broadcast_to(100.0 - step if loss is None else np.asarray(loss, float), steps).copy(),
        "wire_bytes": np.broadcast_to(np.asarray(wire_bytes, float), steps).copy(),
        "seconds": np.full(steps, seconds),
        "communication_seconds": np.full(steps, communication),
        "skipped": np.zeros(steps, int),
    }
    evaluated = np.arange(0, (recorded or steps) + 1, 10)
    validation = {"step": evaluated, "loss": np.concatenate([[99.5], columns["loss"][evaluated[1:] - 1] + 0.5])}
    if recorded is not None:
        for values in columns.values():
            values[recorded:] = -1 if values.dtype.kind == "i" else np.nan
    with h5py.File(path, "w") as file:
        file.attrs.update(schema_version=1, name=path.stem, optimizer=optimizer, model="tiny", parameters=1000, ranks=4, oversubscribed=True,
                          planned_steps=steps, tokens_per_step=64, seed=1, status="running")  # fmt: skip
        if recorded is None:
            file.attrs.update(status="complete", complete=True)
        if sync is not None:
            file.attrs["sync"] = sync
        file.attrs.update(attributes)
        for group, members in (("steps", columns), ("validation", validation)):
            for name, values in members.items():
                file[f"{group}/{name}"] = values


def add_diagnostics(path, every=10, steps=STEPS, recorded=None):
    """Diagnostics of tensors a (30 coordinates, 3 on the mask), b (10, 1 on it) and a vector that is always on it. With `recorded`,
    placeholders follow that many records."""
    step = np.arange(every, steps + 1, every)
    rows = len(step)
    values = {
        "step": step,
        "share_previous": np.tile([0.4, 0.8, 1.0], (rows, 1)),
        "share_first": np.tile([0.2, np.nan, 1.0], (rows, 1)),
        "energy_overlap": np.tile([0.6, 0.2, 1.0], (rows, 1)),
        "residual_norm": np.outer(step, [3.0, 4.0, 0.0]),
        "gradient_histogram": np.tile([[10, 0, 20], [0, 10, 0], [4, 0, 0]], (rows, 1, 1)),
        "age_histogram": np.tile([[3, 7, 20], [1, 3, 6], [4, 0, 0]], (rows, 1, 1)),
    }
    for column in values.values():
        column[len(step) if recorded is None else recorded :] = -1 if column.dtype.kind == "i" else np.nan
    with h5py.File(path, "a") as file:
        for name, column in values.items():
            file[f"diagnostics/{name}"] = column
        file["diagnostics/gradient_histogram"].attrs["lower_edges"] = [0, 0.1, 1]
        file["diagnostics/age_histogram"].attrs["lower_edges"] = [0, 1, 2]
        file["diagnostics"].attrs["tensors"] = ["a", "b", "norm"]
        file["diagnostics"].attrs["sizes"] = [30, 10, 4]


def write_scape(path, **attributes):
    """Dense for a tenth of the run, then a tenth of the bytes."""
    wire = np.where(np.arange(1, STEPS + 1) <= 4, 1000, 100)
    write_run(path, "scape", wire_bytes=wire, density=0.1, density_warmup="geometric", density_warmup_fraction=0.1, **attributes)
