"""Write docs/results-format.md from the columns that the package declares."""

from pathlib import Path

from dpfedbench.results.columns import DICTIONARY, run_columns

PAGE = Path(__file__).resolve().parents[1] / "docs" / "results-format.md"

INTRODUCTION = """\
# Results as data frames

After this page you can query all results of a workflow as two data frames, and you know the files of a run. The rule `collect`
writes the frames below `results/` or, with a preset, below `results/PRESET/`:

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

`load_runs` adds the column `folder`, which `dpfedbench.open_run` takes. While the workflow still runs, it reads the folders of
all runs that are tested and accounted for.

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
print(table.groupby("series").accuracy.mean())
print(table.merge(runs[["run", "noise.multiplier"]], on="run"))
```

**Two results folders** as one frame:

```python
import pandas as pd

both = pd.concat([runs.assign(origin="mine"), runs.assign(origin="yours")])
```

The numbers that a figure draws are in `results/figures/PAPER/ITEM.csv`. The clients of a simulation's first round are
`dpfedbench.open_run(folder).cohort(1)`. The column `noise.multiplier` is the configured one, `noise_multiplier` the one that ran.
Types of columns are in `runs.dtypes`.
"""

RUN_FOLDER = """\
## The folder of a run

`results/runs/METHOD/DATASET/TASK/KEY/seedN/`, where KEY follows from the configuration: any changed value makes another run.

| file | what it is |
|---|---|
| `config.yaml` | the resolved configuration |
| `history.csv` | one row for each round: threshold, norm of the release, ε so far, validation accuracy; seconds where no cohort is secret; loss and norm quantiles only for runs without privacy |
| `ledger.jsonl` | one line for each release: mechanism, threshold, noise, sampler, observer. `sampler.draw` names the draw of the cohorts: releases of one name are over the same cohorts, and nothing is composed where it is missing. `index` counts the rounds from 0 (`round` in ledgers of earlier versions); `open_run(folder).releases` has `round`, from 1 as in the history |
| `model.safetensors` | the meta-model |
| `training.json` | rounds planned and run, what stopped it, speed, versions, notices, tests of clients' own models |
| `privacy.json` | claimed ε, proven ε, ε of one image and of a declared search: each with low and high end, unit, adjacency, observer, status, explanation |
| `audit.json` | a lower bound on ε; only at the first seed of each private configuration, and once for configurations of one mechanism |
| `metrics.json` | meta-test accuracy with its 95 % interval and every task's accuracy |
| `manifest/` | SHA-256 of each file, for `sha256sum -c` |
| `logs/`, `benchmark/` | a log for each job; its seconds, memory and processor time, except for training, whose time would tell of secret cohorts |

Other folders are `results/data/` (images as one array, classes, summary), `results/clients/` (which client holds which image),
`results/features/` (features of a data set's records, for linear heads), `results/tables/` and `results/figures/`. Every reproducible
run prints *simulated privacy: the noise seed is public*. Whoever knows the seed can remove the noise, so these models are for
measurement, not for release.
"""

SETTINGS = """\
## Settings in `runs.parquet`

Every value of the [configuration](configuration.md) is a column, named by its path: `participation.rounds`, `clipping.kind`. A
setting that a run's method does not have is missing, and a list is JSON text. A setting that has numbers in some runs and texts in
others is text.
"""


def list_columns(group: str) -> str:
    """Return a Markdown list of a group of columns, with the units of numbers.

    Columns of cells that runs have too are named together; `paper` has two meanings.
    """
    columns = DICTIONARY[DICTIONARY["group"] == group]
    run_names = set(run_columns())
    shared = []
    lines = []
    for column in columns.itertuples(index=False):
        name = f"`{column.name}`"
        if group == "cells" and column.name in run_names - {"paper"}:
            shared.append(name)
            continue
        if column.type.startswith("number, "):
            name += f" ({column.type.removeprefix('number, ')})"
        lines.append(f"- {name}: {column.meaning}")
    if shared:
        lines.append(f"- of the cell's test, as in runs: {', '.join(shared)}")
    return "\n".join(lines)


def make_page() -> str:
    """Return the text of docs/results-format.md."""
    privacy = (
        "A run that protects two units, or one unit from several observers, has the"
        " columns again: `second_unit`, `second_delta`, …, and `third_unit`.\n\n"
    )
    personal = (
        "With `clients.held_out_share` each client's own model is tested after the last"
        " round on examples of that client that training left out. These numbers are"
        " the simulation's: no server sees them, and no ε covers them. `accuracy` is the"
        " server's model's, on records that no client holds.\n\n"
    )
    parts = [
        INTRODUCTION,
        f"## Which run\n\n{list_columns('identity')}\n",
        f"## Test\n\n{list_columns('test')}\n",
        f"## Test of clients' own models\n\n{personal}{list_columns('personal')}\n",
        f"## Privacy\n\n{privacy}{list_columns('privacy')}\n",
        f"## Training\n\n{list_columns('training')}\n",
        SETTINGS,
        RUN_FOLDER,
        f"## Columns of `cells.parquet`\n\n{list_columns('cells')}\n",
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(make_page(), encoding="utf-8")
