"""The values of finished runs that experiment trackers get."""

from dpfedbench.experiments.experiment_trackers import finished
from dpfedbench.files import write_text
from tests.dpfedbench.results.conftest import write_run
from tests.dpfedbench.training.conftest import make_config
from workflow_jobs.manifests import seal


def test_finished_runs_have_their_histories_and_results(tmp_path):
    """Empty cells and empty columns are no points, and an unfinished run has none."""
    expected = {("threshold", 1, 0.5), ("threshold", 2, 0.25)}
    expected |= {("test_accuracy", 2, 41.5), ("result/accuracy", 2, 41.5)}
    private = {("result/claimed", 2, 1.5), ("result/proven", 2, 4.887)}
    history = "round,threshold,test_accuracy,loss\n1,0.5,,\n2,0.25,41.5,\n"
    for method in ("dp-agr", "maml"):
        run = make_config({"method": method})
        write_run(tmp_path / "results", run, [40.0, 43.0])
        folder = tmp_path / "results" / "runs" / run.folder
        write_text(folder / "history.csv", history)
        seal("rule", sorted(path for path in folder.iterdir() if path.is_file()))
    write_text(folder.parent / "seed1" / "history.csv", history)
    runs = dict(finished(tmp_path / "results"))
    assert sorted(name.split("/")[0] for name in runs) == ["dp-agr", "maml"]
    for name, frame in runs.items():
        points = frame[["variable", "round", "value"]].itertuples(index=False)
        extra = private if name.startswith("dp-agr") else set()
        rounded = {(name, index, round(value, 3)) for name, index, value in points}
        assert rounded == expected | extra
