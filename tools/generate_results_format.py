"""Write docs/results-format.md from the columns that the package declares."""

from pathlib import Path

from dpfedbench.results.columns import (
    CELLS,
    IDENTITY,
    PRIVACY,
    TEST,
    TRAINING,
    Column,
)

PAGE = Path(__file__).resolve().parents[1] / "docs" / "results-format.md"

INTRODUCTION = """\
# Results as data frames

After reading this page you can query all results of a workflow as two data frames: one row for each run, and one row for each run
of each table or figure cell.

The rule `collect` writes them, below `results/` or, with a preset, below `results/PRESET/`:

| file | rows |
|---|---|
| `runs.parquet` | one for each run: identity, test, each ε, costs, and every value of its configuration |
| `runs.csv` | the same without `task_accuracies`, for a spreadsheet |
| `cells.parquet` | one for each run that a cell of a table or figure shows |

```python
import dpfedbench

runs = dpfedbench.load_runs("results")
private = runs[runs.epsilon_proven_high.notna()]
print(private[["method", "seed", "accuracy", "epsilon_claimed", "epsilon_proven_high"]])
```

`load_runs` adds the column `folder`, the path of the run's folder, which `dpfedbench.open_run` takes. It also works while the
workflow still runs: it then reads the folders of all runs that are tested and accounted for.

**Accuracy against any setting**, with the spread over seeds:

```python
curve = runs[runs.method == "dp-agr"].groupby("participation.cohort").accuracy
summary = curve.agg(["mean", "std"]).reset_index()
axes = summary.plot("participation.cohort", "mean", yerr="std", marker="o")
```

**The runs of one table**, by series:

```python
cells = dpfedbench.load_cells("results")
table = cells[(cells.paper == "dp-fedmeta") & (cells["item"] == "table2")]
print(table.merge(runs, on=["run", "seed"]).groupby("series").accuracy.mean())
```

**Two results folders** are one frame, since columns have the same names everywhere:

```python
import pandas as pd

both = pd.concat([runs.assign(origin="mine"), runs.assign(origin="yours")])
```

The numbers that a figure draws are in `results/figures/PAPER/ITEM.csv`, beside the picture. The clients of a round of a simulation
are `dpfedbench.open_run(folder).cohort(1)`, with rounds counted from 1. The noise multiplier that ran is the column
`noise_multiplier`; `noise.multiplier` is the configured one, which is empty where the budget fixes it.
"""

SETTINGS = """\
## Settings in `runs.parquet`

Every value of the resolved configuration is a column, named by its path: `participation.rounds`, `noise.multiplier`,
`clipping.kind`. [Configuration](configuration.md) says what each means. A setting that a run's method does not have is missing, and
a list is JSON text. A setting that has numbers in some runs and texts in others is text.
"""


def table_of(columns: tuple[Column, ...]) -> str:
    """Return a Markdown table of columns."""
    rows = [
        f"| `{column.name}` | {column.type} | {column.meaning} |" for column in columns
    ]
    return "\n".join(["| column | type | meaning |", "|---|---|---|", *rows])


def results_format_page() -> str:
    """Return the text of docs/results-format.md."""
    privacy = (
        "A run that protects two units, such as clients and records, has the columns"
        " again for the second unit, named `second_unit`, `second_delta` and so on.\n\n"
    )
    parts = [
        INTRODUCTION,
        f"## Which run\n\n{table_of(IDENTITY)}\n",
        f"## Test\n\n{table_of(TEST)}\n",
        f"## Privacy\n\n{privacy}{table_of(PRIVACY)}\n",
        f"## Training\n\n{table_of(TRAINING)}\n",
        SETTINGS,
        f"## Columns of `cells.parquet`\n\n{table_of(CELLS)}\n",
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(results_format_page(), encoding="utf-8")
