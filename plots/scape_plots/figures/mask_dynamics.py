"""What goes on inside masked methods over a run: how far the mask moves, how much of the best mask's energy it catches, how large the
residual is, and at the end how old what waits is and how large gradients are. Drawn from runs with diagnostics of masks."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import NullFormatter, PercentFormatter

from .. import style
from ..frame import frame

NAME = "mask_dynamics"
NEEDS = None  # diagnostics are an option; nobody misses them who did not ask

CURVES = (("share_previous", "also in previous mask"), ("share_first", "also in first mask"),
          ("energy_overlap", "energy of best mask"), ("residual_norm", "residual, RMS"))  # fmt: skip


def sparse_tensors(run) -> np.ndarray:
    """Indices of the tensors that were not all on the mask at the last record."""
    ages = run.diagnostics["age_histogram"][-1]
    return np.flatnonzero((ages.sum(axis=1) > 0) & (ages[:, 0] < run.diagnostics["sizes"]))


def of_last_size(run) -> np.ndarray:
    """Whether each record is one of those at the end whose masks have one and the same size, dense steps aside. Before, as in a density
    warm-up, and in a method whose mask has another size in each step, "the first mask of its size" is the mask itself."""
    sizes = run.diagnostics["age_histogram"][:, :, 0].sum(axis=1)
    sparse = np.flatnonzero(sizes < run.diagnostics["sizes"].sum())
    others = sparse[sizes[sparse] != sizes[sparse[-1:]]]
    same = sparse[sparse > others.max(initial=-1)]
    return np.isin(np.arange(len(sizes)), same if len(same) > 1 else [])


def curve(runs: list, name: str) -> tuple:
    """Steps that all runs recorded, mean over sparse tensors weighted by size and over runs, lowest and highest of tensors and runs.
    Of the residual: its root mean square."""
    steps = runs[0].diagnostics["step"]
    for run in runs:
        steps = np.intersect1d(steps, run.diagnostics["step"])
    means, parts = [], []
    for run in runs:
        tensors = sparse_tensors(run)
        rows = np.searchsorted(run.diagnostics["step"], steps)
        values = run.diagnostics[name][np.ix_(rows, tensors)]
        if name == "share_first":
            values[~of_last_size(run)[rows]] = np.nan
        sizes = run.diagnostics["sizes"][tensors].astype(float)
        if name == "residual_norm":
            means.append(np.sqrt((values**2).sum(axis=1) / sizes.sum()))
            values = values / np.sqrt(sizes)
        else:
            known = ~np.isnan(values)
            with np.errstate(invalid="ignore"):
                means.append(np.where(known, values * sizes, 0).sum(axis=1) / (known * sizes).sum(axis=1))
        parts.append(values)
    parts = np.ma.masked_invalid(np.concatenate(parts, axis=1))
    return steps, np.mean(means, axis=0), parts.min(axis=1).filled(np.nan), parts.max(axis=1).filled(np.nan)


def shares(runs: list, name: str) -> np.ndarray:
    """Share of the coordinates of all sparse tensors in each bin at the last record, mean over the runs."""
    rows = [run.diagnostics[name][-1][sparse_tensors(run)].sum(axis=0) for run in runs]
    return np.mean([row / row.sum() for row in rows], axis=0)


def _edges(run, name: str) -> tuple:
    """Lower edges of all bins but the first (exactly 0), and the upper edge of the last."""
    lower = run.diagnostics[f"{name}_edges"][1:]
    return np.append(lower, lower[-1] * lower[-1] / lower[-2])


def _histogram(axes, runs: list, name: str, x_label: str, look: dict) -> None:
    share = shares(runs, name)
    axes.stairs(share[1:], _edges(runs[0], name), color=look["color"], linestyle=look["linestyle"], linewidth=1.1)
    axes.set_xscale("log")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(x_label)


def draw(methods: list):
    watched = []
    for method in methods:
        runs = [run for run in method.runs if run.diagnostics is not None and len(sparse_tensors(run)) > 0]
        if runs:
            watched.append((method, runs))
    if not watched:
        return None
    names = [method for method, _ in watched]
    looks = style.lines(names)
    last = sorted({int(run.diagnostics["step"][-1]) for _, runs in watched for run in runs})
    steps = str(last[0]) if len(last) == 1 else f"{last[0]} to {last[-1]}"
    caption = (
        f"{style.setting(names)} Tensors that are not always dense; lines: mean over coordinates, bands: lowest to highest tensor. Masks: share of "
        "the mask's coordinates; the first one is the first of its size, so there is none in a density warm-up or where the size of masks varies. "
        "Residual: of rank 0. Energy: sum of squares of what rank 0 "
        f"offers, on the mask, over that of as many largest. Histograms: after step {steps}; coordinates on the mask (age 0) "
        "and gradients that are exactly 0 count but are not drawn."
    )
    figure, panels = plt.subplots(2, 3, figsize=(style.WIDTH, 4))
    curves, (ages, gradients) = panels.flat[:4], panels.flat[4:]
    for method, runs in watched:
        look = looks[method.label]
        for axes, (name, _) in zip(curves, CURVES):
            x, *values = curve(runs, name)
            mean, low, high = (np.where(v > 0, v, np.nan) for v in values) if name == "residual_norm" else values  # no logarithm of 0
            axes.plot(x, mean, label=method.label, **look)
            axes.fill_between(x, low, high, color=look["color"], alpha=0.18, linewidth=0)
        _histogram(ages, runs, "age_histogram", "steps since last sent", look)
        _histogram(gradients, runs, "gradient_histogram", "|gradient|", look)
    for axes, (name, title) in zip(curves, CURVES):
        axes.set_title(title, loc="left", pad=3, fontsize=7.5)
        axes.set_xlabel("step")
        axes.set_xlim(0, 1.05 * last[-1])
        if name == "residual_norm":
            axes.set_yscale("log")
        else:
            axes.set_ylim(0, 1.02)
            axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        if not any(np.isfinite(line.get_ydata()).any() for line in axes.get_lines()):
            axes.text(0.5, 0.5, "these methods have none", transform=axes.transAxes, ha="center", fontsize=6.5, color="0.35")
    for axes, title, name in ((ages, "age of what is not sent", "age_histogram"), (gradients, "gradients", "gradient_histogram")):
        axes.set_title(title, loc="left", pad=3, fontsize=7.5)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        filled = np.flatnonzero(np.sum([shares(runs, name)[1:] for _, runs in watched], axis=0) > 1e-5)
        edges = _edges(watched[0][1][0], name)
        if len(filled) > 0:
            axes.set_xlim(edges[filled[0]], edges[filled[-1] + 1])
    frame(figure, 2.91, caption, wspace=0.36, hspace=0.52)
    return figure
