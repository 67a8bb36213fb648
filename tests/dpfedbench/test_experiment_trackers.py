"""Histories in TensorBoard and MLflow, read back by their own readers, beside what was
put into the files.
"""

import pytest

from dpfedbench import command
from dpfedbench.files import write_text
from tests.dpfedbench.results.conftest import write_run
from tests.dpfedbench.training.conftest import make_config
from workflow_jobs.manifests import seal

METHODS = ("dp-agr", "maml")
HISTORY = "round,threshold,test_accuracy,loss\n1,0.5,,\n2,0.25,41.5,\n"
POINTS = {
    "threshold": [(1, 0.5), (2, 0.25)],
    "test_accuracy": [(2, 41.5)],
    "result/accuracy": [(2, 41.5)],
}
"""Empty cells and empty columns are no points."""
PRIVATE_POINTS = {"result/claimed": [(2, 1.5)], "result/proven": [(2, 4.887)]}
"""The ε of `write_run`."""


def expected_points(method):
    return POINTS | (PRIVATE_POINTS if method == "dp-agr" else {})


@pytest.fixture
def results(tmp_path):
    """Two finished runs, one with privacy, and one that is not finished."""
    for method in METHODS:
        run = make_config({"method": method})
        write_run(tmp_path / "results", run, [40.0, 43.0])
        folder = tmp_path / "results" / "runs" / run.folder
        write_text(folder / "history.csv", HISTORY)
        seal("rule", sorted(path for path in folder.iterdir() if path.is_file()))
    write_text(folder.parent / "seed1" / "history.csv", HISTORY)
    return tmp_path / "results"


def test_tensorboard_reads_every_history(results, tmp_path):
    """A run that is there is written anew."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = tmp_path / "board"
    for _ in range(2):
        arguments = ["histories", "tensorboard", str(board), str(results)]
        assert command.main(arguments) == 0
    for method in METHODS:
        (folder,) = (board / method).glob("glyphs/*/*/seed0")
        read = EventAccumulator(str(folder)).Reload()
        points = {
            tag: [(event.step, event.value) for event in read.Scalars(tag)]
            for tag in read.Tags()["scalars"]
        }
        for tag in read.Tags()["tensors"]:
            points[tag] = [
                (event.step, event.tensor_proto.float_val[0])
                for event in read.Tensors(tag)
            ]
        expected = expected_points(method)
        assert set(points) == set(expected)
        for tag, values in expected.items():
            assert points[tag] == [
                (step, pytest.approx(value)) for step, value in values
            ]


@pytest.mark.filterwarnings("ignore")
def test_mlflow_reads_every_history(results, tmp_path, capsys):
    """A run that is there stays as it is."""
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    for new in (2, 0):
        assert command.main(["histories", "mlflow", "mine", str(results)]) == 0
        assert capsys.readouterr().out == f"{new} runs logged to mine\n"
    client = mlflow.MlflowClient()
    runs = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert {run.data.params["method"] for run in runs} == set(METHODS)
    for run in runs:
        points = {
            name: [
                (point.step, point.value)
                for point in client.get_metric_history(run.info.run_id, name)
            ]
            for name in run.data.metrics
        }
        assert points == expected_points(run.data.params["method"])
