"""python3 -m scape_plots RUN_FOLDER... --out DIR: every figure as PNG and PDF, and the comparison table.

Exit status: 0 done, 2 usage, 3 no usable run or nowhere to write. Files that cannot be used and figures that cannot be drawn are named and
left out.
"""

import argparse
import sys
from pathlib import Path

from . import curves, style
from .figures import ALL
from .load import group_by_method, load_runs
from .table import comparison


def main(words=None) -> int:
    parser = argparse.ArgumentParser(prog="figures", description="Figures and comparison table from run files.",
                                     epilog="Exit status: 0 done, 2 usage, 3 no usable run or nowhere to write. Files that cannot be used and "
                                     "figures that cannot be drawn are named and left out.")  # fmt: skip
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_FOLDER", help="folder (searched with its subfolders) or run file")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for figures and table")
    arguments = parser.parse_args(words)

    runs, problems = load_runs(arguments.runs)
    for problem in problems:
        print(f"figures: skipped {problem}", file=sys.stderr)
    if not runs:
        print("figures: no usable run", file=sys.stderr)
        return 3
    methods = group_by_method(runs)
    for method in methods:
        if not curves.has_loss(method):
            print(f"figures: {method.label} is only in the table: it has fewer than two finite losses", file=sys.stderr)
    table = comparison(methods)
    caption = style.setting(methods)
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        for figure in ALL:
            drawn = figure.draw(methods)
            if drawn is None and figure.NEEDS is not None:
                print(f"figures: {figure.NAME} is left out, as it needs {figure.NEEDS}", file=sys.stderr)
            elif drawn is not None:
                style.save(drawn, arguments.out / figure.NAME)
        (arguments.out / "comparison.md").write_text(f"{table.markdown()}\n\n{caption}\n\n{table.notes}\n", encoding="utf-8")
    except OSError as error:
        print(f"figures: cannot write to {arguments.out}: {error}", file=sys.stderr)
        return 3
    print(f"{table.text()}\n\n{caption}\n{table.notes}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
