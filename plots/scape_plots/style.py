"""How methods are called, coloured and ordered, and how figures look. The one place that knows.

Colours are Okabe and Ito's, which people with any colour vision can tell apart. A family keeps its hue, so a method looks the same in
every figure; within SCAPE and top-k, darker is sparser.
"""

import math
import re

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.colors import to_rgb  # noqa: E402

WIDTH = 5.5  # inches: the text width of a one-column paper, the width of a two-column figure in others

OPTIMIZERS = {"adamw": "AdamW", "adams": "AdamS", "scape": "SCAPE", "onebit_adam": "1-bit Adam", "demo": "DeMo"}
SYNCS = {"topk": "top-k", "topk_shared": "shared top-k", "radius": "Radius", "powersgd": "PowerSGD", "oktopk": "Ok-Topk"}
COLOURS = {
    ("adamw", "dense"): "#000000",
    ("adams", "dense"): "#8C8C8C",
    "scape": "#0072B2",
    "topk": "#D55E00",
    "quantized": "#009E73",
    "topk_shared": "#A0522D",
    "onebit_adam": "#CC79A7",
    "demo": "#E69F00",
    "powersgd": "#B8A800",
    "radius": "#6A3D9A",
    "oktopk": "#56B4E9",
}
LINES = ["-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (6, 1.5, 1.5, 1.5))]  # for methods that share a colour
WIDE, THIN = 2.2, 1.2  # points: dense methods are drawn first, and show on both sides of what lies on them

plt.rcParams.update({
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "lines.linewidth": THIN,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # text stays text
})  # fmt: skip


def text(value) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _halves(run) -> tuple:
    return str(run.get("optimizer", "?")), str(run.get("sync", "") or "dense")


def label(run) -> str:
    """'AdamW, dense', 'SCAPE, d = 0.01', 'AdamW, top-k, d = 0.01', 'AdamW, 8-bit'."""
    optimizer, sync = _halves(run)
    parts = [OPTIMIZERS.get(optimizer, optimizer)]
    if optimizer in ("adamw", "adams"):
        parts.append(f"{run.get('quant_bits', 8)}-bit" if sync == "quantized" else SYNCS.get(sync, sync))
    density = run.get("density")
    if density is not None:
        parts.append(f"d = {density:g}")
    return ", ".join(parts)


def order(method) -> tuple:
    """Dense methods first, then by family, then from dense to sparse; numbers in names count as numbers."""
    optimizer, sync = _halves(method)
    families = list(COLOURS)
    family = next((i for i, f in enumerate(families) if f in ((optimizer, sync), optimizer, sync)), len(families))
    numbered = [(float(part), "") if i % 2 else (0, part) for i, part in enumerate(re.split(r"(\d+(?:\.\d+)?)", method.label))]
    return family, -float(method.get("density", 1) or 1), numbered


def colour(method) -> tuple:
    optimizer, sync = _halves(method)
    base = COLOURS.get((optimizer, sync)) or COLOURS.get(optimizer) or COLOURS.get(sync) or "#999933"
    density = method.get("density")
    if not isinstance(density, float) or density <= 0:
        return to_rgb(base)
    # d = 0.01 is the plain colour, a factor of ten is a step towards white or black.
    shift = max(-0.6, min(0.6, 0.45 * (math.log10(density) + 2)))
    return tuple(c + (1 - c) * shift if shift > 0 else c * (1 + shift) for c in to_rgb(base))


def lines(methods: list) -> dict:
    """Method to plot keywords; methods of one colour differ in their dashes and, if there are more than dashes, in their shades."""
    families, styles = {}, {}
    for method in methods:
        families.setdefault(colour(method), []).append(method)
    for base, members in families.items():
        shades = -(-len(members) // len(LINES))
        for i, method in enumerate(members):
            shade = 0.75 * (i // len(LINES)) / shades  # from the plain colour towards white
            dense = _halves(method) in COLOURS and i == 0
            styles[method.label] = {"color": tuple(c + (1 - c) * shade for c in base), "linestyle": LINES[i % len(LINES)],
                                    "linewidth": WIDE if dense else THIN}  # fmt: skip
    return styles


def _each(values) -> str:
    return " / ".join(dict.fromkeys(values))


def setting(methods: list) -> str:
    """What all of it was measured on: model, ranks, tokens per step, oversubscription."""
    runs = [run for method in methods for run in method.runs]
    models = _each(
        f"{run.get('model', 'model')} ({run.get('parameters') / 1e6:.2f} M parameters)" if run.get("parameters") else str(run.get("model", "model"))
        for run in runs
    )
    ranks = _each(f"{run.get('ranks')}" for run in runs)
    tokens = _each(f"{run.get('tokens_per_step'):,}" for run in runs)
    sentence = f"{models}, {ranks} {'rank' if ranks == '1' else 'ranks'}, {tokens} tokens per step."
    if any(run.get("oversubscribed", False) for run in runs):
        sentence += " More ranks than processor cores: times are not representative."
    return sentence


def save(figure, path) -> None:
    """PNG and PDF without dates, so that the same data give the same files."""
    figure.savefig(path.with_suffix(".png"), dpi=220)
    figure.savefig(path.with_suffix(".pdf"), metadata={"CreationDate": None})
    plt.close(figure)
