"""Write docs/results/real.md: which runs of the `real` preset were measured.

`uv run python tools/real_rows.py` writes the page from the preset's plan and from
`MEASURED`; a test compares the page with both.
"""

from collections import Counter
from pathlib import Path

from dpfedbench.config.yaml_files import read_file
from dpfedbench.experiments.configuration import (
    Configuration,
    overlaid,
    shipped_files,
)
from dpfedbench.experiments.expand import make_plan
from dpfedbench.experiments.plan import Plan

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "results" / "real.md"
_SEARCHES = [
    "fnas-1",
    "dp-1",
    "dp-4",
    "dp-wide",
    "clipped",
    "of-dp-1",
    "of-dp-4",
    "of-dp-wide",
    "of-clipped",
]
_FIXED_CELLS = ["separable", "skip", *(f"random-{number}" for number in range(6))]
# Add a line for each measurement: its row of docs/measurements.md, the paper, the table
# or figure, and the values of series, seed, x, shots and ways that select its runs.
MEASURED = (
    ("M131", "dp-fedmeta", "table2-mini-imagenet", {"series": ["dp-agrlr", "gbml"]}),
    ("M132", "dp-maml", "figure11", {}),
    ("M132", "dp-maml", "figure13", {"series": ["sample"], "shots": [8]}),
    ("M130", "dp-fedmeta", "as-released", {"series": ["by-tensor"]}),
    ("M133", "dp-fedmeta", "as-released", {"series": ["batch-normalisation"]}),
    ("M128", "dp-fnas", "table1-cifar-10", {}),
    (
        "M129",
        "adap-dp-fl",
        "accuracy-a",
        {"series": ["constant-4", "constant-6", "adap-raw", "adap-scalar"]},
    ),
    ("M127", "dp-fedmeta", "figure3", {"series": ["aqc", "constant"]}),
    ("M126", "dp-fedmeta", "figure4b", {}),
    ("M126", "dp-fedmeta", "figure4c", {}),
    ("M126", "dp-fedmeta", "figure4d", {}),
    ("M98", "dp-fedmeta", "table2-by-tensor", {"series": ["as-read", "joint"]}),
    ("M100", "dp-fedmeta", "gbml-tests", {}),
    (
        "M101",
        "dp-fedmeta",
        "as-released",
        {
            "series": [
                "published",
                "one-noise",
                "exact-query",
                "five-steps",
                "raw-norms",
            ]
        },
    ),
    ("M103", "dp-fedmeta", "random-tests", {}),
    ("M105", "dp-fedmeta", "readings", {"series": ["rotated"]}),
    ("M106", "dp-fedmeta", "explanations", {"series": ["by-tensor", "both"]}),
    ("M108", "dp-fedmeta", "as-released", {"series": ["second-order"]}),
    ("M107", "dp-fedmeta", "as-released-seeds", {"series": ["five-steps"]}),
    ("M109", "dp-fedmeta", "as-released-seeds", {"series": ["exact-query"]}),
    ("M110", "dp-fedmeta", "explanations", {"series": ["dp-agr", "rates"]}),
    (
        "M111",
        "dp-fedmeta",
        "baselines",
        {
            "series": [
                "public-small-batches",
                "public-start-small-batches",
                "public-start-small-batches-slow",
            ],
            "seed": [0, 1, 2],
        },
    ),
    ("M118", "dp-maml", "figure10", {}),
    ("M118", "dp-maml", "figure9", {}),
    ("M119", "adap-dp-fl", "figure3b", {}),
    ("M119", "adap-dp-fl", "figure3d", {}),
    ("M120", "dp-fnas", "table2-cifar-10", {}),
    ("M121", "dp-maml", "table3-mini-imagenet", {}),
    (
        "M121",
        "dp-fedmeta",
        "table2-mini-imagenet",
        {"series": ["random", "maml", "dp-agr"]},
    ),
    ("M122", "dp-maml", "figure4", {}),
    ("M123", "adap-dp-fl", "figure1a", {}),
    ("M123", "adap-dp-fl", "figure6a", {}),
    ("M123", "adap-dp-fl", "figure4b", {"series": ["adap-noise", "constant-3"]}),
    (
        "M123",
        "adap-dp-fl",
        "accuracy-a",
        {"series": ["fedavg", "adap-noise", "constant-3"]},
    ),
    ("M112", "dp-fnas", "as-released", {}),
    ("M62", "clients-that-differ", "records", {}),
    (
        "M62",
        "clients-that-differ",
        "letters",
        {"series": ["maml-alphabets", "dp-agr-alphabets"]},
    ),
    ("M7", "adap-dp-fl", "readings-b", {}),
    ("M7", "adap-dp-fl", "validation-b", {}),
    ("M8", "adap-dp-fl", "accuracy-b-rate-003", {}),
    ("M9", "adap-dp-fl", "repairs-b", {"series": ["quantile-2"]}),
    (
        "R3",
        "adap-dp-fl",
        "frontier",
        {
            "series": [
                "calibrated",
                "adap-noise-proven",
                "adap-raw",
                "adap-scalar-1",
                "constant-4",
            ],
            "seed": [0],
        },
    ),
    (
        "M27",
        "correlated-noise",
        "participation",
        {"series": ["independent", "optimised", "balls-and-bins"]},
    ),
    (
        "M27",
        "correlated-noise",
        "participation",
        {"series": ["independent-momentum"], "seed": [0]},
    ),
    ("R4", "dp-fedmeta", "table2", {}),
    ("R4", "dp-fedmeta", "table2-colour", {}),
    (
        "R5",
        "dp-fedmeta",
        "repairs",
        {"series": ["published", "one-pass", "balls-and-bins"]},
    ),
    (
        "M1",
        "dp-fedmeta",
        "figure4a",
        {"series": ["mean", "raw-norms"], "x": [90], "seed": [0]},
    ),
    (
        "M4",
        "dp-fedmeta",
        "readings",
        {"series": ["as-stated", "rates", "multi-step", "both"]},
    ),
    ("M13", "dp-fedmeta", "ways-and-shots", {}),
    (
        "R2",
        "dp-fedmeta",
        "frontier",
        {
            "series": ["maml", "random", "dp-agr", "dp-maml", "dp-agrlr", "gbml"],
            "seed": [0],
        },
    ),
    (
        "R2",
        "dp-fedmeta",
        "frontier",
        {
            "series": ["one-pass", "balls-and-bins", "correlated"],
            "x": [0.5, 1.5, 4, 8],
            "seed": [0],
        },
    ),
    ("M31", "dp-fedmeta", "frontier", {"series": ["public"], "seed": [0]}),
    (
        "M31",
        "dp-fedmeta",
        "frontier",
        {"series": ["public-start"], "x": [0.5, 1.5], "seed": [0]},
    ),
    (
        "M36",
        "dp-fedmeta",
        "baselines",
        {"series": ["public", "public-64000", "public-start-64000"]},
    ),
    ("M36", "dp-fedmeta", "frontier", {"series": ["public-64000"]}),
    (
        "M36",
        "dp-fedmeta",
        "frontier",
        {"series": ["public-start-64000"], "x": [0.5, 1.5]},
    ),
    ("M38", "dp-fedmeta", "baselines", {"series": ["public-start-64000-slow"]}),
    ("M34", "adap-dp-fl", "baselines-b", {"series": ["scattering-155"]}),
    ("M46", "adap-dp-fl", "frontier", {"series": ["scattering"]}),
    ("M45", "correlated-noise", "passes", {"series": ["four-passes"]}),
    ("M63", "dp-fedmeta", "frontier", {"series": ["public-128000"]}),
    ("M63", "dp-fedmeta", "frontier", {"series": ["public-start-128000"], "x": [1.5]}),
    ("M64", "correlated-noise", "passes", {"series": ["four-passes-half"]}),
    (
        "M64",
        "correlated-noise",
        "secret",
        {
            "series": [
                "band-2-rate-2",
                "band-2-adam",
                "band-2-adam-02",
                "independent-02",
            ],
            "seed": [0],
        },
    ),
    (
        "M65",
        "dp-fedmeta",
        "frontier",
        {"series": ["public-start-128000", "balls-and-bins", "product"]},
    ),
    (
        "M65",
        "dp-fedmeta",
        "frontier",
        {"series": ["public-128000", "dp-agr", "maml", "random"]},
    ),
    ("M66", "dp-fedmeta", "frontier", {"series": ["public-128000-on"]}),
    ("M20", "dp-fnas", "small", {"series": [*_SEARCHES, *_FIXED_CELLS]}),
    ("M20", "dp-fnas", "small-seeds", {"series": _FIXED_CELLS}),
    ("M67", "dp-fnas", "small-seeds", {"series": ["scattering"]}),
    ("M68", "dp-maml", "baselines", {}),
    ("M13", "dp-maml", "table3", {"shots": [5]}),
    ("M13", "dp-maml", "table3", {"ways": [20]}),
    ("M11", "dp-maml", "repairs", {"seed": [0]}),
    ("M12", "dp-maml", "figure6a", {"series": ["quantile"]}),
    ("M15", "dp-meta-learning-gbml", "figure2", {}),
    ("M69", "dp-meta-learning-gbml", "baselines", {"seed": [0]}),
    ("M30", "secure-aggregation", "bits", {"series": ["bits-16"]}),
)


def read_plan() -> Plan:
    """Return the plan of the `real` preset."""
    config = ROOT / "config"
    preset = config / "presets" / "real.yaml"
    files = [*shipped_files(config, "real"), preset]
    return make_plan(Configuration.read(overlaid(*map(read_file, files))))


def find_measured_runs(plan: Plan) -> dict[str, list[str]]:
    """Return the measured runs: rows of docs/measurements.md by folder of the run.

    Raises:
        ValueError: a line of `MEASURED` selects no run of the plan.
    """
    measured: dict[str, list[str]] = {}
    for row, paper, item, conditions in MEASURED:
        selected = []
        for cell in plan.items[paper, item].cells:
            for run in cell.runs:
                known = {
                    "series": cell.series,
                    "x": cell.x,
                    "seed": run.seed,
                    "shots": run.task.shots,
                    "ways": run.task.ways,
                }
                if all(known[key] in values for key, values in conditions.items()):
                    selected.append(run.folder)
        if not selected:
            raise ValueError(f"{row}: {paper} {item} has no run of {conditions}")
        for folder in selected:
            rows = measured.setdefault(folder, [])
            if row not in rows:
                rows.append(row)
    return measured


def _count_measured(count: int, total: int) -> str:
    """Return the text that states how many runs of an item were measured."""
    if total == 0:
        return "accounting alone"
    if count == total:
        return "all"
    return str(count) if count else "none"


def _choose_rows(rows_by_run: list[list[str]]) -> list[str]:
    """Return few rows of measurements that have all runs.

    The function takes the row that has the most runs, then that with the most of the
    others, and so on; of equals the first.
    """
    chosen = []
    left = rows_by_run
    while left:
        counts = Counter(row for rows in left for row in rows)
        best = min(counts, key=lambda row: (-counts[row], *_sort_key(row)))
        chosen.append(best)
        left = [rows for rows in left if best not in rows]
    return sorted(chosen, key=_sort_key)


def _sort_key(row: str) -> tuple[str, int]:
    """Return the letter and the number of a row of measurements."""
    return row[0], int(row[1:])


def _format_seeds(seeds: list[int]) -> str:
    """Return seeds as text: "0", or "0–2" for consecutive ones."""
    if len(seeds) > 1 and seeds == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]}–{seeds[-1]}"
    return ", ".join(map(str, seeds))


def make_page(plan: Plan) -> str:
    """Return the page, in Markdown."""
    measured = find_measured_runs(plan)
    names_by_cells: dict[tuple[str, ...], list[str]] = {}
    for (paper, name), item in plan.items.items():
        cell_runs = [run for cell in item.cells for run in cell.runs]
        folders = dict.fromkeys(item.runs)
        measured_folders = [folder for folder in folders if folder in measured]
        state = _count_measured(len(measured_folders), len(folders))
        rows = _choose_rows([measured[folder] for folder in measured_folders])
        data = ", ".join(sorted({run.dataset for run in cell_runs}))
        seeds = _format_seeds(sorted({run.seed for run in cell_runs}))
        kind = "tables" if item.kind == "table" else "figures"
        cells = (data, seeds, str(len(folders)), state, ", ".join(rows) or "–")
        names_by_cells.setdefault((f"{kind}/{paper}", *cells), []).append(name)
    lines = [
        f"| {folder}/{', '.join(names)} | {' | '.join(cells)} |"
        for (folder, *cells), names in names_by_cells.items()
    ]
    shown_runs = {folder for item in plan.items.values() for folder in item.runs}
    count = sum(folder in measured for folder in shown_runs)
    return (
        f"""# What of `real` was run

The `real` preset has {len(plan.runs)} runs. Its tables and figures show {len(shown_runs)} of them,
and **{count} of these stand**: these pages have a number of theirs. The others were not run.
`uv run python tools/real_rows.py` writes this page.

- *runs*: how many the table or figure shows. Tables and figures share runs.
- *stand*: how many of them were measured: all, a number, or none.
- *numbers*: few rows of [measurements](../measurements.md) that have all of these; each has command, processor and date.

A row that is missing is made by its own target, for example

    export DPFEDBENCH_DATA=/path/to/folder
    uv run snakemake --cores all results/real/tables/dp-maml/baselines.csv --configfile config/presets/real.yaml

(`.csv` of a table, `.png` of a figure). Tables or figures with equal cells share a line.

| table or figure, below `results/real/` | data | seeds | runs | stand | numbers |
|---|---|---|---|---|---|
"""
        + "\n".join(lines)
        + "\n"
    )


if __name__ == "__main__":
    PAGE.write_text(make_page(read_plan()), encoding="utf-8")
