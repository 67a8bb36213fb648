"""Load the frames of a results folder, for notebooks and scripts."""

from pathlib import Path

import pandas as pd

from dpfedbench.errors import BenchError
from dpfedbench.files import reading
from dpfedbench.results.runs_table import CELLS_FILE, RUNS_FILE, collect_runs


def load_runs(results: str | Path = "results") -> pd.DataFrame:
    """Return one row for each finished run of a results folder.

    The rule `collect` writes the frame as `runs.parquet`. Where that file does not
    exist, for instance while the workflow still runs, the folders of all runs that have
    been tested and accounted for are read. That takes longer, and a run then has an
    audit only if it was audited itself: which runs share one follows from the plan.

    Args:
        results: the results folder, or the folder of a preset or of an experiment in
            it, such as `results/real` or `results/experiments/mine`.

    Returns:
        A frame with the columns of docs/results-format.md, one column for each value of
        the configurations, and `folder`, the path of the run's folder.

    Raises:
        BenchError: there is no such folder.
    """
    results = Path(results)
    # Folders of presets and experiments lie at most three folders below.
    folders = [results, *results.parents][:4] if results.is_dir() else []
    runs_folder = next(
        (folder / "runs" for folder in folders if (folder / "runs").is_dir()), None
    )
    if runs_folder is None:
        raise BenchError(
            f"{results} has no runs: give the results folder of a workflow"
        )
    saved = results / RUNS_FILE
    if saved.exists():
        frame = pd.read_parquet(saved)
    else:
        # Slow to import, and not needed where the frame has been written.
        from dpfedbench.papers import METHODS

        papers = {name: method.paper for name, method in METHODS.items()}
        runs = finished_runs(runs_folder)
        frame = collect_runs(runs_folder.parent, runs, papers=papers)
    frame["folder"] = f"{runs_folder}/" + frame["run"]
    return frame


def finished_runs(runs_folder: Path) -> list[str]:
    """Return the runs that have been tested and accounted for, below a folder `runs`."""
    folders = [path.parent for path in runs_folder.glob("*/*/*/*/seed*/metrics.json")]
    runs = [
        folder.relative_to(runs_folder).as_posix()
        for folder in folders
        if (folder / "privacy.json").exists()
    ]
    return sorted(runs)


def load_cells(results: str | Path = "results") -> pd.DataFrame:
    """Return which runs each cell of a table or figure shows, one row for each run.

    Raises:
        BenchError: there is no such folder, or the workflow has not finished.
    """
    path = Path(results, CELLS_FILE)
    with reading(path):
        return pd.read_parquet(path)
