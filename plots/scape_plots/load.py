"""Run files to numpy arrays, and runs to methods (runs that differ in nothing but their seed)."""

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("HDF5_USE_FILE_LOCKING", "FALSE")  # read runs that are still being written; must precede the import

import h5py  # noqa: E402
import numpy as np  # noqa: E402

SCHEMA_VERSION = 1

# Attributes that tell where, when and from which seed a run comes, not what was run.
PROVENANCE = {
    "schema_version", "name", "label", "command_line", "suite_version", "compiler", "build_type", "mpi_version", "hdf5_version", "host",
    "started", "attempt", "attempt_started", "ended", "status", "message", "complete", "oversubscribed", "data", "device_name",
    "seed", "init_seed", "diagnostics_every", "checkpoint_every", "checkpoint_last", "checkpoint_keep", "max_minutes", "job_margin_seconds",
    "silence_seconds", "hang_minutes", "peak_teraflops", "most_skipped_in_a_row", "data_format", "data_verified", "communicator_reason",
}  # fmt: skip


@dataclass
class Run:
    """One run file: attributes, and the columns of its groups, all as long as there are complete rows."""

    path: Path
    attributes: dict
    steps: dict
    validation: dict
    diagnostics: dict = None  # columns [records, tensors(, bins)], "tensors", "sizes", and "NAME_edges" for a histogram; None: not recorded

    def get(self, name, default=None):
        return self.attributes.get(name, default)

    @property
    def status(self) -> str:
        if self.get("complete", False):
            return "complete"
        status = str(self.get("status", "running"))
        return _running(self.path) if status in ("running", "complete") else status


class Method:
    """Runs of one configuration, one per seed, and the name that tells it from the other methods of the comparison."""

    def __init__(self, label: str, runs: list):
        self.label = label
        self.runs = runs

    def get(self, name, default=None):
        return self.runs[0].get(name, default)


def _running(path: Path) -> str:
    """A run that was killed could not say so, but a file that is being written is locked, as far as the file system does that."""
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return "running"
        except OSError:
            pass
    return "running or interrupted"


def _columns(group) -> dict:
    """The rows that count are those whose step, written last, is there (results/README.md)."""
    rows = int(np.count_nonzero(group["step"][:] >= 0))
    columns = {name: dataset[:rows] for name, dataset in group.items()}
    short = [name for name, values in columns.items() if len(values) < rows]
    if short:
        raise ValueError(f"column {group.name}/{short[0]} has fewer rows than step")
    return columns


def _diagnostics(file):
    group = file.get("diagnostics")
    columns = _columns(group) if group is not None else {"step": []}
    if len(columns["step"]) == 0:
        return None
    edges = {f"{name}_edges": dataset.attrs["lower_edges"] for name, dataset in group.items() if "lower_edges" in dataset.attrs}
    return {**columns, **edges, "tensors": list(group.attrs["tensors"]), "sizes": group.attrs["sizes"]}


def load_run(path: Path) -> Run:
    """Raises OSError, KeyError or ValueError for a file that is not a usable run."""
    with h5py.File(path, "r") as file:
        attributes = {name: value.item() if isinstance(value, np.generic) else value for name, value in file.attrs.items()}
        if attributes.get("schema_version") != SCHEMA_VERSION:
            raise ValueError(f"not a run file of schema version {SCHEMA_VERSION}")
        run = Run(path, attributes, _columns(file["steps"]), _columns(file["validation"]), _diagnostics(file))
    for name in ("loss", "seconds", "communication_seconds", "wire_bytes"):
        if name not in run.steps:
            raise ValueError(f"no column steps/{name}")
    if len(run.steps["step"]) == 0:
        raise ValueError("no step recorded yet")
    return run


def load_runs(places: list) -> tuple:
    """All runs in folders (and their subfolders) and files, and one line for each file that could not be used."""
    runs, problems = [], []
    for place in places:
        if not place.exists():
            problems.append(f"{place}: no such file or folder")
        for path in sorted(place.rglob("*.h5")) if place.is_dir() else [place] if place.exists() else []:
            try:
                runs.append(load_run(path))
            except (OSError, KeyError, ValueError, RuntimeError) as error:
                problems.append(f"{path}: {str(error).strip(chr(34))}")
    return runs, problems


def labels_of(runs: list, but: str = "") -> list:
    """Names of runs of different methods; where two share a name, what they differ in, the option `but` aside, is added to it."""
    from . import style

    plain = [style.label(run) for run in runs]
    labels = []
    for run, label in zip(runs, plain):
        twins = [other for other, name in zip(runs, plain) if name == label]
        names = sorted({name for twin in twins for name in twin.attributes} - PROVENANCE - {but})
        differing = [name for name in names if len({str(twin.get(name)) for twin in twins}) > 1]
        derived = {"parameters", "flops_per_token", "tokens_per_step", "planned_steps"}  # follow from options
        chosen = [name for name in differing if name not in derived] or differing
        labels.append(", ".join([label, *(f"{name} = {style.text(run.get(name, 'none'))}" for name in chosen)]))
    return labels


def group_by_method(runs: list) -> list:
    """Methods in the order of style.order."""
    from . import style

    groups = {}
    for run in runs:
        key = tuple(sorted((name, str(value)) for name, value in run.attributes.items() if name not in PROVENANCE))
        groups.setdefault(key, []).append(run)
    labels = labels_of([members[0] for members in groups.values()])
    return sorted((Method(label, members) for label, members in zip(labels, groups.values())), key=style.order)
