"""Cost of a configuration: kinds of work, their rates, and the table of costs."""

import csv
from pathlib import Path
from types import SimpleNamespace

import pytest

from dpfedbench.data.images import load_dataset
from dpfedbench.data.records import load_any_records
from dpfedbench.experiments import cost
from dpfedbench.experiments.cost import Clock, Rate
from dpsum.accounting.calibration import rounds_allowed
from tests.dpfedbench.test_experiments import configuration, plan
from tests.partitions import make_fragments, make_partition

TINY = {
    "task": {"ways": 3},
    "clients": {"count": 40, "query_per_class": 2},
    "model": {"filters": 4},
    "participation": {"cohort": 20, "rounds": 2},
    "evaluation": {"query_per_class": 3},
}
TRANSFER = {
    "clients": {"count": 1, "partition": "fragments", "fragments": 1},
    "participation": {"cohort": 20},
}


def make_run(method, dataset="glyphs", **overlay):
    """Return the run of an experiment with one cell."""
    table = {
        "title": "t",
        "tasks": ["any"],
        "series": {"a": {"method": method, "run": overlay}},
        "seeds": [0],
    }
    experiment = {
        "title": "Mine",
        "run": TINY,
        "tasks": {"any": {"dataset": dataset}},
        "tables": {"one": table},
    }
    values = configuration() | {"experiments": {"mine": experiment}}
    (cell,) = plan(values).items["mine", "one"].cells
    return cell.runs[0]


@pytest.fixture(scope="module")
def results(federation, tmp_path_factory):
    """Make a folder of results that has only the data set and the clients of the runs."""
    folder = tmp_path_factory.mktemp("cost") / "results"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "glyphs").symlink_to(federation[0])
    few_shot = make_run("dp-agr")
    transfer = make_run("transfer", **TRANSFER)
    examples = few_shot.clients.examples_per_class
    dataset = load_dataset(federation[0])
    partition = make_partition(
        dataset, clients=40, ways=3, examples_per_class=examples, kind="shared", seed=0
    )
    partition.save(folder / "clients" / few_shot.clients_folder)
    records = load_any_records(federation[0])
    fragments = make_fragments(records, clients=1, fragments=1, seed=0)
    fragments.save(folder / "clients" / transfer.clients_folder)
    return folder


def reported(runs, results, folder, cores=1):
    """Return the rows of cost.csv and the printed lines."""
    lines = []
    clock = Clock(results, device="cpu")
    cost.report(runs, clock, folder, cores=cores, say=lines.append)
    with open(folder / "cost.csv", newline="", encoding="utf-8") as handle:
        return list(csv.DictReader(handle)), lines


def kind(method="dp-agr", dataset="glyphs", **overlay):
    return cost.kind_of(make_run(method, dataset, **overlay))


def test_cost_kind_has_each_setting_that_takes_time_and_no_other():
    """Other sums of the same clients take no time."""
    base = kind()
    assert {
        kind("maml"),
        kind("dp-maml"),
        kind(clients={"count": 4000}, participation={"cohort": 100, "rounds": 40}),
        kind(client_update={"inner_rate": 0.1}),
        kind(noise={"multiplier": 3.0}),
        kind(clipping={"threshold": 9.0}),
    } == {base}
    other_kinds = [
        kind(client_update={"inner_steps": 3}),
        kind(client_update={"order": 1}),
        kind(model={"filters": 8}),
        kind(model={"normalisation": "record"}),
        kind(clients={"query_per_class": 3}),
        kind(task={"ways": 4}),
        kind(validation={"every": 1}),
        kind("dp-agrlr"),
        kind("dp-reptile"),
        kind(dataset="glyph-scenes-32"),
    ]
    assert len({base, *other_kinds}) == 1 + len(other_kinds)


def test_cost_of_a_run_is_that_of_its_clients_and_validations(tmp_path, monkeypatch):
    """Three runs have 2 rounds of 20 clients, 0.25 s a client.

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
    rates = {
        0: Rate(seconds_per_unit=0.25),
        4: Rate(seconds_per_unit=0.25, validation=2.0),
    }
    monkeypatch.setattr(Clock, "rate", lambda self, run: rates[run.validation.every])
    others = [short.replace(seed=seed) for seed in (1, 2)]
    runs = [short, longer, make_run("random"), *others]
    rows, lines = reported(runs, tmp_path, tmp_path, cores=4)
    hours = f"{(3 * 10.0 + 90.0 + 60.0) / 3600:.6g}"
    assert [list(row.values()) for row in rows] == [
        ["maml", "4", "480", "0", hours],
        ["random", "1", "0", "0", "0"],
        ["total", "5", "480", "0", hours],
    ]
    assert "| maml | 4 | 480 clients | 3 min |" in lines
    side_by_side = "- On 4 cores 4 run side by side: 45 s by the clock"
    assert any(line.startswith(side_by_side) for line in lines)


def test_cost_counts_the_rounds_that_the_budget_allows(results, tmp_path, monkeypatch):
    run = make_run(
        "dp-agr",
        noise={"multiplier": 1.0},
        budget={"epsilon": 5.0, "profile": "proven", "delta": 1e-5},
        participation={"kind": "poisson", "cohort": 4, "rounds": 200},
    )
    sampler = run.participation.plan(clients=40, seed=0).describe()
    allowed = rounds_allowed(
        "proven", sampler, 1.0, 1e-5, 5.0, claims=run.claims, mechanism="gaussian"
    )
    assert 0 < allowed < 200
    monkeypatch.setattr(Clock, "rate", lambda self, run: Rate(seconds_per_unit=0.25))
    (row, _), _ = reported([run], results, tmp_path)
    assert row["clients"] == str(4 * allowed)
    assert float(row["hours"]) == round(allowed / 3600, 5)


@pytest.mark.parametrize(
    ("lot", "seconds"), [(None, 0.01), (50, 0.2 / 50)], ids=["clients", "lots"]
)
def test_cost_rate_leaves_out_the_compilation(lot, seconds, monkeypatch):
    """The first round compiles for 100 s; a client takes 10 ms, a validation 3 s.

    The clock times a share of a cohort, or one whole round of lots (20 clients), and
    four of the six validation tasks.
    """
    now = 0.0

    def run_round(index):
        nonlocal now
        if now == 0.0:
            now += 100.0
        now += 0.01 * len(rounds.plan.sample_cohort(index))

    def validate(theta):
        nonlocal now
        now += 3.0

    rounds = SimpleNamespace(
        round=run_round,
        planned=7,
        plan=SimpleNamespace(sample_cohort=lambda index: range(20)),
        clients=SimpleNamespace(
            work=lambda cohort: lot,
            served="clients" if lot is None else "records",
        ),
        state=lambda: None,
        restore=lambda state: None,
        theta=SimpleNamespace(numpy=lambda: None),
        measures=SimpleNamespace(validate=validate),
    )
    run = make_run("maml", validation={"every": 1, "tasks": 6})
    monkeypatch.setattr(Clock, "_rounds", lambda self, run, **other: rounds)
    monkeypatch.setattr(cost.time, "process_time", lambda: now)
    rate = Clock(Path("nowhere"), device="cpu").rate(run)
    assert rate.seconds_per_unit == pytest.approx(seconds)
    assert rate.validation == pytest.approx(3.0 / 4)
    assert rate.lot == lot


@pytest.mark.parametrize(
    ("method", "unit"),
    [("dp-agr-secagg", "clients"), ("dp-agrlr", "clients"), ("transfer", "records")],
)
def test_cost_times_each_kind_of_work_once(results, tmp_path, method, unit):
    """The rates are those of this machine, so only their range is known."""
    run = make_run(method, **(TRANSFER if method == "transfer" else {}))
    (row, _), lines = reported([run, run.replace(seed=1)], results, tmp_path)
    kinds = [line for line in lines if line.startswith("kind")]
    assert kinds == [f"kind of work 1 of 1: {method}, glyphs"]
    assert row["runs"] == "2"
    assert 0 < float(row["hours"]) < 1
    assert int(row[unit]) > 0


@pytest.mark.parametrize("sampler", ["balls-and-bins", "poisson"])
def test_cost_times_no_cohort_of_the_run_itself(
    results, tmp_path, monkeypatch, sampler
):
    """The cohorts of a run's seed are secret, so the clock draws its cohorts anew."""
    make_rounds = cost.Rounds.from_run
    seeds = []

    def watched_rounds(run, **options):
        seeds.append(run.seed)
        return make_rounds(run, **options)

    monkeypatch.setattr(cost.Rounds, "from_run", watched_rounds)
    run = make_run("dp-agr", participation={"kind": sampler})
    reported([run.replace(seed=seed) for seed in (0, 1)], results, tmp_path)
    assert len(seeds) == 1
    assert seeds[0] not in (0, 1)
