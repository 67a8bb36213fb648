"""Runs of a search on private data draw independent cohorts and noise."""

import itertools
import json
import math
import statistics
from pathlib import Path

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from dpfedbench.errors import BenchError
from dpfedbench.experiments.configuration import Configuration
from dpfedbench.experiments.expand import make_plan
from dpfedbench.training.accounts import account_run, ledger_of
from dpsum.accounting.account import account
from dpsum.accounting.context import AccountContext
from dpsum.accounting.tuning import Search
from tests.dpfedbench.training.conftest import RUN, make_config, rounds_of, train
from tests.dpsum.helpers import make_release, make_releases

CLIENTS = 1000
ROUNDS = 100
RATE = 0.01
RUNS = 12
BLOCKS = {
    "kind": "one-pass",
    "clients": CLIENTS,
    "cohort": 10,
    "rounds": ROUNDS,
    "rate": RATE,
}
SEARCHED = Search(runs=RUNS, data="private")


def tuning_account(*, own_streams: bool, search: Search = SEARCHED):
    context = AccountContext(search=search, own_streams=own_streams)
    ledger = make_releases(ROUNDS, z=1.3, sampler=BLOCKS | {"kind": "poisson"})
    return account(ledger, delta=1e-5, claims={}, context=context).profiles["tuning"]


def test_search_with_shared_streams_has_no_finite_epsilon():
    """Twelve runs of one seed have the same cohorts: with independent noise they are
    one run of z / sqrt(12), and shared noise only costs more.

    dp_accounting's optimistic distribution is a lower end of that.
    """
    alone = privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=1.3 / RUNS**0.5,
        sampling_prob=RATE,
        pessimistic_estimate=False,
        use_connect_dots=False,
        value_discretization_interval=1e-3,
    )
    assert alone.self_compose(ROUNDS).get_epsilon_for_delta(1e-5) > 14.5
    shared = tuning_account(own_streams=False)
    assert shared.status == "void"
    assert math.isinf(shared.epsilon_high)
    assert "nothing finite is proven" in shared.explanation
    separate = tuning_account(own_streams=True)
    assert separate.status == "proved"
    assert separate.epsilon_high == pytest.approx(1.382, abs=5e-4)
    single = tuning_account(own_streams=False, search=Search(runs=1, data="private"))
    assert single.status == "proved"
    assert single.epsilon_high < 1.382
    geometric = Search(runs=1, data="private", number="geometric")
    assert tuning_account(own_streams=False, search=geometric).status == "void"


def plan_of(*, search: bool = True, tuning=None, method="dp-agr"):
    """Return the plan of a table with a search, and of one with one of its settings."""
    table = {"method": method}
    if search:
        table["search"] = {"values": {"server.rate": [0.01, 0.02, 0.04]}}
    chosen = {"method": method, "run": {"server": {"rate": 0.02}}}
    tables = {
        name: {"title": "t", "tasks": ["a"], "series": {"it": series}}
        for name, series in (("one", table), ("two", chosen))
    }
    run = {key: value for key, value in RUN.items() if key not in ("method", "seed")}
    run |= {
        "clients": RUN["clients"] | {"count": CLIENTS},
        "participation": {"kind": "poisson", "cohort": 10, "rounds": 20},
        "validation": {"every": 4, "tasks": 4},
    }
    paper = {"title": "m", "tasks": {"a": {}}, "tables": tables}
    values = {
        "seeds": [0, 1],
        "run": run,
        "tuning": tuning or {},
        "experiments": {"mine": paper},
    }
    return make_plan(Configuration.read(values))


def runs_of(plan, name="one"):
    return [run for cell in plan.items["mine", name].cells for run in cell.runs]


def test_search_over_private_runs_by_a_public_score_costs_more_than_one_run():
    """The largest of twelve Gaussian releases of z = 1 of one number is published.

    Its law is Phi^12, moved by 1 where the unit is present: delta(eps) is at least
    P(max > t) - e^eps Q(max > t) for each t. At eps = 5.38 it is above 1e-6, where one
    release has 4.887.
    """
    cdf = statistics.NormalDist().cdf
    epsilon = 5.38
    deltas = [
        (1 - cdf(t - 1) ** RUNS) - math.exp(epsilon) * (1 - cdf(t) ** RUNS)
        for t in np.linspace(4, 7, 301)
    ]
    assert max(deltas) > 1e-6
    context = AccountContext(search=SEARCHED, own_streams=True)
    event = make_release(z=1.0, sampler=BLOCKS)
    profiles = account([event], delta=1e-6, claims={}, context=context).profiles
    assert profiles["proven"].epsilon_high == pytest.approx(4.887, abs=1e-3)
    assert profiles["tuning"].epsilon_high > epsilon


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
    assert set(private.searches) == {run.folder for run in searched_runs}
    shared_keys = {run.replace(streams="shared").key for run in searched_runs}
    assert {run.key for run in outside} < shared_keys
    for data, expected in (("private", "own"), ("public", "shared")):
        declared = {"dp-agr": {"runs": 12, "data": data}}
        assert streams(plan_of(search=False, tuning=declared)) == {expected}
    assert streams(plan_of(method="maml")) == {"shared"}


def test_search_runs_share_cohorts_as_seldom_as_chance_has_it():
    """In 20,000 pairs of round and client two runs of q = 0.01 share Binomial(20,000,
    1e-4): more than 16 has probability 4e-11.

    Runs with shared streams would share about 200. Fifteen pairs of runs: false alarms
    below 1e-9; the seed is fixed.
    """
    participations = []
    for run in runs_of(plan_of()):
        plan = run.participation.plan(clients=CLIENTS, seed=run.stream_seed)
        participations.append(
            {
                (index, k)
                for index in range(plan.rounds)
                for k in plan.sample_cohort(index)
            }
        )
    assert len(participations) == 6
    assert min(map(len, participations)) > 100
    pairs = itertools.combinations(participations, 2)
    assert max(len(first & second) for first, second in pairs) <= 16


@pytest.mark.parametrize("own_streams", [False, True])
def test_search_runs_have_independent_noise(own_streams, federation, tmp_path: Path):
    """Noise of z = 1000 hides the contributions: releases of two runs correlate as their
    noise does.

    Over d coordinates independent noise correlates by N(0, 1/d): six deviations have a
    false-alarm rate of 2e-9.
    """
    releases = []
    for rate in (0.01, 0.02):
        run = make_config({"noise": {"multiplier": 1000.0}, "server": {"rate": rate}})
        if own_streams:
            run = run.replace(streams="own")
        rounds = rounds_of(run, federation, tmp_path / str(rate))
        rounds.round(0)
        _, _, (mean,) = rounds.log[0]
        releases.append(mean)
    correlation = np.corrcoef(*releases)[0, 1]
    if own_streams:
        assert abs(correlation) < 6 * len(mean) ** -0.5
    else:
        assert correlation > 0.9


def test_run_with_streams_of_its_own_has_them_from_training_to_account(
    federation, tmp_path: Path
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
    message = r"a stream of .* the ledger belongs to another run"
    with pytest.raises(BenchError, match=message):
        ledger_of(run, tmp_path)
