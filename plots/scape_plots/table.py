"""The comparison table: one row per method, means over its seeds."""

import math
from dataclasses import dataclass

import numpy as np

FINAL = 0.05  # of the recorded steps, at the end: their mean is the final training loss
STEADY = 0.5  # of the planned steps: bytes are steady after it, or after the density warm-up if that is longer

HEADERS = ["method", "train loss", "val. loss", "bytes/step", "steady bytes", "of dense", "steady of dense", "step [ms]", "exposed [%]", "1/(1-f)",
           "steps", "seed", "status"]  # fmt: skip
NOTES = (
    "d: density, the fraction of the coordinates that a step sends. Losses in nat/token. Train loss: mean over the last 5% of the steps. "
    "Bytes/step: sent per rank (bandwidth-optimal model), mean over the run; steady: mean over its second half, or after the density warm-up if "
    "that is longer. Of dense: divided by dense AdamW's. Step: median time. Exposed: share f of the time in which compute waited for "
    "communication; without it a step could be at most 1/(1-f) times as fast. Several seeds: mean (lowest to highest)."
)


@dataclass
class Figures:
    """The numbers of one run; NaN where there is none."""

    train_loss: float
    val_loss: float
    bytes_per_step: float
    steady_bytes: float
    step_ms: float
    exposed: float  # fraction


def figures(run) -> Figures:
    steps = run.steps
    last = steps["loss"][-math.ceil(FINAL * len(steps["loss"])) :]
    begin = max(STEADY, run.get("density_warmup_fraction", 0) if run.get("density_warmup", "none") != "none" else 0) * run.get("planned_steps", 0)
    steady = steps["wire_bytes"][steps["step"] > begin]
    time = steps["seconds"].sum()
    return Figures(
        train_loss=_mean(last),
        val_loss=float(run.validation["loss"][-1]) if len(run.validation["loss"]) else math.nan,
        bytes_per_step=_mean(steps["wire_bytes"]),
        steady_bytes=_mean(steady),
        step_ms=1e3 * float(np.median(steps["seconds"])),
        exposed=float(steps["communication_seconds"].sum() / time) if time > 0 else math.nan,
    )


def _mean(values) -> float:
    known = np.asarray(values, dtype=float)
    known = known[~np.isnan(known)]
    return float(known.mean()) if len(known) else math.nan


def _number(value: float, form: str = ".3g") -> str:
    return "n/a" if math.isnan(value) else format(value, form)


def _bytes(value: float) -> str:
    if math.isnan(value):
        return "n/a"
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g} B"


def _spread(values: list) -> str:
    known = [value for value in values if not math.isnan(value)]
    if len(known) < 2:
        return _number(known[0] if known else math.nan, ".3f")
    return f"{_mean(known):.3f} ({min(known):.3f} to {max(known):.3f})"


def _status(runs: list) -> str:
    counts = {}
    for run in runs:
        counts[run.status] = counts.get(run.status, 0) + 1
    text = ", ".join(status if len(runs) == 1 else f"{count} {status}" for status, count in counts.items())
    skipped = sum(int(run.steps["skipped"].sum()) for run in runs if "skipped" in run.steps)
    return f"{text}, {skipped} skipped" if skipped else text


def _is_dense_adamw(method) -> bool:
    return method.get("optimizer") == "adamw" and (method.get("sync") or "dense") == "dense"


@dataclass
class Table:
    rows: list  # of cells, as HEADERS
    notes: str = NOTES

    def markdown(self) -> str:
        align = ["---"] + ["---:"] * (len(HEADERS) - 2) + ["---"]
        return "\n".join("| " + " | ".join(cells) + " |" for cells in [HEADERS, align, *self.rows])

    def text(self) -> str:
        lines = [HEADERS, *self.rows]
        widths = [max(len(cells[i]) for cells in lines) for i in range(len(HEADERS))]
        left = (0, len(HEADERS) - 1)
        aligned = [[c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths))] for cells in lines]
        aligned.insert(1, ["-" * width for width in widths])
        return "\n".join("  ".join(cells).rstrip() for cells in aligned)


def comparison(methods: list) -> Table:
    numbers = {method.label: [figures(run) for run in method.runs] for method in methods}

    def mean(method, name: str) -> float:
        return _mean([getattr(f, name) for f in numbers[method.label]])

    def of_dense(method, name: str) -> float:
        """Against dense AdamW with the same model and ranks."""
        for dense in filter(_is_dense_adamw, methods):
            if all(dense.get(key) == method.get(key) for key in ("model", "parameters", "ranks")) and mean(dense, name) > 0:
                return mean(method, name) / mean(dense, name)
        return math.nan

    rows = []
    for method in methods:
        exposed = mean(method, "exposed")
        rows.append([
            method.label,
            _spread([f.train_loss for f in numbers[method.label]]),
            _spread([f.val_loss for f in numbers[method.label]]),
            _bytes(mean(method, "bytes_per_step")),
            _bytes(mean(method, "steady_bytes")),
            _number(of_dense(method, "bytes_per_step")),
            _number(of_dense(method, "steady_bytes")),
            _number(mean(method, "step_ms")),
            _number(100 * exposed, ".1f"),
            _number(1 / (1 - exposed) if exposed < 1 else math.nan, ".2f"),
            "/".join(dict.fromkeys(str(int(run.steps["step"][-1])) for run in method.runs)),
            "/".join(dict.fromkeys(str(run.get("seed", "n/a")) for run in method.runs)),
            _status(method.runs),
        ])  # fmt: skip
    return Table(rows)
