"""Cost of a configuration: kinds of work, their rates, and the table of costs."""

import csv
from unittest.mock import Mock

import pytest

from dpfedbench.data.records import load_any_records
from dpfedbench.experiments import cost
from dpfedbench.experiments.cost import Clock
from dpfedbench.experiments.work import Rate, kind_key
from tests.dpfedbench.training.conftest import make_config
from tests.partitions import make_fragments

UNTESTED = {"validation": {"every": 0}, "participation": {"rounds": 2}}
TRANSFER = {
    "method": "transfer",
    "clients": {"count": 1, "partition": "fragments", "fragments": 1},
    "participation": {"rounds": 500},
}


def make_run(method="dp-agr", **overlay):
    size = "lot" if method == "transfer" else "cohort"
    size_of_round = {"participation": {size: 24}}
    return make_config({"method": method}, UNTESTED, size_of_round, overlay)


@pytest.fixture(scope="module")
def results(federation, tmp_path_factory):
    """Make a folder of results that has only the data set and the clients of the runs."""
    folder = tmp_path_factory.mktemp("cost") / "results"
    names = ("data/glyphs", f"clients/{make_run().clients_folder}")
    for name, source in zip(names, federation, strict=True):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).symlink_to(source)
    records = load_any_records(federation[0])
    fragments = make_fragments(records, clients=1, fragments=1, seed=0)
    fragments.save(folder / "clients" / make_run(**TRANSFER).clients_folder)
    return folder


def reported(runs, results, folder, cores=1):
    """Return the rows of cost.csv and the printed lines."""
    lines = []
    clock = Clock(results, device="cpu")
    cost.report(runs, clock, folder, cores=cores, say=lines.append)
    table = (folder / "cost.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(table.splitlines())), lines


def test_cost_of_a_run_is_that_of_its_clients_and_validations(tmp_path, monkeypatch):
    """Three runs have 2 rounds of 24 clients, 0.25 s a client.

    A longer run has 9 rounds of 40 clients, and after rounds 4, 8 and 9 a validation of
    10 tasks, 2 s a task.
    """
    short = make_run("maml")
    longer = make_run(
        "maml",
        validation={"every": 4, "tasks": 10},
        clients={"count": 400},
        participation={"cohort": 40, "rounds": 9},
    )
    rate = Rate(seconds_per_unit=0.25, validation=2.0)
    monkeypatch.setattr(Clock, "rate", lambda self, run: rate)
    runs = [longer, make_config({"method": "random"})]
    runs += [short.replace(seed=seed) for seed in (0, 1, 2)]
    rows, lines = reported(runs, tmp_path, tmp_path, cores=4)
    hours = str(round((3 * 12.0 + 90.0 + 60.0) / 3600, 5))
    assert [list(row.values()) for row in rows] == [
        ["maml", "4", "504", "0", hours],
        ["random", "1", "0", "0", "0"],
        ["total", "5", "504", "0", hours],
    ]
    assert "On 4 cores 4 run side by side: 46 s by the clock" in "\n".join(lines)


STARTED = {
    "initial": {"kind": "run", "run": make_run("maml").replace(seed=0).plain()},
    "streams": "own",
}


@pytest.mark.parametrize(
    ("run", "unit"),
    [
        (make_run(participation={"kind": "poisson"}), "clients"),
        (make_run("dp-agrlr", participation={"kind": "balls-and-bins"}), "clients"),
        (make_run(**TRANSFER), "records"),
        (make_run(**STARTED), "clients"),
    ],
)
def test_cost_times_each_kind_of_work_once_and_no_cohort_of_a_run(
    results, tmp_path, monkeypatch, run, unit
):
    """The cohorts of a run's seed are secret, so the clock draws its cohorts anew. The
    rates are those of this machine, so only their range is known.
    """
    make_rounds = Mock(wraps=cost.Rounds)
    monkeypatch.setattr(cost, "Rounds", make_rounds)
    runs = [run.replace(seed=seed) for seed in (0, 1)]
    (row, _), lines = reported(runs, results, tmp_path)
    assert len([line for line in lines if line.startswith("kind")]) == 1
    rates = (tmp_path / "cost_rates.csv").read_text(encoding="utf-8").splitlines()
    assert rates[1].startswith(f"{kind_key(run)},{run.method},")
    assert row["runs"] == "2"
    assert 0 < float(row["hours"]) < 1
    assert int(row[unit]) > 0
    make_rounds.assert_called_once()
    assert make_rounds.call_args.args[0].seed not in (0, 1)
