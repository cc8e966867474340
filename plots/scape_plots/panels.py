"""Two panels, training and validation loss, with one line per method against a quantity of choice."""

import textwrap

import matplotlib.pyplot as plt
import numpy as np

from . import curves, style


def loss_panels(methods: list, x, x_label: str, finish, note: str = ""):
    """`x` takes a Curve and gives its abscissa; `finish` sets up an axis once the lines are there. `note` ends
    the caption. Returns the figure."""
    styles = style.lines(methods)
    rows = -(-len(methods) // 3)
    caption = textwrap.fill(f"{style.setting(methods)} {_how(methods)} {note}".strip(), 126)
    caption_height = 0.13 * (caption.count("\n") + 1)
    height = 2.35 + 0.16 * rows + caption_height
    figure, (left, right) = plt.subplots(1, 2, figsize=(style.WIDTH, height), sharex=True, sharey=True)
    for method in methods:
        look = styles[method.label]
        raw, smoothed, held_out = curves.training(method, False), curves.training(method, True), curves.validation(method)
        if len(method.runs) == 1:
            left.plot(x(raw), raw.mean, color=look["color"], alpha=0.18, linewidth=0.5)
        left.plot(x(smoothed), smoothed.mean, label=method.label, **look)
        right.plot(x(held_out), held_out.mean, marker="o", markersize=1.8, **look)
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
    figure.legend(*left.get_legend_handles_labels(), loc="upper center", bbox_to_anchor=(0.53, 1), ncol=3, handlelength=1.8, columnspacing=1.6,
                  borderaxespad=0.3)  # fmt: skip
    figure.text(0.01, 0.012, caption, fontsize=6.2, color="0.3", va="bottom", linespacing=1.25)
    figure.subplots_adjust(left=0.092, right=0.985, top=1 - (0.16 * rows + 0.27) / height, bottom=(caption_height + 0.42) / height, wspace=0.17)
    return figure


def _how(methods: list) -> str:
    widths = sorted({curves.window(run) for method in methods for run in method.runs})
    width = str(widths[0]) if len(widths) == 1 else f"{widths[0]} to {widths[-1]}"
    sentences = [f"Training loss: moving average over {width} steps" + (", raw values faint." if any(len(m.runs) == 1 for m in methods) else ".")]
    if any(len(method.runs) > 1 for method in methods):
        sentences.append("Band: lowest to highest of the seeds, line: their mean.")
    return " ".join(sentences)


def _limits(methods: list, entropies: set) -> tuple:
    """From the lowest loss to where the curves are after a tenth of the run: the first drop would flatten everything else."""
    low, high = [], list(entropies)
    for method in methods:
        curve = curves.training(method, True)
        low.append(np.nanmin(curve.low))
        high.append(np.nanmax(curve.high[len(curve.high) // 10 :]))
        losses = curves.validation(method).mean
        low.extend(losses[-1:])
    margin = 0.06 * (max(high) - min(low)) or 0.1
    return min(low) - margin, max(high) + margin
