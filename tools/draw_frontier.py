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
from types import SimpleNamespace
from typing import Any

import pandas as pd

from dpfedbench.evaluation.intervals import Interval
from dpfedbench.reporting import frontier
from dpfedbench.reporting.look import DPI

ROOT = Path(__file__).resolve().parents[1]


def points(table: pd.DataFrame, item: Any) -> list[Any]:
    """What `frontier.draw` takes, of rows of `frontier.tidy`, in their order."""
    cells = {cell.series: cell for cell in item.cells}
    found = []
    for row in table.to_dict("records"):
        cell, several = cells[row["series"]], row["seeds"] > 1
        over = "seeds" if several else "records" if row["unit"] == "record" else "tasks"
        accuracy = Interval(
            mean=row["value"],
            low=row["low"],
            high=row["high"],
            count=int(row["seeds"]),
            over=over,
        )
        ends = {"unit": row["unit"], "delta": row["delta"]}
        result = SimpleNamespace(
            accuracy=accuracy, seeds=int(row["seeds"]), notices=cell.runs[0].notices
        )
        found.append(
            frontier.Point(
                cell=SimpleNamespace(
                    series=row["series"], label=cell.label, x=row["epsilon_asked"]
                ),
                result=result,
                role=row["role"],
                claimed=SimpleNamespace(epsilon_high=row["epsilon_claimed"], **ends),
                holds=SimpleNamespace(epsilon_high=row["epsilon_holds"], **ends),
            )
        )
    return found


def main(paper: str, path: Path) -> None:
    """Draw the frontier of a paper in the `real` preset from a table of its points."""
    table = pd.read_csv(path).fillna({"unit": "", "epsilon_claimed": math.nan})
    item = runpy.run_path(str(ROOT / "tools" / "real_rows.py"))["plan"]().items[
        paper, "frontier"
    ]
    frontier.draw(item.describe(), points(table, item)).savefig(
        path.with_suffix(".png"), dpi=DPI
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
