"""Runs of a search on private data draw apart from one another; of runs that do not,
nothing finite is proven together.
"""

import dataclasses
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
from dpfedbench.federation.accounts import account_run, ledger_of
from dpfedbench.federation.rounds import Rounds
from dpsum.accounting.account import account
from dpsum.accounting.context import AccountContext
from dpsum.accounting.tuning import Search
from dpsum.ledger import Ledger, Release
from tests.dpfedbench.federation.conftest import RUN, make_config, train

CLIENTS, ROUNDS, RATE, RUNS = 1000, 100, 0.01, 12
BLOCKS = {
    "kind": "one-pass",
    "clients": CLIENTS,
    "cohort": 10,
    "rounds": ROUNDS,
    "rate": RATE,
}
SEARCHED = Search(runs=RUNS, data="private")


def release(index: int) -> Release:
    return Release(
        round=index,
        name="sum",
        mechanism="gaussian",
        unit="client",
        adjacency="zero-out",
        observer="everyone",
        noise_multiplier=1.3,
        threshold=1.0,
        sensitivity=1.0,
        noise_std=1.3,
        dimension=1,
        sampler={
            "kind": "poisson",
            "clients": CLIENTS,
            "cohort": 10,
            "rounds": ROUNDS,
            "rate": RATE,
        },
        denominator=10.0,
        noise_stream=f"0/noise/{index}",
        counted_by_paper=True,
        data_dependent_threshold=False,
        reason="",
    )


def searched(*, own_streams: bool, search: Search = SEARCHED):
    given = AccountContext(search=search, own_streams=own_streams)
    ledger = [release(index) for index in range(ROUNDS)]
    return account(ledger, delta=1e-5, claims={}, given=given).profiles["tuning"]


def test_runs_that_may_share_their_numbers_have_no_finite_epsilon_together():
    """Twelve runs of one seed put a client into the same rounds: with noise that is not
    shared they are z/sqrt(12).

    dp-accounting's optimistic distribution of that is a lower end; noise that is shared
    too can only add to it.
    """
    alone = privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=1.3 / RUNS**0.5,
        sampling_prob=RATE,
        pessimistic_estimate=False,
        use_connect_dots=False,
        value_discretization_interval=1e-3,
    )
    assert alone.self_compose(ROUNDS).get_epsilon_for_delta(1e-5) > 14.5
    shared = searched(own_streams=False)
    assert shared.status == "void" and math.isinf(shared.epsilon_high)
    assert "nothing finite is proven" in shared.explanation
    own = searched(own_streams=True)
    assert own.status == "proved" and own.epsilon_high == pytest.approx(1.382, abs=5e-4)
    one = searched(own_streams=False, search=Search(runs=1, data="private"))
    assert one.status == "proved" and one.epsilon_high < 1.382
    several = Search(runs=1, data="private", number="geometric")
    assert searched(own_streams=False, search=several).status == "void"


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


def test_the_best_of_twelve_private_runs_by_a_public_score_costs_more_than_one():
    """Twelve Gaussian releases of z = 1 of one number, of which the largest is
    published: a public score.

    Its law is Phi^12, moved by 1 where the unit is present: delta(eps) is at least
    P(max > t) - e^eps Q(max > t) for each t; at eps = 5.38 it is above 1e-6, where one
    release has 4.887.
    """
    below, epsilon = statistics.NormalDist().cdf, 5.38
    tells = [
        (1 - below(t - 1) ** RUNS) - math.exp(epsilon) * (1 - below(t) ** RUNS)
        for t in np.linspace(4, 7, 301)
    ]
    assert max(tells) > 1e-6
    given = AccountContext(search=Search(runs=RUNS, data="private"), own_streams=True)
    ledger = [
        dataclasses.replace(event, noise_multiplier=1.0, noise_std=1.0, sampler=BLOCKS)
        for event in (release(0),)
    ]
    found = account(ledger, delta=1e-6, claims={}, given=given).profiles
    assert (
        found["holds"].epsilon_high == pytest.approx(4.887, abs=1e-3)
        and found["tuning"].epsilon_high > epsilon
    )


def test_only_runs_of_a_search_on_private_data_move():
    """A run of the same settings outside the search keeps its key, and is another run."""

    def streams(plan):
        return {run.streams for run in plan.runs.values()}

    private, none = plan_of(), plan_of(search=False)
    assert streams(none) == {"shared"}
    assert {run.stream_seed for run in none.runs.values()} == {0, 1}
    searched_runs, outside = runs_of(private), runs_of(private, "two")
    assert {run.streams for run in searched_runs} == {"own"}
    assert {run.streams for run in outside} == {"shared"}
    assert {run.folder for run in outside} < set(none.runs)
    assert set(private.searches) == {run.folder for run in searched_runs}
    alike = {run.replace(streams="shared").key for run in searched_runs}
    assert {run.key for run in outside} < alike
    for data, expected in (("private", "own"), ("public", "shared")):
        declared = {"dp-agr": {"runs": 12, "data": data}}
        assert streams(plan_of(search=False, tuning=declared)) == {expected}
    assert streams(plan_of(method="maml")) == {"shared"}


def test_the_cohorts_of_two_runs_of_a_search_meet_as_seldom_as_chance_has_it():
    """Of 20,000 places two runs of q = 0.01 share Binomial(20,000, 1e-4): more than 16
    has a chance of 4e-11 a pair.

    Runs that share their streams would share about 200. Fifteen pairs: false alarms
    below 1e-9; the seed is fixed.
    """
    drawn = []
    for run in runs_of(plan_of()):
        plan = run.participation.plan(clients=CLIENTS, seed=run.stream_seed)
        cohorts = [plan.cohort(index).tolist() for index in range(plan.rounds)]
        drawn.append({(at, k) for at, cohort in enumerate(cohorts) for k in cohort})
    assert len(drawn) == 6 and min(map(len, drawn)) > 100
    common = [len(one & other) for one, other in itertools.combinations(drawn, 2)]
    assert max(common) <= 16


@pytest.mark.parametrize(("public", "alike"), [(True, True), (False, False)])
def test_the_noise_of_two_runs_of_a_search_is_independent(
    public, alike, federation, tmp_path: Path
):
    """Noise of z = 1000 hides what clients send: releases of two runs correlate as
    their noise does.

    Over d coordinates independent noise correlates by N(0, 1/d): six deviations have a
    false-alarm rate of 2e-9.
    """
    found = []
    for rate in (0.01, 0.02):
        run = make_config({"noise": {"multiplier": 1000.0}, "server": {"rate": rate}})
        run = run if public else run.replace(streams="own")
        seen = []
        rounds = Rounds.of(
            run,
            data_dir=federation[0],
            clients_dir=federation[1],
            ledger=Ledger(tmp_path / f"{rate}.jsonl"),
            observer=lambda line, made, seen=seen: seen.extend(
                mean for _, mean in made
            ),
        )
        rounds.round(0)
        found.append(seen[0])
    correlation, spread = np.corrcoef(*found)[0, 1], len(found[0]) ** -0.5
    assert (correlation > 0.9) if alike else (abs(correlation) < 6 * spread)


def test_a_run_of_its_own_streams_is_held_to_them_from_training_to_account(
    federation, tmp_path: Path
):
    run = make_config(
        {"participation": {"kind": "poisson", "rounds": 3}, "validation": {"every": 3}}
    )
    own = run.replace(streams="own")
    train(own, federation, tmp_path)
    account_run(
        own, tmp_path, tmp_path / "privacy.json", search=Search(runs=3, data="private")
    )
    tuning = json.loads((tmp_path / "privacy.json").read_text())["profiles"]["tuning"]
    assert tuning["status"] == "proved" and tuning["epsilon_high"] < 100
    with pytest.raises(
        BenchError, match=r"a stream of .* the ledger is not of this run"
    ):
        ledger_of(run, tmp_path)
