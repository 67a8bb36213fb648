"""Runs of a search on private data draw independent cohorts and noise."""

import itertools
import json
import math

import numpy as np
import pytest

from dpfedbench.errors import BenchError
from dpfedbench.experiments.configuration import Configuration
from dpfedbench.experiments.expand import make_plan
from dpfedbench.training.accounts import account_run, ledger_of
from dpsum.accounting.account import account
from dpsum.accounting.context import AccountContext
from dpsum.accounting.tuning import Search
from tests.dpsum.helpers import make_releases

from .conftest import RUN, make_config, rounds_of, train

CLIENTS = 1000
POISSON = {"kind": "poisson", "cohort": 10, "rounds": 100}


def tuning_account(*, own_streams, number="fixed", runs=12):
    """Return the account of a search on private data."""
    search = Search(runs=runs, data="private", number=number)
    context = AccountContext(search=search, own_streams=own_streams)
    sampler = POISSON | {"clients": CLIENTS, "rate": 0.01}
    ledger = make_releases(100, z=1.3, sampler=sampler)
    return account(ledger, delta=1e-5, claims={}, context=context).profiles["tuning"]


def test_search_with_shared_streams_has_no_finite_epsilon():
    """Twelve runs of one seed have the same cohorts: even with independent noise they
    are one run of z / sqrt(12), whose epsilon is above 14.5 (dp_accounting).
    """
    shared = tuning_account(own_streams=False)
    assert shared.status == "void"
    assert math.isinf(shared.epsilon_high)
    separate = tuning_account(own_streams=True)
    assert separate.status == "proved"
    assert separate.epsilon_high == pytest.approx(1.382, abs=5e-4)
    single = tuning_account(own_streams=False, runs=1)
    assert single.status == "proved"
    assert single.epsilon_high < 1.382
    geometric = tuning_account(own_streams=False, runs=1, number="geometric")
    assert geometric.status == "void"


def plan_of(*, search=True, tuning=None, method="dp-agr"):
    """Return the plan of a table with a search, and of one with one of its settings."""
    search_values = {"values": {"server.rate": [0.01, 0.02, 0.04]}}
    table = {"method": method} | ({"search": search_values} if search else {})
    chosen = {"method": method, "run": {"server": {"rate": 0.02}}}
    tables = {
        name: {"title": "t", "tasks": ["a"], "series": {"it": series}}
        for name, series in (("one", table), ("two", chosen))
    }
    run = RUN | {
        "clients": RUN["clients"] | {"count": CLIENTS},
        "participation": POISSON | {"rounds": 20},
        "validation": {"every": 4, "tasks": 4},
    }
    del run["method"], run["seed"]
    paper = {"title": "m", "tasks": {"a": {}}, "tables": tables}
    values = {"seeds": [0, 1], "run": run, "experiments": {"mine": paper}}
    return make_plan(Configuration.read(values | {"tuning": tuning or {}}))


def runs_of(plan, name="one"):
    return [run for cell in plan.items["mine", name].cells for run in cell.runs]


def test_search_on_private_data_alone_gives_its_runs_streams_of_their_own():
    """A run of the same settings outside the search keeps its key, and is another run."""

    def streams(plan):
        return {run.streams for run in plan.runs.values()}

    private = plan_of()
    without_search = plan_of(search=False)
    assert streams(without_search) == {"shared"}
    assert {run.stream_seed for run in without_search.runs.values()} == {0, 1}
    searched_runs = runs_of(private)
    outside = runs_of(private, "two")
    assert {run.streams for run in searched_runs} == {"own"}
    assert {run.streams for run in outside} == {"shared"}
    assert {run.folder for run in outside} < set(without_search.runs)
    shared_keys = {run.replace(streams="shared").key for run in searched_runs}
    assert {run.key for run in outside} < shared_keys
    for data, expected in (("private", "own"), ("public", "shared")):
        declared = {"dp-agr": {"runs": 12, "data": data}}
        assert streams(plan_of(search=False, tuning=declared)) == {expected}
    assert streams(plan_of(method="maml")) == {"shared"}


def test_search_runs_share_cohorts_as_seldom_as_chance_has_it():
    """Two runs of q = 0.01 share Binomial(20,000, 1e-4): more than 16 has probability
    4e-11, and in fifteen pairs 1e-9. Shared streams would share about 200.
    """
    participations = []
    for run in runs_of(plan_of()):
        plan = run.participation.plan(clients=CLIENTS, seed=run.stream_seed)
        cohorts = [plan.sample_cohort(index) for index in range(plan.rounds)]
        participations.append(
            {(index, k) for index, cohort in enumerate(cohorts) for k in cohort}
        )
    assert len(participations) == 6
    assert min(map(len, participations)) > 100
    pairs = itertools.combinations(participations, 2)
    assert max(len(first & second) for first, second in pairs) <= 16


def test_search_runs_have_independent_noise(federation, tmp_path):
    """Noise of z = 1000 hides the contributions. Independent noise correlates by N(0,
    1/d): six deviations have a false-alarm rate of 2e-9.
    """
    correlations = {}
    for streams in ("shared", "own"):
        releases = []
        for rate in (0.01, 0.02):
            server = {"server": {"rate": rate}, "streams": streams}
            run = make_config({"noise": {"multiplier": 1000.0}} | server)
            rounds = rounds_of(run, federation, tmp_path / f"{streams}{rate}")
            rounds.round(0)
            _, _, (mean,) = rounds.log[0]
            releases.append(mean)
        correlations[streams] = np.corrcoef(*releases)[0, 1]
    assert abs(correlations["own"]) < 6 * len(mean) ** -0.5
    assert correlations["shared"] > 0.9


def test_run_with_streams_of_its_own_has_them_from_training_to_account(
    federation, tmp_path
):
    poisson = {"participation": {"kind": "poisson", "rounds": 3}}
    run = make_config(poisson, {"validation": {"every": 3}})
    separate = run.replace(streams="own")
    train(separate, federation, tmp_path)
    path = tmp_path / "privacy.json"
    account_run(separate, tmp_path, path, search=Search(runs=3, data="private"))
    tuning = json.loads(path.read_text())["profiles"]["tuning"]
    assert tuning["status"] == "proved"
    assert tuning["epsilon_high"] < 100
    message = r"a draw of .* the ledger belongs to another run"
    with pytest.raises(BenchError, match=message):
        ledger_of(run, tmp_path)
