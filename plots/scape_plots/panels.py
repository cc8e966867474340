"""Two panels, training and validation loss, with one line per method against a quantity of choice."""

import matplotlib.pyplot as plt
import numpy as np

from . import curves, style
from .frame import frame


def loss_panels(methods: list, x, x_label: str, finish, note: str = ""):
    """`x` takes a Curve and gives its abscissa; `finish` sets up an axis once the lines are there. `note` ends
    the caption. Returns the figure; None if no method has a curve."""
    methods = [method for method in methods if curves.has_loss(method)]
    if not methods:
        return None
    styles = style.lines(methods)
    figure, (left, right) = plt.subplots(1, 2, figsize=(style.WIDTH, 2.6), sharex=True, sharey=True)
    for method in methods:
        look = styles[method.label]
        raw, smoothed, held_out = curves.training(method, False), curves.training(method, True), curves.validation(method)
        if len(method.runs) == 1:
            left.plot(x(raw), raw.mean, color=look["color"], alpha=0.18, linewidth=0.5)
        left.plot(x(smoothed), smoothed.mean, label=method.label, **look)
        right.plot(x(held_out), held_out.mean, marker="o", markersize=look["linewidth"] + 0.8, **look)
        if len(method.runs) > 1:
            for axes, curve in ((left, smoothed), (right, held_out)):
                axes.fill_between(x(curve), curve.low, curve.high, color=look["color"], alpha=0.2, linewidth=0)
    entropies = {run.get("unigram_entropy") for method in methods for run in method.runs} - {None}
    for entropy in entropies:
        for axes in (left, right):
            axes.axhline(entropy, color="0.45", linewidth=0.6, linestyle=(0, (4, 3)), zorder=0)
        right.annotate("unigram entropy", (1, entropy), (0, 2), xycoords=("axes fraction", "data"), textcoords="offset points", ha="right",
                       fontsize=6.5, color="0.35",
                       bbox={"boxstyle": "square,pad=0.1", "color": "white", "alpha": 0.75, "linewidth": 0})  # fmt: skip
    for axes, title in ((left, "training"), (right, "validation")):
        axes.set_title(title, loc="left", pad=3)
        axes.set_xlabel(x_label)
    left.set_ylabel("loss [nat/token]")
    left.set_ylim(*_limits(methods, entropies))
    finish(left)
    right.tick_params(labelleft=True)
    caption = " ".join(filter(None, [style.setting(methods), *_how(methods), note]))
    frame(figure, 1.66, caption, wspace=0.17)
    return figure


def _how(methods: list) -> list:
    sentences = []
    widths = sorted({curves.window(run) for method in methods for run in method.runs})
    width = str(widths[0]) if len(widths) == 1 else f"{widths[0]} to {widths[-1]}"
    if width != "1":
        faint = ", raw values faint" if any(len(method.runs) == 1 for method in methods) else ""
        sentences.append(f"Training loss: moving average over {width} steps{faint}.")
    if any(len(method.runs) > 1 for method in methods):
        sentences.append("Band: lowest to highest of the seeds, line: their mean.")
    return sentences


def _limits(methods: list, entropies: set) -> tuple:
    """From the lowest loss to where the curves are after a tenth of the run, as the first drop would flatten everything else, and so would a
    run that diverges: it is shown up to the loss that it began with."""
    low, high = [], list(entropies)
    for method in methods:
        curve = curves.training(method, True)
        low.append(np.nanmin(curve.low))
        known = curve.high[np.isfinite(curve.high)]
        high.append(min(known[len(known) // 10 :].max(), known[0]))
        losses = curves.validation(method).mean[-1:]
        low.extend(losses[np.isfinite(losses)])
    margin = 0.06 * (max(high) - min(low)) or 0.1
    return min(low) - margin, max(high) + margin
