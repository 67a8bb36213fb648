"""Cost of a configuration: kinds of work, their rates, and the table of costs."""

import csv
from pathlib import Path
from typing import Any

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
ONE = {"count": 1, "partition": "fragments", "fragments": 1}


def runs_of(
    series: dict[str, Any], dataset: str = "glyphs", run: dict[str, Any] | None = None
) -> list[Any]:
    table = {
        "title": "t",
        "tasks": ["any"],
        "series": series,
        "seeds": [0],
    }
    experiment = {
        "title": "Mine",
        "run": TINY | (run or {}),
        "tasks": {"any": {"dataset": dataset}},
        "tables": {"one": table},
    }
    values = configuration() | {"experiments": {"mine": experiment}}
    return [cell.runs[0] for cell in plan(values).items["mine", "one"].cells]


@pytest.fixture(scope="module")
def results(
    federation: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Make a folder of results that has only the data set and the clients of the runs."""
    folder = tmp_path_factory.mktemp("cost") / "results"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "glyphs").symlink_to(federation[0])
    few_shot, transfer = runs_of(
        {
            "a": {"method": "dp-agr"},
            "b": {"method": "transfer", "run": {"clients": ONE}},
        }
    )
    sizes = {
        "clients": 40,
        "ways": 3,
        "examples_per_class": few_shot.clients.examples_per_class,
    }
    dataset = load_dataset(federation[0])
    partition = make_partition(dataset, **sizes, kind="shared", seed=0)
    partition.save(folder / "clients" / few_shot.clients_folder)
    records = load_any_records(federation[0])
    fragments = make_fragments(records, clients=1, fragments=1, seed=0)
    fragments.save(folder / "clients" / transfer.clients_folder)
    return folder


def reported(
    runs: list[Any], results: Path, folder: Path, **more: Any
) -> tuple[list[dict[str, str]], list[str]]:
    """Return the rows of cost.csv and the printed lines, for one core of a CPU."""
    lines: list[str] = []
    options = {"cores": 1, "say": lines.append} | more
    cost.report(runs, Clock(results, device="cpu"), folder, **options)
    with open(folder / "cost.csv", newline="", encoding="utf-8") as handle:
        return list(csv.DictReader(handle)), lines


def test_cost_kind_has_each_setting_that_takes_time_and_no_other() -> None:
    def kind(method: str = "dp-agr", dataset: str = "glyphs", **run: Any) -> str:
        return cost.kind_of(runs_of({"a": {"method": method, "run": run}}, dataset)[0])

    base = kind()
    same_kinds = [
        # The same clients, under other sums.
        kind("maml"),
        kind("dp-maml"),
        kind(clients={"count": 4000}, participation={"cohort": 100, "rounds": 40}),
        kind(client_update={"inner_rate": 0.1}),
        kind(noise={"multiplier": 3.0}),
        kind(clipping={"threshold": 9.0}),
    ]
    assert set(same_kinds) == {base}
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


def test_cost_of_a_run_is_that_of_its_clients_and_validations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three runs have 2 rounds of 20 clients, 0.25 s a client.

    A longer run has 9 rounds of 40 clients, and after rounds 4, 8 and 9 a validation of
    10 tasks, 2 s a task.
    """
    longer = {
        "validation": {"every": 4, "tasks": 10},
        "clients": {"count": 400},
        "participation": {"cohort": 40, "rounds": 9},
    }
    series = {
        "a": {"method": "maml"},
        "b": {"method": "maml", "run": longer},
        "c": {"method": "random"},
    }
    runs = runs_of(series)
    rates = {
        0: Rate(seconds_per_unit=0.25),
        4: Rate(seconds_per_unit=0.25, validation=2.0),
    }
    monkeypatch.setattr(Clock, "rate", lambda self, run: rates[run.validation.every])
    more = [runs[0].replace(seed=seed) for seed in (1, 2)]
    rows, lines = reported([*runs, *more], tmp_path, tmp_path, cores=4)
    hours = f"{(3 * 10.0 + 90.0 + 60.0) / 3600:.6g}"
    assert [list(row.values()) for row in rows] == [
        ["maml", "4", "480", "0", hours],
        ["random", "1", "0", "0", "0"],
        ["total", "5", "480", "0", hours],
    ]
    assert lines[0] == "kind of work 1 of 2: maml, glyphs"
    assert "| maml | 4 | 480 clients | 3 min |" in lines
    side_by_side = "- On 4 cores 4 run side by side: 45 s by the clock"
    assert any(line.startswith(side_by_side) for line in lines)
    written = (tmp_path / "cost.md").read_text(encoding="utf-8").splitlines()
    assert written[2:] == lines[2:]


def test_cost_counts_the_rounds_that_the_budget_allows(
    results: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    budget = {
        "noise": {"multiplier": 1.0},
        "budget": {"epsilon": 5.0, "profile": "proven", "delta": 1e-5},
    }
    several = {"participation": {"kind": "poisson", "cohort": 4, "rounds": 200}}
    (run,) = runs_of({"a": {"method": "dp-agr", "run": budget | several}})
    sampler = run.participation.plan(clients=40, seed=0).describe()
    allowed = rounds_allowed(
        "proven", sampler, 1.0, 1e-5, 5.0, claims=run.claims, mechanism="gaussian"
    )
    assert 0 < allowed < 200
    monkeypatch.setattr(Clock, "rate", lambda self, run: Rate(seconds_per_unit=0.25))
    (row, _), _ = reported([run], results, tmp_path)
    assert row["clients"] == str(4 * allowed)
    assert float(row["hours"]) == round(allowed / 3600, 5)


class TimedRounds:
    """Stand-in for a run's rounds with its own clock.

    The first round compiles for 100 s; a client takes 10 ms, a validation 3 s.
    """

    def __init__(self, lot: int | None) -> None:
        self.now = 0.0
        self.compiled = False
        self.lot = lot
        self.plan = self
        self.planned = 7
        self.clients = self.theta = self.measures = self
        self.served = "clients" if lot is None else "records"

    def sample_cohort(self, index: int) -> range:
        return range(20)

    def round(self, index: int) -> None:
        assert 0 <= index < self.planned
        if not self.compiled:
            self.now += 100.0
            self.compiled = True
        self.now += 0.01 * len(self.plan.sample_cohort(index))

    def validate(self, theta: Any) -> None:
        self.now += 3.0

    def work(self, cohort: Any) -> int | None:
        return self.lot

    def numpy(self) -> None: ...

    def state(self) -> None: ...

    def restore(self, state: None) -> None: ...


@pytest.mark.parametrize(
    ("lot", "seconds"),
    [
        pytest.param(None, 0.01, id="clients"),
        pytest.param(50, 0.2 / 50, id="records of a lot"),
    ],
)
def test_cost_rate_leaves_out_the_compilation(
    lot: int | None, seconds: float, monkeypatch: Any
) -> None:
    """The clock times a share of a cohort, or one whole round of lots (20 clients)."""
    timed = TimedRounds(lot)
    validated = {"validation": {"every": 1, "tasks": 6}}
    (run,) = runs_of({"a": {"method": "maml", "run": validated}})
    monkeypatch.setattr(Clock, "_rounds", lambda self, run, **other: timed)
    monkeypatch.setattr(cost.time, "process_time", lambda: timed.now)
    rate = Clock(Path("nowhere"), device="cpu").rate(run)
    assert rate.seconds_per_unit == pytest.approx(seconds)
    # The clock times four of the six tasks.
    assert rate.validation == pytest.approx(3.0 / 4)
    assert rate.lot == lot
    assert rate.unit == timed.served
    assert rate.test == 0.0


@pytest.mark.parametrize("method", ["dp-agr-secagg", "dp-agrlr", "transfer"])
def test_cost_times_each_kind_of_work_once(
    results: Path, tmp_path: Path, method: str
) -> None:
    """The rates are those of this machine, so only their range is known."""
    overlay: dict[str, Any] = {}
    unit = "clients"
    if method == "transfer":
        overlay = {"clients": ONE, "participation": {"cohort": 20}}
        unit = "records"
    (run,) = runs_of({"a": {"method": method, "run": overlay}})
    (row, _), lines = reported([run, run.replace(seed=1)], results, tmp_path)
    kinds = [line for line in lines if line.startswith("kind")]
    assert kinds == [f"kind of work 1 of 1: {method}, glyphs"]
    assert row["runs"] == "2"
    assert 0 < float(row["hours"]) < 1
    assert int(row[unit]) > 0


@pytest.mark.parametrize("plan", ["balls-and-bins", "poisson"])
def test_cost_times_no_cohort_of_the_run_itself(
    results: Path, tmp_path: Path, monkeypatch: Any, plan: str
) -> None:
    """The cohorts of a run's seed are secret, so the clock draws its cohorts anew."""
    make_rounds = cost.Rounds.from_run
    seeds = list[int]()

    def watched_rounds(run: Any, **options: Any) -> Any:
        seeds.append(run.seed)
        return make_rounds(run, **options)

    monkeypatch.setattr(cost.Rounds, "from_run", watched_rounds)
    sampled = {"participation": {"kind": plan}}
    (run,) = runs_of({"a": {"method": "dp-agr", "run": sampled}})
    reported([run.replace(seed=seed) for seed in (0, 1)], results, tmp_path)
    assert len(seeds) == 1
    assert seeds[0] not in (0, 1)
