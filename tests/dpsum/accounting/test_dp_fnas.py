"""DP-FNAS: its claims, halves of the records, observers, and training after a search."""

import dataclasses
from functools import partial

import pytest

from dploss.gaussian import gaussian_epsilon
from dpsum import DpsumError
from dpsum.accounting.account import account
from dpsum.accounting.analyses import poisson
from dpsum.accounting.analyses.poisson import composed_ends
from dpsum.accounting.claims import GDP_OF_HALVES
from dpsum.accounting.context import AccountContext
from tests.dpsum.accounting import helpers
from tests.dpsum.accounting.helpers import dp_accounting_epsilon
from tests.dpsum.helpers import make_releases

DELTA = 1e-5
CLAIMS = {"poisson-lots": GDP_OF_HALVES}
PRINTED, APPENDIX = GDP_OF_HALVES.readings.values()

profiles_of = partial(helpers.profiles_of, delta=DELTA, claims=CLAIMS)
account_of = partial(account, delta=DELTA, claims=CLAIMS)


def rate_and_rounds(parties, batch):
    """Return a party's rate and number of lots in 50 epochs over its half of 25,000."""
    records = 25_000 / parties
    return batch / records, int(50 * records / batch)


def make_lines(*, part="training half", z=1.0, clients=2, rate=0.1, **changes):
    """Return three rounds of sums that all parties take over 100 records each."""
    sampler = {"kind": "poisson-lots", "clients": clients, "records": 100, "rounds": 3}
    sampler["draw"] = "lots"
    values = {
        "name": "weights-sum",
        "unit": "record",
        "observer": "server",
        "threshold": [1.0] * clients,
        "part": part,
        "adds": clients,
        "sampler": sampler | {"cohort": rate * 100, "rate": rate},
    }
    return make_releases(3, z=z, **values | changes)


def search_lines(*, weights=1.0, architecture=1.0, **changes):
    """Return three rounds of both sums, each over its half of the records."""
    of_weights = make_lines(z=weights, **changes)
    validation = {"part": "validation half", "name": "architecture-sum"}
    of_architecture = make_lines(z=architecture, **validation, **changes)
    lines = [*of_weights, *of_architecture]
    return sorted(lines, key=lambda line: line.round)


@pytest.mark.parametrize(
    ("batch", "parties", "limit", "printed", "proven"),
    [
        (64, 1, 1.856, 1.374, 1.907),
        (64, 2, 2.737, 2.020, 2.840),
        (64, 4, 4.065, 2.983, 4.261),
        (64, 8, 6.091, 4.437, 6.435),
        (256, 4, 9.238, None, 9.748),
        (256, 8, 14.235, None, 14.727),
    ],
)
def test_dp_fnas_claims_of_table_1(batch, parties, limit, printed, proven):
    rate, rounds = rate_and_rounds(parties, batch)
    schedule = ((1.0, rounds),)
    sampler = {"rate": rate}
    claimed = GDP_OF_HALVES.epsilon(schedule, sampler, DELTA)
    assert claimed == pytest.approx(limit, abs=6e-4)
    if printed is not None:
        assert PRINTED(schedule, sampler, DELTA) == pytest.approx(printed, abs=6e-4)
    high = poisson.upper_epsilon(schedule, rate, DELTA)
    assert high == pytest.approx(proven, rel=3e-4)


def test_dp_fnas_appendix_has_a_third_formula():
    """T e^(1/sigma^2) - 1 under the root: mu = q (T e - 1)^1/2."""
    mu = 0.01 * (100 * 2.718281828459045 - 1) ** 0.5
    epsilon = APPENDIX(((1.0, 100),), {"rate": 0.01}, DELTA)
    assert epsilon == pytest.approx(gaussian_epsilon(1 / mu, DELTA))


@pytest.mark.parametrize("noise", [(1.0, 2.0), (2.0, 1.0)])
def test_account_of_two_halves_is_the_worse_of_both(noise):
    """A record is in one half."""
    loud, quiet = (profiles_of(make_lines(z=z, adds=1)) for z in (1.0, 2.0))
    weights, architecture = noise
    lines = search_lines(weights=weights, architecture=architecture, adds=1)
    combined = profiles_of(lines)
    for name in ("proven", "claimed", "replace_one"):
        epsilon = combined[name].epsilon_high
        assert epsilon == loud[name].epsilon_high > quiet[name].epsilon_high
    words = "the worse of the releases of the training half"
    assert words in combined["proven"].explanation


def test_account_composes_two_sums_over_one_half():
    """The mutant that takes both sums of the training half: z = 1/sqrt(2) together."""
    lines = search_lines(adds=1)
    halves = profiles_of(lines)["proven"]
    lines = [dataclasses.replace(event, part="training half") for event in lines]
    composed = profiles_of(lines)["proven"]
    assert composed.epsilon_low > halves.epsilon_high
    joint = profiles_of(make_lines(z=0.5**0.5, adds=1))
    expected = joint["proven"].epsilon_high
    assert composed.epsilon_high == pytest.approx(expected, rel=1e-6)


def test_account_refuses_parts_beside_all_records():
    lines = make_lines()[:1] + make_lines(name="gradient-sum", part=None)[:1]
    message = "reads a subset of the records and other sums read all"
    with pytest.raises(DpsumError, match=message):
        profiles_of(lines)


def test_account_has_three_observers_of_four_parties():
    """z, z sqrt(3) and z sqrt(4); 4.261 against the server and 1.497 for sums that are
    added securely.
    """
    rate, rounds = rate_and_rounds(4, 64)
    for noises, epsilon in ((1, 4.261), (4, 1.497)):
        high = poisson.upper_epsilon(((noises**0.5, rounds),), rate, DELTA)
        assert high == pytest.approx(epsilon, rel=4e-4)
    server = account_of(search_lines(clients=4))
    expected = [("server", 1), ("another client", 3), ("everyone", 4)]
    for part, (observer, noises) in zip([server, *server.also], expected, strict=True):
        entry = part.profiles["proven"]
        assert entry.observer == observer
        high = poisson.upper_epsilon(((noises**0.5, 3),), 0.1, DELTA)
        assert entry.epsilon_high == pytest.approx(high, rel=1e-9)
        assert part.noise_multiplier == pytest.approx(noises**0.5)


def test_account_of_sums_that_nobody_adds_up_has_one_observer():
    for changes in ({"clients": 1}, {"adds": None}):
        assert account_of(search_lines(**changes)).also == ()


@pytest.mark.parametrize(
    "stages",
    [
        # Faster: the other two.
        pytest.param(((1.0, 46, 0.05), (0.8, 100, 0.03)), marks=pytest.mark.slow),
        ((1.0, 46, 0.1),) * 2,
        ((2.0, 300, 0.02),) * 3,
    ],
)
def test_composed_ends_agree_with_dp_accounting(stages):
    """Its pessimistic and optimistic distributions bracket the exact value; the worst
    stage alone is far below.
    """
    optimistic, pessimistic = (
        dp_accounting_epsilon(stages, DELTA, is_pessimistic)
        for is_pessimistic in (False, True)
    )
    schedules = tuple((((z, rounds),), rate) for z, rounds, rate in stages)
    low, high = composed_ends(schedules, DELTA)
    assert low <= min(high, pessimistic)
    assert optimistic <= high
    assert low == pytest.approx(pessimistic, rel=4e-3)
    assert high == pytest.approx(pessimistic, rel=1e-3)
    assert low > 1.1 * max(poisson.upper_epsilon(*stage, DELTA) for stage in schedules)


def test_composed_ends_of_everyone_are_one_gaussian():
    """z = 1 three times and 0.8 four times at rate 1: z^-2 adds up to 9.25."""
    everyone = (((1.0, 3),), 1.0), (((0.8, 4),), 1.0)
    expected = gaussian_epsilon(9.25**-0.5, DELTA)
    ends = composed_ends(everyone, DELTA)
    assert ends == pytest.approx((expected, expected), rel=1e-12)
    sampled = (((1.0, 3),), 1.0), (((1.0, 4),), 1.0), (((0.8, 4),), 0.01)
    low, high = composed_ends(sampled, DELTA)
    assert low == pytest.approx(gaussian_epsilon(7**-0.5, DELTA), rel=1e-12)
    assert low < high


def test_account_of_a_searched_network_has_the_search():
    """The worst record is in the validation half. Another party knows its own noise, of
    two parties'.
    """
    changes = {"records": 200, "rate": 0.05, "draw": "lots of all records"}
    sampler = make_lines()[0].sampler | changes
    training = make_lines(name="gradient-sum", part=None, sampler=sampler)
    context = AccountContext(before=tuple(search_lines(architecture=0.8)))
    combined = account_of(training, claims={}, context=context)

    def expected(factor):
        stages = (((0.8 * factor, 3),), 0.1), (((factor, 3),), 0.05)
        return composed_ends(stages, DELTA)[1]

    epsilon = combined.profiles["proven"].epsilon_high
    assert epsilon == expected(1.0)
    assert epsilon > poisson.upper_epsilon(((0.8, 3),), 0.1, DELTA)
    assert set(combined.profiles) == {"proven"}
    assert "the run that this one rests on" in combined.reasons["replace_one"]
    assert combined.also[1].profiles["proven"].epsilon_high == expected(2**0.5)
