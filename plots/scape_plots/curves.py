"""Curves of a method: mean over its seeds, with the range between them. All seeds count at the steps that all have."""

import functools
from dataclasses import dataclass

import numpy as np

WINDOW = 0.03  # of a run's steps: moving average of the training loss, cut off at both ends


@dataclass
class Curve:
    steps: np.ndarray
    bytes: np.ndarray  # sent per rank up to and with each step (modelled wire bytes), mean over the seeds
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Centred moving average over `window` (odd) values, cut off at both ends; what is not finite does not count."""
    half = window // 2
    known = np.isfinite(values)
    sums = np.concatenate([[0], np.cumsum(np.where(known, values, 0))])
    counts = np.concatenate([[0], np.cumsum(known)])
    i = np.arange(len(values))
    begin, end = np.maximum(i - half, 0), np.minimum(i + half + 1, len(values))
    with np.errstate(invalid="ignore"):
        return (sums[end] - sums[begin]) / (counts[end] - counts[begin])


def window(run) -> int:
    return 2 * int(WINDOW * len(run.steps["step"]) / 2) + 1


def _over_seeds(runs: list, tables: list, values: list) -> Curve:
    steps = functools.reduce(np.intersect1d, [table["step"] for table in tables])
    rows = np.array([v[np.searchsorted(t["step"], steps)] for t, v in zip(tables, values)])
    rows[~np.isfinite(rows)] = np.nan  # of a run that diverges: nowhere on an axis
    sent = np.array([np.concatenate([[0], np.cumsum(r.steps["wire_bytes"])])[np.searchsorted(r.steps["step"], steps, "right")] for r in runs])
    return Curve(steps, sent.mean(axis=0), rows.mean(axis=0), rows.min(axis=0), rows.max(axis=0))


def training(method, smoothed: bool) -> Curve:
    values = [smooth(run.steps["loss"], window(run)) if smoothed else run.steps["loss"] for run in method.runs]
    return _over_seeds(method.runs, [run.steps for run in method.runs], values)


def validation(method) -> Curve:
    tables = [run.validation for run in method.runs]
    return _over_seeds(method.runs, tables, [table["loss"] for table in tables])


def has_loss(method) -> bool:
    """Whether there is a curve: finite training losses at two steps that all seeds have."""
    return np.count_nonzero(np.isfinite(training(method, smoothed=True).mean)) > 1
