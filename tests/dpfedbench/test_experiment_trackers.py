"""Histories in TensorBoard and MLflow, read back by their own readers, beside what was
put into the files.
"""

import sys
from pathlib import Path

import pytest

from dpfedbench import command
from dpfedbench.files import write_text
from dpfedbench.papers import read_run
from tests.dpfedbench.results.conftest import write_run
from workflow_jobs.manifests import seal

RUN = {
    "seed": 0,
    "dataset": "glyphs",
    "task": {"ways": 5, "shots": 1},
    "model": "conv4",
}
RUN |= {
    "clients": {
        "count": 20,
        "examples_per_class": 2,
        "support_per_class": 1,
        "query_per_class": 1,
    }
}
RUN |= {"participation": {"kind": "one-pass", "cohort": 10, "rounds": 2}}
HISTORY = "round,threshold,test_accuracy,loss\n1,0.5,,\n2,0.25,41.5,\n"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Two finished runs, one with privacy, and one that is not finished."""
    for method in ("dp-agr", "maml"):
        run = read_run(
            RUN
            | {"method": method}
            | ({"budget": {"delta": 1e-3}} if method == "dp-agr" else {})
        )
        write_run(tmp_path / "results", run, [40.0, 43.0])
        folder = tmp_path / "results" / "runs" / run.folder
        write_text(folder / "history.csv", HISTORY)
        seal("rule", sorted(path for path in folder.iterdir() if path.is_file()))
    unfinished = folder.parent / "seed1"
    unfinished.mkdir()
    write_text(unfinished / "history.csv", HISTORY)
    return tmp_path / "results"


def wanted(method: str) -> dict[str, list[tuple[int, float]]]:
    """Return the points of the files: empty cells and empty columns are no points.

    1.5 and 4.887 are the ε of `write_run`.
    """
    points = {
        "threshold": [(1, 0.5), (2, 0.25)],
        "test_accuracy": [(2, 41.5)],
        "result/accuracy": [(2, 41.5)],
    }
    private = {"result/claimed": [(2, 1.5)], "result/proven": [(2, 4.887)]}
    return points | private if method == "dp-agr" else points


def test_tensorboard_reads_every_history(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for _ in range(2):  # a run that is there is written anew
        assert (
            command.main(
                ["histories", "tensorboard", str(tmp_path / "board"), str(results)]
            )
            == 0
        )
    assert capsys.readouterr().out.startswith("2 runs logged to ")
    for method in ("dp-agr", "maml"):
        (folder,) = (tmp_path / "board" / method).glob("glyphs/*/*/seed0")
        read = EventAccumulator(str(folder)).Reload()
        points_by_tag = {
            tag: [
                (event.step, event.tensor_proto.float_val[0])
                for event in read.Tensors(tag)
            ]
            for tag in read.Tags()["tensors"]
        }
        points_by_tag |= {
            tag: [(scalar.step, scalar.value) for scalar in read.Scalars(tag)]
            for tag in read.Tags()["scalars"]
        }
        assert {
            tag: [at for at, _ in points] for tag, points in points_by_tag.items()
        } == {tag: [at for at, _ in points] for tag, points in wanted(method).items()}
        for tag, points in wanted(method).items():
            assert [value for _, value in points_by_tag[tag]] == pytest.approx(
                [value for _, value in points]
            )


@pytest.mark.filterwarnings("ignore")
def test_mlflow_reads_every_history(
    results: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    for new in (2, 0):  # a run that is there stays as it is
        assert command.main(["histories", "mlflow", "mine", str(results)]) == 0
        assert capsys.readouterr().out == f"{new} runs logged to mine\n"
    client = mlflow.MlflowClient()
    runs = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert {run.data.params["method"] for run in runs} == {"dp-agr", "maml"}
    for run in runs:
        assert run.data.params["dataset"] == "glyphs" and run.info.status == "FINISHED"
        points_by_name = {
            name: [
                (point.step, point.value)
                for point in client.get_metric_history(run.info.run_id, name)
            ]
            for name in run.data.metrics
        }
        assert points_by_name == wanted(run.data.params["method"])


@pytest.mark.parametrize(
    ("words", "missing", "said"),
    [
        (
            ["tensorboard", "board"],
            "tensorboard",
            "TensorBoard is not installed: pip install tensorboard",
        ),
        (
            ["mlflow", "mine"],
            "mlflow",
            "MLflow is not installed: pip install mlflow-skinny",
        ),
        (["wandb", "mine"], "", "usage: dpfedbench run"),
        (["mlflow"], "", "usage: dpfedbench run"),
    ],
)
def test_trackers_report_a_missing_client_in_one_line(
    words: list[str],
    missing: str,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in (missing, f"{missing}.summary") if missing else ():
        monkeypatch.setitem(sys.modules, name, None)
    assert command.main(["histories", *words]) == 1
    error = capsys.readouterr().err
    assert error.startswith(said) and error.count("\n") == 1


def test_trackers_refuse_a_folder_without_finished_runs(tmp_path: Path) -> None:
    from dpfedbench.errors import BenchError
    from dpfedbench.experiments.experiment_trackers import finished

    with pytest.raises(BenchError, match="has no runs: give the results folder"):
        list(finished(tmp_path))
