"""Participation: property 7 of the draws, property 8 of the denominators."""

import math

import numpy as np
import pytest
from scipy import stats

from dpsum import participation
from dpsum.accounting.analyses import find
from dpsum.errors import DpsumError
from dpsum.participation import PoissonLots, RecordLots

LEVEL = 1e-3  # of each statistical test below, with fixed seeds
ONCE = ("one-pass", "balls-and-bins", "poisson", "fixed-size")
PASSES = ("shuffled-epochs", "min-separation", "passes")
KINDS = {
    part.kind: part
    for part in (
        participation.OnePass,
        participation.BallsAndBins,
        participation.Poisson,
        participation.FixedSize,
        participation.ShuffledEpochs,
        participation.MinSeparation,
        participation.Passes,
    )
}


def make_plan(kind, clients=1200, cohort=100, rounds=12, seed=0):
    part = KINDS[kind](cohort=cohort, rounds=rounds)
    return part.plan(clients=clients, seed=seed)


def make_lots(part, records=100, steps=1):
    """Return the lots of two clients."""
    return part.lots(clients=2, seed=0, steps=steps, records=records)


def membership(draw, rounds, units=1200):
    """Return whether a unit is in a round: bool [rounds, units]."""
    members = np.zeros((rounds, units), bool)
    for index in range(rounds):
        drawn = draw(index)
        assert len(np.unique(drawn)) == len(drawn)
        members[index, drawn] = True
    return members


def membership_of(kind, rounds=12, seed=0):
    plan = make_plan(kind, rounds=rounds, seed=seed)
    return membership(plan.sample_cohort, rounds)


def assert_independent(members, rate):
    """Check frequencies, and pairs of units and of rounds, by exact binomial tests."""
    assert stats.binomtest(int(members.sum()), members.size, rate).pvalue > LEVEL
    for pairs in (members[:, ::2] & members[:, 1::2], members[::2] & members[1::2]):
        assert stats.binomtest(int(pairs.sum()), pairs.size, rate**2).pvalue > LEVEL


def test_one_pass_takes_each_client_exactly_once():
    members = membership_of("one-pass")
    assert (members.sum(axis=0) == 1).all()
    assert (members.sum(axis=1) == 100).all()


def test_balls_and_bins_takes_each_client_exactly_once_in_a_uniform_round():
    """Counts are multinomial, and the rounds of two clients are independent."""
    by_seed = [membership_of("balls-and-bins", seed=seed) for seed in range(50)]
    members = np.stack(by_seed)
    assert (members.sum(axis=1) == 1).all()
    counts = members.sum(axis=2)
    assert stats.chisquare(counts.sum(axis=0)).pvalue > LEVEL
    statistic = ((counts - 100) ** 2 / 100).sum()
    assert LEVEL < stats.chi2(50 * 11).cdf(statistic) < 1 - LEVEL
    same = int((members[:, :, ::2] & members[:, :, 1::2]).sum())
    assert stats.binomtest(same, 50 * 600, 1 / 12).pvalue > LEVEL


def test_poisson_takes_each_client_at_its_rate_independently_of_others():
    assert_independent(membership_of("poisson", rounds=200), 1 / 12)


def test_fixed_size_cohorts_are_drawn_anew_without_replacement():
    """1,200 rounds of 100 of 1,200 clients: frequencies of clients and of pairs. Sums
    over clients of a round are fixed, so the statistic has 1,199 degrees of freedom.
    """
    members = membership_of("fixed-size", rounds=1200)
    assert (members.sum(axis=1) == 100).all()
    spread = ((members.sum(axis=0) - 100) ** 2).sum() / (100 * (1 - 1 / 12))
    statistic = spread * 1199 / 1200
    assert LEVEL / 2 < stats.chi2(1199).cdf(statistic) < 1 - LEVEL / 2
    pairs = (members[:, :600] & members[:, 600:]).mean()
    chance = 100 * 99 / (1200 * 1199)
    error = stats.norm.ppf(1 - LEVEL / 2) * math.sqrt(chance / (600 * 1200))
    assert abs(pairs - chance) < error


@pytest.mark.parametrize("kind", PASSES)
def test_passes_take_each_client_once_and_go_on(kind):
    """Thirty rounds of 100 of 1,200 are two passes and a half."""
    members = membership_of(kind, rounds=30)
    assert (members[:12].sum(axis=0) == 1).all()
    assert (members[12:24].sum(axis=0) == 1).all()
    repeats = (members[:18] == members[12:]).all(axis=1)
    assert set(repeats) == {kind == "min-separation"}


def test_participation_without_a_proof_has_no_analysis():
    """The analysis of Poisson lots is proved for the code that draws them."""

    class FixedLots(PoissonLots):
        kind = "fixed-lots"

    for kind, values in (
        ("shuffled-epochs", {"epoch": 12, "batches": "known"}),
        ("min-separation", {"separation": 12, "participations": 3}),
    ):
        sampler = make_plan(kind, rounds=30).describe()
        find("gaussian", kind).check(sampler)
        assert values.items() <= sampler.items()
    for plan in make_plan("passes"), make_lots(FixedLots(lot=8, rounds=3)):
        with pytest.raises(DpsumError, match="no analysis for gaussian noise with"):
            find("gaussian", plan.describe()["kind"])


@pytest.mark.parametrize("kind", ONCE + PASSES)
def test_cohorts_do_not_depend_on_the_order_of_requests(kind):
    fresh = make_plan(kind).sample_cohort(7)
    used = make_plan(kind)
    for index in (3, 0, 7):
        used.sample_cohort(index)
    assert np.array_equal(used.sample_cohort(7), fresh)
    assert not np.array_equal(make_plan(kind, seed=1).sample_cohort(7), fresh)


@pytest.mark.parametrize("kind", ["one-pass", "balls-and-bins", "poisson"])
def test_denominator_is_public(kind):
    """Property 8: N/T, or L, the same for every seed and every realised cohort."""
    denominators = {make_plan(kind, seed=seed).denominator for seed in range(5)}
    assert denominators == {100.0}
    sizes = {"clients": 1200, "cohort": 100, "rounds": 12, "rate": 100 / 1200}
    assert make_plan(kind).describe() == {"kind": kind} | sizes


def test_lots_are_poisson():
    """Property 7."""
    lots = make_lots(PoissonLots(lot=20, rounds=4000))
    members = membership(lambda index: lots.lot(index, 0, 1), rounds=4000, units=100)
    assert_independent(members, 0.2)
    assert not np.array_equal(lots.lot(0, 0, 0), lots.lot(0, 0, 1))
    assert not np.array_equal(lots.lot(0, 0, 0), lots.lot(0, 1, 0))


def test_lots_have_a_public_denominator_and_rate():
    """Property 8: L = 20 of 100 records, three lots in each of 5 rounds. Every client
    takes part, and a lot may be larger than the number of clients.
    """
    part = PoissonLots(lot=20, rounds=5)
    lots = make_lots(part, steps=3)
    assert lots.denominator == 20.0
    sizes = {"clients": 2, "records": 100, "cohort": 20, "rounds": 15}
    assert lots.describe() == {"kind": "poisson-lots", "rate": 0.2} | sizes
    assert part.plan(clients=2, seed=0).sample_cohort(4).tolist() == [0, 1]
    with pytest.raises(DpsumError, match="a client holds 19 records: a lot must have"):
        make_lots(part, records=19)


def test_lots_of_unequal_clients_have_one_rate():
    """A step has 60 of 400 records in expectation, whichever client holds them. Means
    of 2,000 lots, within four standard errors.
    """
    sizes = [30, 100, 270]
    lots = RecordLots(clients=3, lot=20, rounds=2000, records=sizes, seed=0)
    assert lots.rate == 0.15
    for client, size in enumerate(sizes):
        assert lots.expected_size(client) == 0.15 * size
        drawn = [lots.lot(index, 0, client) for index in range(2000)]
        mean = np.mean([len(lot) for lot in drawn])
        assert abs(mean - 0.15 * size) < 4 * (size * 0.15 * 0.85 / 2000) ** 0.5
        assert max(lot.max(initial=0) for lot in drawn) < size
    assert dict(lots.describe()) == {
        "kind": "poisson-lots",
        "clients": 3,
        "records": 400,
        "cohort": 60,
        "rounds": 2000,
        "rate": 0.15,
        "sizes": sizes,
    }


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        ("poisson", {"cohort": 0}),
        ("one-pass", {"rounds": 13}),
        ("balls-and-bins", {"rounds": 11}),
        ("shuffled-epochs", {"cohort": 99}),
        ("min-separation", {"cohort": 99}),
        ("poisson", {"rounds": -1}),
    ],
)
def test_participation_that_does_not_fit_the_clients_is_refused(kind, numbers):
    with pytest.raises(DpsumError):
        make_plan(kind, **numbers)
