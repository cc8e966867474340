"""Final validation loss against an option that takes several values, one line per setting of the others. Drawn when the runs are a
sweep over an option: at least three values of it, everything else equal within a line."""

import matplotlib.pyplot as plt
import numpy as np

from .. import style
from ..frame import frame, seeds
from ..load import PROVENANCE, labels_of

NAME = "ablation"
NEEDS = None  # most folders hold no ablation, and need not be told


def swept_option(methods: list):
    """The numeric option with the most values, if there are at least three of it; else None."""
    best, most = None, 2
    for name in sorted({name for method in methods for name in method.runs[0].attributes} - PROVENANCE - {"density"}):
        values = {method.get(name) for method in methods}
        numeric = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values - {None})
        if numeric and len(values - {None}) > most:
            best, most = name, len(values - {None})
    return best


def lines_of(methods: list, option: str) -> list:
    """Label and members of each line, members ascending in the option; methods without the option or without a final loss are left out."""
    groups = {}
    for method in methods:
        if method.get(option) is None or not all(np.isfinite(run.validation["loss"][-1:]).any() for run in method.runs):
            continue
        rest = tuple(sorted((n, str(v)) for n, v in method.runs[0].attributes.items() if n not in PROVENANCE and n != option))
        groups.setdefault(rest, []).append(method)
    lines = [sorted(members, key=lambda m: m.get(option)) for members in groups.values() if len(members) >= 3]
    return list(zip(labels_of([members[0].runs[0] for members in lines], but=option), lines))


def draw(methods: list):
    option = swept_option(methods)
    lines = lines_of(methods, option) if option else []
    if not lines:
        return None
    values = sorted({method.get(option) for _, members in lines for method in members})
    figure, axes = plt.subplots(figsize=(style.WIDTH * 0.62, 2.6))
    looks = style.lines([members[0] for _, members in lines])
    counts = []
    for label, members in lines:
        x = np.array([values.index(method.get(option)) for method in members])
        finals = [np.array([run.validation["loss"][-1] for run in method.runs]) for method in members]
        mean = np.array([final.mean() for final in finals])
        spread = np.array([[m - f.min(), f.max() - m] for m, f in zip(mean, finals)]).T
        look = {**looks[members[0].label], "linewidth": style.THIN}
        axes.errorbar(x, mean, spread, marker="o", markersize=3, capsize=2, elinewidth=0.8, label=label, **look)
        counts += map(len, finals)
    axes.set_xticks(range(len(values)), [style.text(value) for value in values], **({"rotation": 90} if len(values) > 8 else {}))
    axes.set_xlabel(option.replace("_", " "))
    axes.set_ylabel("final validation loss [nat/token]")
    several = " Mean, and bars from the lowest to the highest." if max(counts) > 1 else ""
    frame(figure, 1.9, f"{style.setting(methods)} Each point: {seeds(counts)}.{several}")
    return figure
