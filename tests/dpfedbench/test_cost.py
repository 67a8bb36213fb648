"""What a configuration will cost: kinds of work, their rates, and the table made of
them.
"""

import csv
from pathlib import Path
from typing import Any

import pytest

from dpfedbench.data.images import load_dataset
from dpfedbench.data.records import load_any_records
from dpfedbench.experiments import cost
from dpfedbench.experiments.cost import Clock, Rate
from dpsum.accounting.calibration import rounds_allowed
from tests.dpfedbench.federation.conftest import federation
from tests.dpfedbench.test_experiments import configuration, plan
from tests.partitions import make_fragments, make_partition

__all__ = ["federation"]

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
    own = {
        "title": "Mine",
        "run": TINY | (run or {}),
        "tasks": {"any": {"dataset": dataset}},
        "tables": {
            "one": {"title": "t", "tasks": ["any"], "series": series, "seeds": [0]}
        },
    }
    found = configuration() | {"experiments": {"mine": own}}
    return [cell.runs[0] for cell in plan(found).items["mine", "one"].cells]


@pytest.fixture(scope="module")
def results(
    federation: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder of results that has the data set and the clients of the runs here, and
    nothing else.
    """
    place = tmp_path_factory.mktemp("cost") / "results"
    (place / "data").mkdir(parents=True)
    (place / "data" / "glyphs").symlink_to(federation[0])
    tasks, one = runs_of(
        {
            "a": {"method": "dp-agr"},
            "b": {"method": "transfer", "run": {"clients": ONE}},
        }
    )
    sizes = {
        "clients": 40,
        "ways": 3,
        "examples_per_class": tasks.clients.examples_per_class,
    }
    made = make_partition(load_dataset(federation[0]), **sizes, kind="shared", seed=0)
    made.save(place / "clients" / tasks.clients_folder)
    held = make_fragments(
        load_any_records(federation[0]), clients=1, fragments=1, seed=0
    )
    held.save(place / "clients" / one.clients_folder)
    return place


def reported(
    runs: list[Any], results: Path, folder: Path, **more: Any
) -> tuple[list[dict[str, str]], list[str]]:
    """The rows of cost.csv, and the lines that were said; on one core of a CPU."""
    said: list[str] = []
    cost.report(
        runs,
        Clock(results, device="cpu"),
        folder,
        **({"cores": 1, "say": said.append} | more),
    )
    with open(folder / "cost.csv", newline="", encoding="utf-8") as handle:
        return list(csv.DictReader(handle)), said


def test_runs_of_one_kind_differ_in_nothing_that_takes_time() -> None:
    def kind(method: str = "dp-agr", dataset: str = "glyphs", **run: Any) -> str:
        return cost.kind_of(runs_of({"a": {"method": method, "run": run}}, dataset)[0])

    same = kind()
    assert kind("maml") == kind("dp-maml") == same  # the same clients, under other sums
    assert (
        kind(clients={"count": 4000}, participation={"cohort": 100, "rounds": 40})
        == same
    )
    assert (
        kind(
            client_update={"inner_rate": 0.1},
            noise={"multiplier": 3.0},
            clipping={"threshold": 9.0},
        )
        == same
    )
    others = [
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
    assert len({same, *others}) == 1 + len(others)


def test_a_run_costs_its_rounds_clients_and_validations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 rounds of 20 clients of 0.25 s, three times; 9 of 40, and after 4, 8 and 9
    rounds 10 tasks of 2 s.
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
    rows, said = reported([*runs, *more], tmp_path, tmp_path, cores=4)
    hours = f"{(3 * 10.0 + 90.0 + 60.0) / 3600:.6g}"
    assert [list(row.values()) for row in rows] == [
        ["maml", "4", "480", "0", hours],
        ["random", "1", "0", "0", "0"],
        ["total", "5", "480", "0", hours],
    ]
    assert said[0] == "kind of work 1 of 2: maml, glyphs"
    assert "| maml | 4 | 480 clients | 3 min |" in said
    side = "- On 4 cores 4 run side by side: 45 s by the clock"
    assert any(line.startswith(side) for line in said)
    written = (tmp_path / "cost.md").read_text(encoding="utf-8").splitlines()
    assert written[2:] == said[2:]


def test_a_budget_ends_a_run_before_its_last_round(
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


class Timed:
    """In place of a run's rounds, on a clock of its own: the first is compiled, a
    client takes 10 ms.
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
        self.now += 0.01 * len(self.plan.sample_cohort(index)) + (
            0.0 if self.compiled else 100.0
        )
        self.compiled = True

    def validate(self, theta: Any) -> None:
        self.now += 3.0

    def work(self, cohort: Any) -> int | None:
        return self.lot

    def numpy(self) -> None: ...

    def state(self) -> None: ...

    def restore(self, state: None) -> None: ...


@pytest.mark.parametrize(("lot", "each"), [(None, 0.01), (50, 0.2 / 50)])
def test_a_rate_is_of_rounds_that_were_compiled(
    lot: int | None, each: float, monkeypatch: Any
) -> None:
    """Whatever part of a cohort is timed; of lots a whole round is, which the cohort of
    20 makes here.
    """
    timed = Timed(lot)
    (run,) = runs_of(
        {"a": {"method": "maml", "run": {"validation": {"every": 1, "tasks": 6}}}}
    )
    monkeypatch.setattr(Clock, "_rounds", lambda self, run, **other: timed)
    monkeypatch.setattr(cost.time, "process_time", lambda: timed.now)
    found = Clock(Path("nowhere"), device="cpu").rate(run)
    # Four of the six tasks are timed.
    assert found.seconds_per_unit == pytest.approx(each)
    assert found.validation == pytest.approx(3.0 / 4)
    assert found.lot == lot
    assert found.unit == timed.served
    assert found.test == 0.0


@pytest.mark.parametrize("method", ["dp-agr-secagg", "dp-agrlr", "transfer"])
def test_each_kind_is_trained_by_the_loop_itself_and_once(
    results: Path, tmp_path: Path, method: str
) -> None:
    """The rates are of this machine, so that the test can say no more than that they
    are such.
    """
    whole = {"clients": ONE, "participation": {"cohort": 20}}
    (run,) = runs_of(
        {"a": {"method": method, "run": whole if method == "transfer" else {}}}
    )
    (row, _), said = reported([run, run.replace(seed=1)], results, tmp_path)
    assert [line for line in said if line.startswith("kind")] == [
        f"kind of work 1 of 1: {method}, glyphs"
    ]
    unit = "records" if method == "transfer" else "clients"
    assert row["runs"] == "2"
    assert 0 < float(row["hours"]) < 1
    assert int(row[unit]) > 0


@pytest.mark.parametrize("plan", ["balls-and-bins", "poisson"])
def test_no_cohort_of_a_run_is_timed(
    results: Path, tmp_path: Path, monkeypatch: Any, plan: str
) -> None:
    """The cohorts that a run's seed draws are secret: others are drawn for the
    clock.
    """
    made = cost.Rounds.from_run
    seeds = list[int]()
    monkeypatch.setattr(
        cost.Rounds,
        "from_run",
        lambda run, **more: seeds.append(run.seed) or made(run, **more),
    )
    (run,) = runs_of(
        {"a": {"method": "dp-agr", "run": {"participation": {"kind": plan}}}}
    )
    reported([run.replace(seed=seed) for seed in (0, 1)], results, tmp_path)
    assert len(seeds) == 1
    assert seeds[0] not in (0, 1)
