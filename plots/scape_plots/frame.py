"""What stands around the panels of a figure: the legend above, the caption below, ticks and labels. All is measured, so that nothing is ever
cut, and the figure becomes as high as that needs."""

import textwrap

MARGIN = 0.1  # inches at the figure's left and right: a PDF's letters are not exactly as wide as those measured
GAP = 0.07  # inches between legend, panels and caption
COLUMNS = 3  # of a legend, at most


def _wrapped(text: str, letters: int) -> str:
    """Lines of at most so many letters; an option stays beside its value."""
    return textwrap.fill(text.replace(" = ", "\u00a0=\u00a0"), letters)


def _legends(figure):
    """From as many columns as there may be to a single one, and then with labels of ever more lines."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    for columns, letters in [(n, None) for n in range(COLUMNS, 0, -1)] + [(1, n) for n in range(120, 5, -5)]:
        texts = labels if letters is None else [_wrapped(label, letters) for label in labels]
        yield figure.legend(handles, texts, loc="upper center", bbox_to_anchor=(0.5, 1), ncol=columns, handlelength=2.4, columnspacing=1.6,
                            borderaxespad=0.3)  # fmt: skip


def _captions(figure, caption: str):
    for letters in range(140, 20, -3):
        yield figure.text(0, 0, _wrapped(caption, letters), fontsize=6.2, color="0.3", va="bottom", linespacing=1.25)


def _fitted(figure, attempts) -> tuple:
    """The first of the artists that is as narrow as the figure, and its height in inches. The others are removed again."""
    for artist in attempts:
        box = artist.get_window_extent(figure.canvas.get_renderer())
        if box.width / figure.dpi <= figure.get_figwidth() - 2 * MARGIN:
            return artist, box.height / figure.dpi
        artist.remove()
    raise ValueError("the figure is too narrow for its text")


def _around(figure) -> tuple:
    """Inches that titles, ticks and labels take on the left, the right, above and below the panels."""
    tight = [axes.get_tightbbox(figure.canvas.get_renderer()) for axes in figure.axes]
    panels = [axes.bbox for axes in figure.axes]
    beyond = (min(p.x0 for p in panels) - min(t.x0 for t in tight), max(t.x1 for t in tight) - max(p.x1 for p in panels),
              max(t.y1 for t in tight) - max(p.y1 for p in panels), min(p.y0 for p in panels) - min(t.y0 for t in tight))  # fmt: skip
    return tuple(pixels / figure.dpi for pixels in beyond)


def frame(figure, panels: float, caption: str, **spaces) -> None:
    """Puts the legend of the figure's first axes above the panels, which are `panels` inches high, all rows together, and the caption below.
    `spaces` between panels are those of Figure.subplots_adjust."""
    _, legend = _fitted(figure, _legends(figure))
    text, foot = _fitted(figure, _captions(figure, caption))
    left, right, above, below = 0.5, 0.1, 0.2, 0.4
    for _ in range(2):  # where ticks are depends on the panels' size
        top, bottom = legend + 2 * GAP + above, foot + 1.5 * GAP + below
        width, height = figure.get_figwidth(), top + panels + bottom
        figure.set_size_inches(width, height)
        figure.subplots_adjust(left=(left + MARGIN / 2) / width, right=1 - (right + MARGIN / 2) / width, top=1 - top / height,
                               bottom=bottom / height, **spaces)  # fmt: skip
        left, right, above, below = _around(figure)
    text.set_position((MARGIN / width, 0.5 * GAP / height))


def seeds(counts) -> str:
    """'3 seeds', '1/3 seeds', or 'a single seed'."""
    counts = sorted(set(counts))
    return "a single seed" if counts == [1] else f"{'/'.join(map(str, counts))} seeds"
