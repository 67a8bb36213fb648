"""Participation plans; property 7 of what they draw, property 8 of what they divide by."""

import itertools

import numpy as np
import pytest
from scipy import stats

from dpfedbench.errors import BenchError
from dpfedbench.federation.participation import make_participation

LEVEL = 1e-3  # of each statistical test below, with fixed seeds


def plan(kind, clients=1200, cohort=100, rounds=12, seed=0):
    return make_participation(kind, clients=clients, cohort=cohort, rounds=rounds, seed=seed)


def test_one_pass_takes_each_client_exactly_once():
    cohorts = [plan("one-pass").cohort(index) for index in range(12)]
    assert sorted(np.concatenate(cohorts)) == list(range(1200))
    assert {len(cohort) for cohort in cohorts} == {100}


def test_balls_and_bins_takes_each_client_exactly_once_in_a_uniform_round():
    everyone = np.concatenate([plan("balls-and-bins").cohort(index) for index in range(12)])
    assert sorted(everyone) == list(range(1200))
    counts = np.array([[len(plan("balls-and-bins", seed=seed).cohort(i)) for i in range(12)] for seed in range(50)])
    assert stats.chisquare(counts.sum(axis=0)).pvalue > LEVEL
    # Multinomial, not fixed-size: the spread of counts fits, from both sides.
    statistic = ((counts - 100) ** 2 / 100).sum()
    assert LEVEL < stats.chi2(50 * 11).cdf(statistic) < 1 - LEVEL
    # Which round one client drew says nothing of another's.
    rounds = np.empty((50, 1200), int)
    for seed, index in itertools.product(range(50), range(12)):
        rounds[seed, plan("balls-and-bins", seed=seed).cohort(index)] = index
    same = (rounds[:, ::2] == rounds[:, 1::2]).sum()
    assert stats.binomtest(int(same), 50 * 600, 1 / 12).pvalue > LEVEL


def test_poisson_takes_each_client_at_its_rate_and_apart_from_others():
    members = np.zeros((200, 1200), bool)
    sampler = plan("poisson", rounds=200)
    for index in range(200):
        members[index, sampler.cohort(index)] = True
    assert stats.binomtest(int(members.sum()), members.size, 1 / 12).pvalue > LEVEL
    assert stats.binomtest(int((members[:, ::2] & members[:, 1::2]).sum()), 200 * 600, 1 / 144).pvalue > LEVEL
    assert stats.binomtest(int((members[::2] & members[1::2]).sum()), 100 * 1200, 1 / 144).pvalue > LEVEL


@pytest.mark.parametrize("kind", ["one-pass", "balls-and-bins", "poisson"])
def test_cohorts_do_not_depend_on_when_they_are_asked_for(kind):
    fresh = plan(kind).cohort(7)
    used = plan(kind)
    for index in (3, 0, 7):
        used.cohort(index)
    assert np.array_equal(used.cohort(7), fresh)
    assert not np.array_equal(plan(kind, seed=1).cohort(7), fresh)


@pytest.mark.parametrize("kind", ["one-pass", "balls-and-bins", "poisson"])
def test_the_denominator_is_public(kind):
    """Property 8: N/T, or L; the same for every seed, whatever came."""
    assert {plan(kind, seed=seed).denominator for seed in range(5)} == {100.0}
    assert plan(kind).describe() == {
        "kind": kind,
        "clients": 1200,
        "cohort": 100,
        "rounds": 12,
        "rate": 100 / 1200,
    }


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        ("one-pass", {"cohort": 1300}),
        ("poisson", {"cohort": 0}),
        ("one-pass", {"cohort": 99}),
        ("one-pass", {"rounds": 13}),
        ("balls-and-bins", {"rounds": 11}),
        ("poisson", {"rounds": -1}),
        ("shuffled", {}),
    ],
)
def test_numbers_that_do_not_go_together_are_refused(kind, numbers):
    with pytest.raises(BenchError):
        plan(kind, **numbers)
