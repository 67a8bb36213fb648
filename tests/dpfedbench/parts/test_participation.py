"""Ways of participation; property 7 of what they draw, property 8 of what they divide
by.
"""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from dpfedbench.errors import BenchError
from dpfedbench.settings.part import kinds_of
from dpsum.accounting.analyses import find
from dpsum.participation import Participation, PoissonLots
from tests.dpfedbench.federation.conftest import LOTS, make_config

LEVEL = 1e-3  # of each statistical test below, with fixed seeds


def plan(kind, clients=1200, cohort=100, rounds=12, seed=0):
    return kinds_of(Participation)[kind](cohort=cohort, rounds=rounds).plan(
        clients=clients, seed=seed
    )


def test_these_are_all_there_are():
    assert set(kinds_of(Participation)) == {
        "one-pass",
        "balls-and-bins",
        "everyone",
        "poisson",
        "poisson-lots",
        "passes",
        "fixed-size",
        "shuffled-epochs",
        "min-separation",
    }


def test_one_pass_takes_each_client_exactly_once():
    cohorts = [plan("one-pass").sample_cohort(index) for index in range(12)]
    assert sorted(np.concatenate(cohorts)) == list(range(1200))
    assert {len(cohort) for cohort in cohorts} == {100}


def test_balls_and_bins_takes_each_client_exactly_once_in_a_uniform_round():
    everyone = np.concatenate(
        [plan("balls-and-bins").sample_cohort(index) for index in range(12)]
    )
    assert sorted(everyone) == list(range(1200))
    counts = np.array(
        [
            [len(plan("balls-and-bins", seed=seed).sample_cohort(i)) for i in range(12)]
            for seed in range(50)
        ]
    )
    assert stats.chisquare(counts.sum(axis=0)).pvalue > LEVEL
    # Multinomial, not fixed-size: the spread of counts fits, from both sides.
    statistic = ((counts - 100) ** 2 / 100).sum()
    assert LEVEL < stats.chi2(50 * 11).cdf(statistic) < 1 - LEVEL
    # Which round one client drew says nothing of another's.
    rounds = np.empty((50, 1200), int)
    for seed, index in itertools.product(range(50), range(12)):
        rounds[seed, plan("balls-and-bins", seed=seed).sample_cohort(index)] = index
    same = (rounds[:, ::2] == rounds[:, 1::2]).sum()
    assert stats.binomtest(int(same), 50 * 600, 1 / 12).pvalue > LEVEL


def test_poisson_takes_each_client_at_its_rate_and_apart_from_others():
    members = np.zeros((200, 1200), bool)
    sampler = plan("poisson", rounds=200)
    for index in range(200):
        members[index, sampler.sample_cohort(index)] = True
    assert stats.binomtest(int(members.sum()), members.size, 1 / 12).pvalue > LEVEL
    assert (
        stats.binomtest(
            int((members[:, ::2] & members[:, 1::2]).sum()), 200 * 600, 1 / 144
        ).pvalue
        > LEVEL
    )
    assert (
        stats.binomtest(
            int((members[::2] & members[1::2]).sum()), 100 * 1200, 1 / 144
        ).pvalue
        > LEVEL
    )


def test_fixed_sizes_are_drawn_without_replacement_and_anew():
    """Property 7. Of 1,200 rounds of 100 of 1,200: each client as often as it should
    be, pairs too.
    """
    sampler = plan("fixed-size", rounds=1200)
    there = np.zeros((1200, 1200), bool)
    for index in range(1200):
        cohort = sampler.sample_cohort(index)
        assert len(np.unique(cohort)) == len(cohort) == 100
        there[index, cohort] = True
    # Sums over clients of a round are fixed, so that the statistic has 1,199 degrees of
    # freedom.
    square = ((there.sum(axis=0) - 100) ** 2).sum() / (100 * (1 - 1 / 12)) * 1199 / 1200
    assert (
        stats.chi2(1199).ppf(LEVEL / 2) < square < stats.chi2(1199).ppf(1 - LEVEL / 2)
    )
    pairs = int((there[:, :600] & there[:, 600:]).sum())
    chance = 100 * 99 / (1200 * 1199)
    assert abs(pairs / (600 * 1200) - chance) < stats.norm.ppf(
        1 - LEVEL / 2
    ) * math.sqrt(chance / (600 * 1200))


@pytest.mark.parametrize(
    ("kind", "moves"), [("shuffled-epochs", True), ("min-separation", False)]
)
def test_passes_take_each_client_once_and_go_on(kind, moves):
    """Thirty rounds of 100 of 1,200: two passes and a half, each in an order of its own
    or all in the same.
    """
    sampler = plan(kind, rounds=30)
    cohorts = [sampler.sample_cohort(index) for index in range(30)]
    for start in (0, 12):
        assert sorted(np.concatenate(cohorts[start : start + 12])) == list(range(1200))
    same = [np.array_equal(cohorts[index], cohorts[index + 12]) for index in range(18)]
    assert not any(same) if moves else all(same)
    said = sampler.describe()
    find("gaussian", kind).check(said)
    if moves:
        assert (said["epoch"], said["batches"]) == (12, "known")
    else:
        assert (said["separation"], said["participations"]) == (12, 3)
    with pytest.raises(BenchError, match="divides"):
        plan(kind, cohort=99)


@pytest.mark.parametrize(
    "kind", ["one-pass", "balls-and-bins", "poisson", "fixed-size", "min-separation"]
)
def test_cohorts_do_not_depend_on_when_they_are_asked_for(kind):
    fresh = plan(kind).sample_cohort(7)
    used = plan(kind)
    for index in (3, 0, 7):
        used.sample_cohort(index)
    assert np.array_equal(used.sample_cohort(7), fresh)
    assert not np.array_equal(plan(kind, seed=1).sample_cohort(7), fresh)


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


def test_lots_are_poisson():
    """Property 7. The frequency, and that two records are together as often as apart
    from one another: 99.99 %.
    """
    lots = PoissonLots(cohort=20, rounds=4000).lots(
        clients=2, seed=0, steps=1, records=100
    )
    drawn = np.zeros((4000, 100), bool)
    for index in range(4000):
        drawn[index, lots.lot(index, 0, 1)] = True
    assert abs(drawn.mean() - 0.2) < 3.9 * math.sqrt(0.16 / drawn.size)
    together = (drawn[:, :50] & drawn[:, 50:]).mean()
    assert abs(together - 0.04) < 3.9 * math.sqrt(0.04 * 0.96 / (4000 * 50))
    assert not np.array_equal(lots.lot(0, 0, 0), lots.lot(0, 0, 1))
    assert not np.array_equal(lots.lot(0, 0, 0), lots.lot(0, 1, 0))


def test_lots_of_ones_own_have_no_others_analysis():
    """What draws them is another code than the one that the analysis of Poisson lots is
    of.
    """

    class Fixed(PoissonLots):
        kind = "fixed-lots"

    sampler = (
        Fixed(cohort=8, rounds=3)
        .lots(clients=4, seed=0, steps=1, records=100)
        .describe()
    )
    with pytest.raises(
        BenchError,
        match=r"^no analysis for gaussian noise with the sampler 'fixed-lots'",
    ):
        find("gaussian", sampler["kind"])


def test_lots_say_by_what_they_are_divided_and_how_often_a_record_is_in_one():
    """Property 8: L = 20 of 100 records, three lots in each of 5 rounds; everyone takes
    part.
    """
    given = PoissonLots(cohort=20, rounds=5)
    lots = given.lots(clients=2, seed=0, steps=3, records=100)
    assert lots.denominator == 20.0
    assert lots.describe() == {
        "kind": "poisson-lots",
        "clients": 2,
        "records": 100,
        "cohort": 20,
        "rounds": 15,
        "rate": 0.2,
    }
    assert given.plan(clients=2, seed=0).sample_cohort(4).tolist() == [0, 1]
    with pytest.raises(
        BenchError, match="a client holds 19 records: a lot must be from 1 to that"
    ):
        given.lots(clients=2, seed=0, steps=3, records=19)


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        ("one-pass", {"cohort": 1300}),
        ("poisson", {"cohort": 0}),
        ("poisson", {"cohort": 1300}),
        ("one-pass", {"cohort": 99}),
        ("one-pass", {"rounds": 13}),
        ("balls-and-bins", {"rounds": 11}),
        ("balls-and-bins", {"rounds": 13}),
        ("poisson", {"rounds": -1}),
    ],
)
def test_numbers_that_do_not_go_together_are_refused(kind, numbers):
    with pytest.raises(BenchError):
        plan(kind, **numbers)


@pytest.mark.parametrize(
    ("values", "line"),
    [
        (
            {"cohort": 49},
            (
                "participation.cohort is 49, more than clients.count (48): lower it or"
                " raise that"
            ),
        ),
        (
            {"cohort": 5},
            (
                "participation.cohort (5) does not divide clients.count (48), as"
                " one-pass needs: try 4"
            ),
        ),
        (
            {"rounds": 13},
            (
                "participation.rounds is 13, but 48 clients in cohorts of 4 last for 12"
                " rounds of one-pass: "
            ),
        ),
        (
            {"kind": "balls-and-bins", "rounds": 11},
            "participation.cohort x participation.rounds is 44, but ",
        ),
        (
            {"kind": "balls-and-bins", "cohort": 5},
            "participation.cohort (5) does not divide clients.count (48), as ",
        ),
        (
            {"kind": "min-separation", "cohort": 5},
            "participation.cohort (5) does not divide clients.count (48), as min-",
        ),
        (
            {"kind": "poisson", "cohort": 0},
            "participation.cohort is 0",
        ),
        (
            {"kind": "one-pas"},
            'participation.kind is "one-pas"',
        ),
    ],
)
def test_a_run_that_they_do_not_fit_is_refused_in_one_line(values, line):
    with pytest.raises(BenchError) as caught:
        make_config({"participation": values})
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value)


def test_a_lot_may_be_larger_than_the_number_of_clients():
    assert (
        make_config(
            {"participation": {"cohort": 90}}, general=LOTS
        ).participation.cohort
        == 90
    )
