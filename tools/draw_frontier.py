"""Draws a frontier of the docs from the numbers beside it, as `reporting.frontier.tidy`
writes them.

`uv run python tools/draw_frontier.py adap-dp-fl docs/frontier-fashion-mnist.csv` writes
the picture beside the table. Rows of several calls can be put together: each says over
how many seeds it is. The runs need not be there; labels and notices are those of the
`real` preset.
"""

import math
import runpy
import sys
from pathlib import Path
from typing import Any

import pandas as pd

from dpfedbench.results import frontier
from dpfedbench.results.figure_style import DPI
from dpfedbench.results.items import Item

ROOT = Path(__file__).resolve().parents[1]


def points(table: pd.DataFrame, item: Any) -> pd.DataFrame:
    """Return the points that `frontier.draw` takes, of rows of `frontier.tidy`."""
    cells = {cell.series: cell for cell in item.cells}
    over = table["unit"].map({"record": "records"}).fillna("tasks")
    return table.rename(
        columns={
            "epsilon_asked": "x",
            "epsilon_proven": "epsilon_proven_high",
            "value": "accuracy",
            "low": "accuracy_low",
            "high": "accuracy_high",
        }
    ).assign(
        interval_over=over.where(table["seeds"] == 1, "seeds"),
        label=[cells[series].label for series in table["series"]],
        notices=[cells[series].runs[0].notices for series in table["series"]],
    )


def main(paper: str, path: Path) -> None:
    """Draw the frontier of a paper in the `real` preset from a table of its points."""
    table = pd.read_csv(path).fillna({"unit": "", "epsilon_claimed": math.nan})
    item = runpy.run_path(str(ROOT / "tools" / "real_rows.py"))["plan"]().items[
        paper, "frontier"
    ]
    frontier.draw(Item(**item.describe()), points(table, item)).savefig(
        path.with_suffix(".png"), dpi=DPI
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
