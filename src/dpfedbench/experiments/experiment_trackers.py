"""The histories and results of finished runs in TensorBoard or MLflow, where its client
is installed.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from dpfedbench.errors import BenchError
from dpfedbench.manifests import checked
from dpfedbench.results.load import load_runs
from dpfedbench.training.history import read_history

_RESULTS = {
    "accuracy": "result/accuracy",
    "epsilon_claimed": "result/claimed",
    "epsilon_proven_high": "result/proven",
}
"""Columns of the frame of runs, and the quantities that trackers have of them."""
_BATCH = 1000
"""Values that MLflow takes at once."""


def finished(results: Path | str) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield each finished run below a results folder: its name,
    METHOD/DATASET/TASK/KEY/seedN, and its finite values with columns `round`,
    `variable` and `value`.

    They are those of its history; and at its last round (0 of a run without rounds)
    `result/accuracy` of the test in percent, and `result/claimed` and `result/proven`,
    the two ε.

    Raises:
        BenchError: there is no finished run, or a file of one is damaged.
    """
    for _, row in load_runs(results).iterrows():
        history = read_history(checked(Path(row["folder"], "history.csv")))
        ends = row[list(_RESULTS)].rename(_RESULTS).to_frame().T
        ends["round"] = history["round"].max() if len(history) else 0
        values = pd.concat([history.melt("round"), ends.melt("round")])
        values["value"] = values["value"].astype(float)
        yield row["run"], values[np.isfinite(values["value"])]


def to_tensorboard(results: Path | str, folder: Path | str) -> int:
    """Write each finished run as a run of TensorBoard in a folder; return how many. A
    run that is there is written anew.

    Raises:
        BenchError: TensorBoard is not installed, or see `finished`.
    """
    try:
        from tensorboard.summary import Writer
    except ImportError:
        raise BenchError(
            "TensorBoard is not installed: pip install tensorboard"
        ) from None
    runs = list(finished(results))
    for name, values in runs:
        for old in Path(folder, name).glob("events.out.tfevents.*"):
            old.unlink()
        writer = Writer(str(Path(folder, name)))
        for row in values.itertuples():
            writer.add_scalar(row.variable, row.value, row.round)
        writer.close()
    return len(runs)


def to_mlflow(results: Path | str, experiment: str) -> int:
    """Log each finished run to an experiment of the MLflow that MLFLOW_TRACKING_URI
    names; return how many were new.

    A run whose name is there already is left as it is.

    Raises:
        BenchError: MLflow is not installed, or see `finished`.
    """
    try:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param
    except ImportError:
        raise BenchError("MLflow is not installed: pip install mlflow-skinny") from None
    client = MlflowClient()
    known = client.get_experiment_by_name(experiment)
    if known is None:
        client.create_experiment(experiment)
    experiment_id = client.get_experiment_by_name(experiment).experiment_id
    count = 0
    for name, values in finished(results):
        filter_string = f"attributes.run_name = '{name}'"
        if client.search_runs([experiment_id], filter_string, max_results=1):
            continue
        run = client.create_run(experiment_id, run_name=name).info.run_id
        parts = name.split("/")
        identity = zip(("method", "dataset", "task", "key", "seed"), parts, strict=True)
        client.log_batch(run, params=[Param(key, value) for key, value in identity])
        metrics = [
            Metric(row.variable, row.value, 0, row.round) for row in values.itertuples()
        ]
        for start in range(0, len(metrics), _BATCH):
            client.log_batch(run, metrics=metrics[start : start + _BATCH])
        client.set_terminated(run)
        count += 1
    return count
