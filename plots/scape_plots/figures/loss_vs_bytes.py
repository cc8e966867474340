"""Loss against bytes sent: what a method gains, if only bytes counted."""

import numpy as np
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

from ..panels import loss_panels

NAME = "loss_vs_bytes"
NEEDS = "two finite losses of a method that sends something, so of more than one rank"


def _bytes(curve):
    return np.where(curve.bytes > 0, curve.bytes, np.nan)  # nothing sent yet: not on a logarithmic axis


def _logarithmic(axes) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(10))
    axes.xaxis.set_major_formatter(EngFormatter("B", sep=" "))
    axes.xaxis.set_minor_formatter(NullFormatter())
    top = axes.get_ylim()[1]
    drawn = [line.get_data() for line in axes.get_lines() if line.get_transform() == axes.transData]
    seen = np.concatenate([x[(y < top) & (x > 0)] for x, y in drawn])
    if len(seen) > 0:
        axes.set_xlim(left=0.8 * seen.min())
    left, right = axes.get_xlim()
    if right < 100 * left:  # too few powers of ten
        axes.xaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))


def draw(methods: list):
    sending = [method for method in methods if all(run.steps["wire_bytes"].sum() > 0 for run in method.runs)]
    if not sending:
        return None
    return loss_panels(sending, _bytes, "bytes sent per rank", _logarithmic, "Bytes: as many as a bandwidth-optimal algorithm sends.")
