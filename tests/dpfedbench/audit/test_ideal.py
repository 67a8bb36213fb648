"""Bounds of an ideal attacker: their law, and mechanisms that fall short of them."""

import functools

import numpy as np
import pytest
from scipy import stats

from dpfedbench.audit.own_sums import one_run_of_examples, one_run_of_updates
from dpfedbench.audit.report import audit, family_of, own_family
from dpfedbench.papers import METHODS, gbml
from dpsum.audit.ideal import chance_of_such, gaussian, secret
from dpsum.audit.ranks import IDEALS, RankTest
from dpsum.participation import Poisson, RecordLots
from dpsum.private_sum import PrivateSum
from tests.dpsum.audit.test_ranks import RATE, ROUNDS, draw_ratios

from .conftest import LOTS, experiment, make_config, scaled_noise

REPTILE = {
    "method": "dp-reptile",
    "client_update": {"batches": "poisson", "inner_steps": 5},
    "within_task": {"epsilon": None, "multiplier": 0.8},
}
POISSON = {
    "clients": {"count": 2000},
    "participation": {"kind": "poisson", "cohort": 100, "rounds": 20},
    "clipping": {"kind": "constant"},
}
STEPS = {
    "client_update": {"inner_steps": 50},
    "participation": {"lot": 20, "rounds": 1},
    "noise": {"multiplier": 2.0},
    "clients": {"count": 10, "fragments": 10},
}
CORRELATED = {
    "method": "dp-agr-ftrl",
    "clients": {"count": 4000},
    "participation": {"cohort": 100, "rounds": 40},
    "noise": {"multiplier": 1.0, "factorisation": "square-root"},
}
SECURE = {
    "method": "dp-agr-secagg",
    "noise": {"dropped": 0.3, "dropped_at_most": 0.75},
    "clients": {"count": 400},
    "participation": {"cohort": 40, "rounds": 10},
}
NORM_QUERY = {"clipping": {"kind": "noised-mean-norm", "threshold": None}}
BALLS_AND_BINS = {"participation": {"kind": "balls-and-bins"}}


@pytest.mark.parametrize("present", [True, False])
@pytest.mark.parametrize("kind", ["one-pass", "poisson", "balls-and-bins"])
def test_ideal_draws_have_the_law_of_the_sampler(kind, present):
    """Kolmogorov-Smirnov, 20,000 draws of each; false alarm 1e-3 each."""
    coins, ratios = draw_ratios(kind, 20_000, 1, present=present)
    rng = np.random.default_rng(2)
    if kind == "one-pass":
        draws = gaussian(coins, 1.0, rng)
    else:
        once = ROUNDS if kind == "balls-and-bins" else 0
        draws = secret(coins, [1.0] * ROUNDS, rng, rate=RATE, once=once)
        draws -= np.log(max(once, 1))
    assert stats.ks_2samp(draws, ratios).pvalue > 1e-3
    _, less_noise = draw_ratios(kind, 20_000, 3, present=present, z=0.8)
    _, other_side = draw_ratios(kind, 20_000, 3, present=not present)
    for other_draws in (less_noise, other_side):
        assert stats.ks_2samp(draws, other_draws).pvalue < 1e-3


def of_server(*overlays, canaries=400):
    return functools.partial(experiment, make_config(*overlays), canaries=canaries)


LOCAL = make_config({"method": "local-reptile"})
CORRECT = {
    "one-pass": of_server(),
    "balls-and-bins": of_server(BALLS_AND_BINS),
    "little noise": of_server(BALLS_AND_BINS, {"noise": {"multiplier": 0.3}}),
    "poisson": of_server({"participation": {"kind": "poisson"}}),
    "lots": of_server(LOTS),
    "norm query": of_server(LOTS, NORM_QUERY),
    "query examples": of_server({"method": "dp-maml-sample"}),
    "examples": functools.partial(
        one_run_of_examples, make_config(REPTILE), canaries=400
    ),
    "updates": functools.partial(one_run_of_updates, LOCAL, canaries=400),
}
"""Functions from a seed to an experiment of correct code."""
if "dp-agr-ftrl" in METHODS:
    # Methods of packages/further, which may be missing.
    CORRECT["correlated"] = of_server(CORRELATED, canaries=1000)
    CORRECT["secure"] = of_server(SECURE, canaries=300)


def test_correct_code_is_called_another_mechanism_as_rarely_as_stated():
    """Five seeds of each: chances are uniform, or above that (Kolmogorov and Smirnov,
    false alarm 1e-3 each), and none is below 1e-4.
    """
    as_little = []
    such_scores = []
    for name, run in CORRECT.items():
        releases = run(seed=0).releases
        is_own = name == "examples"
        family = own_family(releases, 1e-3) if is_own else family_of(releases)
        for seed in range(5):
            result = run(seed=seed)
            rng = np.random.default_rng(seed)
            test = RankTest(family, len(result.coins), confidence=0.95, generator=rng)
            ideals = [result.ideal(rng) for _ in range(IDEALS)]
            statistic, *ideal_statistics = (
                test.statistic(result.coins[np.argsort(-scores)])
                for scores in (result.scores, *ideals)
            )
            as_little.append(test.chance_of_as_little(statistic, ideal_statistics))
            such_scores.append(chance_of_such(result.scores, result.coins, ideals))
    assert stats.kstest(as_little, "uniform").pvalue > 1e-3
    uniform_or_above = stats.kstest(such_scores, "uniform", alternative="greater")
    assert uniform_or_above.pvalue > 1e-3
    assert min(as_little + such_scores) > 1e-4


def use_one_sample(rng, steps, count, correct=gbml.poisson_batches):
    """Have all steps of a client read one Poisson sample of its examples."""
    return [correct(rng, steps, count)[0]] * steps


def use_one_lot(self, index, step, client, correct=RecordLots.lot):
    """Draw a client's lot once a round, for all steps."""
    return correct(self, index, 0, client)


def use_one_cohort(self, index, correct=Poisson.sample_cohort):
    """Take the first round's cohort in all rounds."""
    return correct(self, 0)


@pytest.mark.parametrize(
    ("fault", "overlays"),
    [
        ((gbml, "poisson_batches", use_one_sample), [REPTILE]),
        ((RecordLots, "lot", use_one_lot), [LOTS, STEPS]),
        ((Poisson, "sample_cohort", use_one_cohort), [POISSON]),
        ((PrivateSum, "_noised", scaled_noise(2)), []),
    ],
    ids=["one sample", "one lot", "one cohort", "twice the noise"],
)
def test_audit_reports_another_mechanism_than_the_ledgers(monkeypatch, fault, overlays):
    """Fewer releases of a unit, or more noise, leak less."""
    config = make_config(*overlays)
    if config.own_delta:
        result = one_run_of_examples(config, seed=99, canaries=16)
    else:
        steps = getattr(config.client_update, "inner_steps", 1)
        result = experiment(config, seed=99, steps=steps)
    correct = audit(config, result.releases)
    assert not correct["another_mechanism"]
    assert correct["status"].startswith("not above what is proven")
    monkeypatch.setattr(*fault)
    wrong = audit(config, result.releases)
    assert wrong["another_mechanism"]
    assert wrong["status"].startswith("ANOTHER MECHANISM ran than the ledger's")
    assert wrong["epsilon"] < correct["epsilon"] <= wrong["epsilon_proven"]
