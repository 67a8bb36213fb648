"""The histories and results of finished runs in TensorBoard or MLflow, where its client
is installed.
"""

import math
from collections.abc import Iterator
from pathlib import Path

from dpfedbench.errors import BenchError
from dpfedbench.files import read_group
from dpfedbench.results.curves import read_history
from dpfedbench.results.manifests import checked
from dpfedbench.results.runs_table import read_account

Points = dict[str, list[tuple[int, float]]]
"""Values of a quantity, each with its round."""


def finished(results: Path | str) -> Iterator[tuple[str, Points]]:
    """Each finished run below a results folder: its name,
    METHOD/DATASET/TASK/KEY/seedN, and its quantities.

    They are the columns of its history, where these have values; and at its last round
    `accuracy` of the test in percent, and `claimed` and `holds`, the two ε where they
    are finite.

    Raises:
        BenchError: there is no finished run, or a file of one is damaged.
    """
    top = Path(results, "runs")
    folders = [path.parent for path in sorted(top.glob("*/*/*/*/seed*/metrics.json"))]
    if not folders:
        raise BenchError(
            f"{results} has no finished run: give the results folder of a workflow"
        )
    for folder in folders:
        history = read_history(checked(folder / "history.csv"))
        quantities: Points = {}
        for column in history.columns.drop("round"):
            rows = history.dropna(subset=[column])
            pairs = zip(rows["round"], rows[column], strict=True)
            quantities[str(column)] = [
                (int(at), float(value)) for at, value in pairs if math.isfinite(value)
            ]
        last = int(history["round"].max()) if len(history) else 0
        ends = {
            "accuracy": float(read_group(checked(folder / "metrics.json"))["accuracy"])
        }
        if (folder / "privacy.json").exists():
            profiles = read_account(checked(folder / "privacy.json")).profiles
            ends |= {
                name: profiles[name].epsilon_high
                for name in ("as_claimed", "holds")
                if name in profiles
            }
        quantities |= {
            f"result/{name}": [(last, value)]
            for name, value in ends.items()
            if math.isfinite(value)
        }
        yield (
            folder.relative_to(top).as_posix(),
            {name: points for name, points in quantities.items() if points},
        )


def to_tensorboard(results: Path | str, folder: Path | str) -> int:
    """Write each finished run as a run of TensorBoard in a folder; how many. A run that
    is there is written anew.

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
    for name, quantities in runs:
        for old in Path(folder, name).glob("events.out.tfevents.*"):
            old.unlink()
        writer = Writer(str(Path(folder, name)))
        for quantity, points in quantities.items():
            for at, value in points:
                writer.add_scalar(quantity, value, at)
        writer.close()
    return len(runs)


def to_mlflow(results: Path | str, experiment: str) -> int:
    """Log each finished run to an experiment of the MLflow that MLFLOW_TRACKING_URI
    names; how many were new.

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
    count = 0
    batch = 1000
    known = client.get_experiment_by_name(experiment)
    experiment_id = (
        known.experiment_id if known else client.create_experiment(experiment)
    )
    for name, quantities in finished(results):
        if client.search_runs(
            [experiment_id],
            filter_string=f"attributes.run_name = '{name}'",
            max_results=1,
        ):
            continue
        run = client.create_run(experiment_id, run_name=name).info.run_id
        words = zip(
            ("method", "dataset", "task", "key", "seed"), name.split("/"), strict=True
        )
        values = [
            Metric(quantity, value, 0, at)
            for quantity, points in quantities.items()
            for at, value in points
        ]
        client.log_batch(run, params=[Param(key, word) for key, word in words])
        for start in range(0, len(values), batch):
            client.log_batch(run, metrics=values[start : start + batch])
        client.set_terminated(run)
        count += 1
    return count
