"""Write docs/results-format.md from the columns that the package declares."""

from pathlib import Path

from dpfedbench.results.columns import DICTIONARY

PAGE = Path(__file__).resolve().parents[1] / "docs" / "results-format.md"

INTRODUCTION = """\
# Results as data frames

After reading this page you can query all results of a workflow as two data frames: one row for each run, and one row for each run
of each table or figure cell. Below are also the files of a run.

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
print(table.groupby("series").accuracy.mean())
print(table.merge(runs[["run", "noise.multiplier"]], on="run"))
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

RUN_FOLDER = """\
## The folder of a run

`results/runs/METHOD/DATASET/TASK/KEY/seedN/`, where KEY follows from the configuration: any changed value makes another run.

| file | what it is |
|---|---|
| `config.yaml` | the resolved configuration |
| `history.csv` | one row for each round: threshold, norm of the release, ε so far, validation accuracy; seconds where no cohort is secret; loss and norm quantiles only for runs without privacy |
| `ledger.jsonl` | one line for each release: mechanism, threshold, noise, sampler, observer. `sampler.draw` names the draw of the cohorts: releases of one name are over the same cohorts, and nothing is composed where it is missing. Accountants read this file, never the training code. `round` counts from 0; for a merge with the history take `open_run(folder).releases`, which counts from 1 |
| `model.safetensors` | the meta-model |
| `training.json` | rounds planned and run, what stopped it, speed, versions, notices, tests of clients' own models |
| `privacy.json` | claimed ε, proven ε, ε of one image and of a declared search: each with low and high end, unit, adjacency, observer, status and explanation |
| `audit.json` | a lower bound on ε from canaries in the code that ran; only at the first seed of each private configuration, and once for configurations of the same mechanism |
| `metrics.json` | meta-test accuracy with its 95 % interval and every task's accuracy |
| `manifest/` | SHA-256 of each file, for `sha256sum -c` |
| `logs/`, `benchmark/` | a log for each job; and its costs (seconds, memory, processor time) for each but training, whose time would tell of secret cohorts |

Other folders are `results/data/` (images as one array, classes, summary), `results/clients/` (which client holds which image),
`results/features/` (features of all records of a data set, computed once for all linear heads that read them), `results/tables/` and
`results/figures/` (each figure with the numbers that it draws). Every reproducible run prints *simulated privacy: the noise seed is
public*. Whoever knows the seed can remove the noise, so these models are for measurement, not for release.
"""

SETTINGS = """\
## Settings in `runs.parquet`

Every value of the resolved configuration is a column, named by its path: `participation.rounds`, `noise.multiplier`,
`clipping.kind`. [Configuration](configuration.md) says what each means. A setting that a run's method does not have is missing, and
a list is JSON text. A setting that has numbers in some runs and texts in others is text.
"""


def make_column_table(group: str) -> str:
    """Return a Markdown table of a group of columns."""
    columns = DICTIONARY[DICTIONARY["group"] == group]
    rows = [
        f"| `{column.name}` | {column.type} | {column.meaning} |"
        for column in columns.drop(columns=["group", "source"]).itertuples(index=False)
    ]
    return "\n".join(["| column | type | meaning |", "|---|---|---|", *rows])


def make_page() -> str:
    """Return the text of docs/results-format.md."""
    privacy = (
        "A run that protects two units, such as clients and records, or one unit from"
        " several observers, has the columns again, named `second_unit`,"
        " `second_delta` and so on, and `third_unit` for a third.\n\n"
    )
    personal = (
        "With `clients.held_out_share` each client's own model, such as the shared body"
        " under a head that the client keeps, is tested after the last round on"
        " examples of that client that training left out. These numbers are the"
        " simulation's: no server sees them, no release has them, and no ε covers"
        " them. `accuracy` is the server's model's, on records that no client"
        " holds.\n\n"
    )
    parts = [
        INTRODUCTION,
        f"## Which run\n\n{make_column_table('identity')}\n",
        f"## Test\n\n{make_column_table('test')}\n",
        f"## Test of clients' own models\n\n{personal}{make_column_table('personal')}\n",
        f"## Privacy\n\n{privacy}{make_column_table('privacy')}\n",
        f"## Training\n\n{make_column_table('training')}\n",
        SETTINGS,
        RUN_FOLDER,
        f"## Columns of `cells.parquet`\n\n{make_column_table('cells')}\n",
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(make_page(), encoding="utf-8")
