"""Final validation loss against an option that takes several values, one line per setting of the others. Drawn when the runs are a
sweep over an option: at least three values of it, everything else equal within a line."""

import matplotlib.pyplot as plt
import numpy as np

from .. import style
from ..load import PROVENANCE

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
    """Label and members of each line, members ascending in the option; methods that do not have the option are left out."""
    groups = {}
    for method in methods:
        if method.get(option) is None:
            continue
        rest = tuple(sorted((n, str(v)) for n, v in method.runs[0].attributes.items() if n not in PROVENANCE and n != option))
        groups.setdefault(rest, []).append(method)
    lines = [sorted(members, key=lambda m: m.get(option)) for members in groups.values() if len(members) >= 3]
    return [(style.label(members[0].runs[0]), members) for members in lines]


def draw(methods: list):
    option = swept_option(methods)
    lines = lines_of(methods, option) if option else []
    if not lines:
        return None
    values = sorted({method.get(option) for _, members in lines for method in members})
    figure, axes = plt.subplots(figsize=(style.WIDTH * 0.62, 2.8))
    looks = style.lines([members[0] for _, members in lines])
    seeds = set()
    for label, members in lines:
        x = np.array([values.index(method.get(option)) for method in members])
        finals = [np.array([run.validation["loss"][-1] for run in method.runs]) for method in members]
        mean = np.array([final.mean() for final in finals])
        spread = np.array([[m - f.min(), f.max() - m] for m, f in zip(mean, finals)]).T
        axes.errorbar(x, mean, spread, marker="o", markersize=3, capsize=2, elinewidth=0.8, label=label, **looks[members[0].label])
        seeds |= {len(final) for final in finals}
    axes.set_xticks(range(len(values)), [style.text(value) for value in values])
    axes.set_xlabel(option.replace("_", " "))
    axes.set_ylabel("final validation loss [nat/token]")
    axes.legend(loc="best")
    count = "/".join(map(str, sorted(seeds)))
    note = f"{style.setting(methods)}\nMean over {count} seed(s), bars from the lowest to the highest."
    figure.text(0.01, 0.012, note, fontsize=5.6, color="0.3", va="bottom", linespacing=1.25, wrap=True)
    figure.subplots_adjust(left=0.17, right=0.97, top=0.96, bottom=0.29)
    return figure
