"""Draw a frontier of the docs from its CSV file, in the format of the workflow's figure.

`uv run python tools/draw_frontier.py adap-dp-fl docs/frontier-fashion-mnist.csv` writes
the picture beside the table. A table may combine the rows of several CSV files: each
row has its number of seeds. The runs themselves are not needed. Labels and notices come
from the `real` preset.
"""

import runpy
import sys
from pathlib import Path
from typing import Any

import pandas as pd

from dpfedbench.breaches import notices_of
from dpfedbench.results import frontier
from dpfedbench.results.figure_style import DPI
from dpfedbench.results.items import Item

ROOT = Path(__file__).resolve().parents[1]


def read_points(table: pd.DataFrame, item: Any) -> pd.DataFrame:
    """Convert rows of such a file to the points that `frontier.draw` takes."""
    cells = {cell.series: cell for cell in item.cells}
    return table.rename(
        columns={
            "epsilon_asked": "x",
            "epsilon_proven": "epsilon_proven_high",
            "value": "accuracy",
            "low": "accuracy_low",
            "high": "accuracy_high",
        }
    ).assign(
        label=[cells[series].label for series in table["series"]],
        notices=[notices_of(cells[series].runs[0]) for series in table["series"]],
    )


def main(paper: str, path: Path) -> None:
    """Draw the frontier of a paper in the `real` preset from a table of its points."""
    table = frontier.read_points(path)
    real_rows = runpy.run_path(str(ROOT / "tools" / "real_rows.py"))
    item = real_rows["read_plan"]().items[paper, "frontier"]
    figure = frontier.draw(Item(**item.describe({})), read_points(table, item))
    figure.savefig(path.with_suffix(".png"), dpi=DPI)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
