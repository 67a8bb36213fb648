"""Independence of all files of a private run from who took part.

Two runs of one configuration draw other cohorts (or lots). All contributions are zero
and the noise is the same, so their releases are equal. What differs between the two
folders then follows from who took part.
"""

import pytest

from dpsum import participation
from dpsum.private_sum import PlainSum, PrivateSum
from tests.dpfedbench.training.conftest import LOTS, make_config
from tests.finished_run import (
    MACHINE,
    account,
    configure,
    copy_inputs,
    folder_of,
    meta_test,
    train_run,
)

SHORT = {
    "participation": {"cohort": 12, "rounds": 4},
    "validation": {"every": 2, "tasks": 4, "ensemble": 2},
}
RUNS = {
    "balls-and-bins": make_config(SHORT, {"participation": {"kind": "balls-and-bins"}}),
    "Poisson": make_config(SHORT, {"participation": {"kind": "poisson"}}),
    "differences": make_config(
        {
            "method": "dp-fedavg",
            "client_update": {"kind": "model-difference", "inner_rate": 0.1},
            "clipping": {"kind": "constant"},
            "participation": {"kind": "poisson", "cohort": 2, "rounds": 4},
        },
        general=LOTS,
    ),
    "lots": make_config(
        {"participation": {"rounds": 4}, "validation": {"every": 2}}, general=LOTS
    ),
}
WITHOUT_PRIVACY = make_config(
    SHORT, {"method": "maml", "participation": {"kind": "poisson"}}
)

OF_THE_MACHINE = {
    "benchmark/configure.tsv": "written before the training",
    "benchmark/meta_test.tsv": "its stage reads the released model and public data",
    "benchmark/account.tsv": "its stage reads the ledger and the partition",
    "logs/meta_test.log": "has the rate of that stage",
}
"""Files that may differ, with the reason; each measures time or memory of a stage that
does not know who took part.
"""


def add_nothing(add):
    """Return an `add` after which each contribution counts as zero."""

    def zero(limit, total, norms):
        before = total.copy()
        add(limit, total, norms)
        total[...] = before

    return zero


def run_stages(run, folders):
    """Run the workflow's scripts for one run here; return the run's folder."""
    copy_inputs(run, *folders)
    configure(run)
    machine = MACHINE | {"checkpoint_seconds": 0, "kernels": "off"}
    train_run(run, config={"machine": machine})
    meta_test(run)
    account(run)
    return folder_of(run).absolute()


def count_all_as_zero(monkeypatch):
    """Make each contribution to a sum count as zero."""
    for kind in (PrivateSum, PlainSum):
        add_by = kind.add_by

        def adding(self, add, count, add_by=add_by):
            return add_by(self, add_nothing(add), count)

        monkeypatch.setattr(kind, "add_by", adding)


def files_of(folder):
    """Return the files below a folder by name."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def files_of_two_runs(run, folders, tmp_path, monkeypatch):
    """Return the files of both runs by name, and each run's cohorts and drawn streams."""
    draw = participation.stream
    files = []
    drawn = []
    count_all_as_zero(monkeypatch)
    for name in ("first", "second"):
        streams = set()

        def other_stream(seed, purpose, *rest, name=name, streams=streams):
            streams.add(f"{purpose} of the {name}")
            return draw(seed, f"{purpose} of the {name}", *rest)

        monkeypatch.setattr(participation, "stream", other_stream)
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        files.append(files_of(run_stages(run, folders)))
        plan = run.participation.plan(clients=run.clients.count, seed=run.stream_seed)
        cohorts = [
            plan.sample_cohort(index) for index in range(run.participation.rounds)
        ]
        drawn.append([[cohort.tolist() for cohort in cohorts], sorted(streams)])
    return files, drawn


@pytest.mark.parametrize("name", RUNS)
def test_files_of_a_private_run_do_not_depend_on_who_took_part(
    federation, silos, tmp_path, monkeypatch, name
):
    run = RUNS[name]
    folders = silos if run.client_data == "records" else federation
    (first, second), drawn = files_of_two_runs(run, folders, tmp_path, monkeypatch)
    for _, streams in drawn:
        assert any(stream.startswith(("participation", "lot")) for stream in streams)
    if name != "lots":  # whose clients are there in each round
        assert drawn[0][0] != drawn[1][0]
    assert first.keys() == second.keys()
    expected = {"history.csv", "training.json", "ledger.jsonl", "logs/train.log"}
    expected |= {"manifest/train-model.sha256", "privacy.json", "metrics.json"}
    assert expected <= first.keys()
    assert "benchmark/train.tsv" not in first
    differing = {key for key in first if first[key] != second[key]}
    assert differing <= OF_THE_MACHINE.keys()


def test_comparison_detects_a_run_without_privacy(federation, tmp_path, monkeypatch):
    """Its history has losses of the cohort, whose contributions are zero here too."""
    (first, second), _ = files_of_two_runs(
        WITHOUT_PRIVACY, federation, tmp_path, monkeypatch
    )
    assert first["history.csv"] != second["history.csv"]
