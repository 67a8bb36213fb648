"""Event trees of dp_accounting and ledgers, each read as the other."""

import dataclasses
import math
import sys

import numpy as np
import pytest
from dp_accounting import ComposedDpEvent, GaussianDpEvent, NeighboringRelation
from dp_accounting import dp_event as events
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from ledgers import correlated_releases, make_releases

from dpsum import DpsumError
from dpsum.accounting.account import account
from dpsum.ledger import Ledger, read_ledger
from dpwatch.adapters.dp_event import from_event, to_event

N = 1000
DELTA = 1e-5


def pld_epsilon(event, relation=NeighboringRelation.REPLACE_SPECIAL):
    """Return dp_accounting's epsilon of a tree."""
    return PLDAccountant(relation).compose(event).get_epsilon(DELTA)


def dp_sgd(z, rate, steps):
    """Return the tree of DP-SGD, as jax_privacy makes it."""
    step = events.PoissonSampledDpEvent(rate, GaussianDpEvent(z))
    return events.SelfComposedDpEvent(step, steps)


TWO_SUMS = ComposedDpEvent([GaussianDpEvent(2.0), GaussianDpEvent(1.5)])
TWO_NOISES = ComposedDpEvent([dp_sgd(1.0, 0.02, 10), dp_sgd(2.0, 0.02, 30)])
SMALL_SGD = dp_sgd(1.0, 0.1, 2)
NESTED = ComposedDpEvent([SMALL_SGD, events.NoOpDpEvent(), SMALL_SGD])
# A mixture of nothing and one contribution is a Poisson sample.
MIXTURE = events.MixtureOfGaussiansDpEvent(0.8, [0.0, 1.0], [0.97, 0.03])
SAMPLE = events.PoissonSampledDpEvent(0.03, GaussianDpEvent(0.8))
FULL_BATCHES = events.SelfComposedDpEvent(GaussianDpEvent(4.0), 9)


# Faster: the same trees of records.
@pytest.mark.parametrize(
    "unit", ["record", pytest.param("client", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ("tree", "equivalent"),
    [
        (dp_sgd(1.1, 0.05, 40), None),
        (GaussianDpEvent(0.9), None),
        (FULL_BATCHES, None),
        (TWO_NOISES, None),
        (events.SelfComposedDpEvent(NESTED, 4), None),
        # Two sums of a sample are one Gaussian, which PLDAccountant does not make.
        (
            events.SelfComposedDpEvent(events.PoissonSampledDpEvent(0.1, TWO_SUMS), 12),
            dp_sgd((2.0**-2 + 1.5**-2) ** -0.5, 0.1, 12),
        ),
        (events.SelfComposedDpEvent(MIXTURE, 20), dp_sgd(0.8, 0.03, 20)),
    ],
)
def test_account_of_a_tree_is_that_of_dp_accounting(tree, equivalent, unit, tmp_path):
    """It is the same for lines that were read again, and for the tree of the lines."""
    releases = from_event(tree, units=N, unit=unit, threshold=0.5)
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for release in releases:
        ledger.append(release)
    assert read_ledger(ledger.path, ledger.chain) == releases
    expected = pld_epsilon(equivalent or tree)
    entry = account(releases, delta=DELTA, claims={}).profiles["proven"]
    assert entry.epsilon_low - 1e-3 < expected < entry.epsilon_high + 1e-3
    assert entry.epsilon_high - entry.epsilon_low < 1e-3
    assert entry.unit == unit
    epsilon = pld_epsilon(to_event(releases), NeighboringRelation.ADD_OR_REMOVE_ONE)
    assert epsilon == pytest.approx(expected, abs=1e-3)


RELATIONS = {
    "zero-out": NeighboringRelation.REPLACE_SPECIAL,
    "add-or-remove": NeighboringRelation.ADD_OR_REMOVE_ONE,
    "replace-one": NeighboringRelation.REPLACE_ONE,
}
PROFILES = {"zero-out": "proven", "add-or-remove": "proven"}
PROFILES["replace-one"] = "replace_one"
FIXED_SIZE = events.SampledWithoutReplacementDpEvent(N, 100, GaussianDpEvent(3.0))


@pytest.mark.parametrize(
    ("tree", "epsilon"),
    [
        (GaussianDpEvent(1.0), 9.997256),
        (events.SelfComposedDpEvent(GaussianDpEvent(4.0), 4), 4.377178),
        (dp_sgd(1.0, 0.1, 10), 3.434),
    ],
)
def test_tree_under_replace_one_has_noise_over_c(tree, epsilon):
    """A unit that is replaced moves the sum by 2 C, and `GaussianDpEvent` has the noise
    over C: 9.997 is one Gaussian of z = 1/2, and 4.377 one of z = 1. For Poisson samples
    the values are dp_accounting's. The tree of the lines has the same value.
    """
    lines = from_event(tree, units=N, adjacency="replace-one")
    entry = account(lines, delta=DELTA).profiles["replace_one"]
    assert entry.adjacency == "replace-one"
    relation = NeighboringRelation.REPLACE_ONE
    assert pld_epsilon(tree, relation) == pytest.approx(epsilon, abs=1e-3)
    assert entry.epsilon_low <= epsilon + 1e-3
    assert entry.epsilon_high >= epsilon - 1e-3
    of_lines = pld_epsilon(to_event(lines, adjacency="replace-one"), relation)
    assert of_lines == pytest.approx(epsilon, abs=1e-3)


OF_EVERY_CLASS = {
    events.NoOpDpEvent: events.NoOpDpEvent(),
    events.NonPrivateDpEvent: events.NonPrivateDpEvent(),
    events.UnsupportedDpEvent: events.UnsupportedDpEvent(),
    events.RandomizedResponseDpEvent: events.RandomizedResponseDpEvent(0.5, 4),
    events.GaussianDpEvent: GaussianDpEvent(1.5),
    events.LaplaceDpEvent: events.LaplaceDpEvent(1.0),
    events.DiscreteLaplaceDpEvent: events.DiscreteLaplaceDpEvent(1.0, 1),
    events.SelfComposedDpEvent: FULL_BATCHES,
    events.ComposedDpEvent: TWO_NOISES,
    events.PoissonSampledDpEvent: events.PoissonSampledDpEvent(
        0.1, GaussianDpEvent(1.0)
    ),
    events.SampledWithReplacementDpEvent: events.SampledWithReplacementDpEvent(
        N, 100, GaussianDpEvent(1.0)
    ),
    events.SampledWithoutReplacementDpEvent: FIXED_SIZE,
    events.SingleEpochTreeAggregationDpEvent: events.SingleEpochTreeAggregationDpEvent(
        1.0, 8
    ),
    events.RepeatAndSelectDpEvent: events.RepeatAndSelectDpEvent(
        GaussianDpEvent(1.0), 2.0, 1.0
    ),
    events.MixtureOfGaussiansDpEvent: MIXTURE,
    events.ZCDpEvent: events.ZCDpEvent(0.5),
    events.TruncatedSubsampledGaussianDpEvent: (
        events.TruncatedSubsampledGaussianDpEvent(N, 0.1, 150, 1.0)
    ),
}
ACCOUNTED = {
    events.GaussianDpEvent: set(RELATIONS),
    events.SelfComposedDpEvent: set(RELATIONS),
    events.ComposedDpEvent: set(RELATIONS),
    events.PoissonSampledDpEvent: set(RELATIONS),
    events.SampledWithoutReplacementDpEvent: {"zero-out", "replace-one"},
    events.MixtureOfGaussiansDpEvent: {"zero-out", "add-or-remove"},
}


# attrs makes a second class of each, and the first is listed until it is collected.
EVERY_CLASS = [
    kind
    for kind in events.DpEvent.__subclasses__()
    if getattr(sys.modules[kind.__module__], kind.__name__) is kind
]
EQUIVALENT = {events.MixtureOfGaussiansDpEvent: SAMPLE}


# Faster: test_every_event_has_an_account_or_a_refusal, of the equivalent sample.
@pytest.mark.slow
@pytest.mark.parametrize("adjacency", ["zero-out", "add-or-remove"])
def test_mixture_is_the_sample_to_dp_accounting(adjacency):
    values = [pld_epsilon(tree, RELATIONS[adjacency]) for tree in (MIXTURE, SAMPLE)]
    assert values[0] == pytest.approx(values[1], abs=1e-3)


@pytest.mark.parametrize("adjacency", RELATIONS)
@pytest.mark.parametrize("kind", EVERY_CLASS)
def test_every_event_has_an_account_or_a_refusal(kind, adjacency):
    """Where PLDAccountant supports the event, the account has its epsilon, or brackets
    it. A class that dp_accounting adds enters by existing. A mixture takes it a minute:
    the expected value is that of the Poisson sample that the mixture is.
    """
    tree = OF_EVERY_CLASS[kind]
    if adjacency not in ACCOUNTED.get(kind, ()):
        with pytest.raises(DpsumError):
            from_event(tree, units=N, adjacency=adjacency)
        return
    lines = from_event(tree, units=N, adjacency=adjacency)
    entry = account(lines, delta=DELTA).profiles[PROFILES[adjacency]]
    accountant = PLDAccountant(RELATIONS[adjacency])
    if not accountant.supports(tree):
        assert kind is events.SampledWithoutReplacementDpEvent
        return
    expected = accountant.compose(EQUIVALENT.get(kind, tree)).get_epsilon(DELTA)
    assert entry.epsilon_low - 1e-3 < expected < entry.epsilon_high + 1e-3
    again = to_event(lines, adjacency=adjacency)
    assert pld_epsilon(again, RELATIONS[adjacency]) == pytest.approx(expected, abs=1e-3)


def test_tree_of_a_fixed_size_has_noise_over_c():
    """Where all others are -C and a contribution of C becomes -C, the releases are those
    of Poisson samples of a sensitivity of 2 C. dp_accounting's Renyi bound is above; it
    takes the multiplier as noise over 2 C, so that no tree is made for it.
    """
    tree = events.SelfComposedDpEvent(FIXED_SIZE, 30)
    lines = from_event(tree, units=N, adjacency="replace-one")
    assert {line.noise_multiplier for line in lines} == {3.0}
    sampler = lines[0].sampler
    assert (sampler["kind"], sampler["cohort"]) == ("fixed-size", 100)
    half = events.SampledWithoutReplacementDpEvent(N, 100, GaussianDpEvent(1.5))
    accountant = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    renyi = accountant.compose(half, 30).get_epsilon(DELTA)
    entry = account(lines, delta=DELTA).profiles["replace_one"]
    poisson = pld_epsilon(dp_sgd(1.5, 0.1, 30))
    assert entry.epsilon_low < poisson + 1e-3
    assert poisson < entry.epsilon_high + 1e-3 < renyi
    for adjacency in RELATIONS:
        with pytest.raises(DpsumError, match=f"sampler fixed-size for {adjacency}"):
            to_event(lines, adjacency=adjacency)


def known_rounds(kind, rounds, **changes):
    """Return lines of z = 2 of cohorts of 100."""
    sampler = {"kind": kind, "clients": N, "cohort": 100, "rounds": rounds, "rate": 0.1}
    return make_releases(rounds, z=2.0, sampler=sampler | changes)


SHUFFLED = known_rounds("shuffled-epochs", 30, epoch=10, batches="known")
SEPARATED = known_rounds("min-separation", 30, separation=10, participations=3)


@pytest.mark.parametrize(
    ("lines", "adjacency", "z"),
    [
        (known_rounds("one-pass", 10), "zero-out", 2.0),
        (known_rounds("one-pass", 10), "replace-one", 2.0),
        (SHUFFLED, "zero-out", 2 / math.sqrt(3)),
        (SEPARATED, "zero-out", 2 / math.sqrt(3)),
    ],
)
def test_tree_of_known_rounds_is_one_gaussian(lines, adjacency, z):
    event = to_event(lines, adjacency=adjacency)
    assert isinstance(event, GaussianDpEvent)
    assert event.noise_multiplier == pytest.approx(z, rel=1e-12)


def test_tree_of_correlated_noise_is_the_gaussian_of_its_largest_column():
    """A banded encoder in one pass: all columns but the last have norm sqrt(1 + 0.6^2)."""
    weights = np.linalg.inv(np.eye(4) + 0.6 * np.eye(4, k=-1))
    norm = math.sqrt(1.36)
    lines = correlated_releases(weights, sensitivity=norm / 2, noise_std=norm)
    event = to_event(lines)
    assert isinstance(event, GaussianDpEvent)
    assert event.noise_multiplier == pytest.approx(2.0, rel=1e-12)


def test_tree_of_a_line_without_an_event_is_not_private():
    lines = from_event(dp_sgd(1.1, 0.05, 40), units=N)
    reason = {"data_dependent_threshold": True, "reason": "its noise is less"}
    lines[7] = dataclasses.replace(lines[7], **reason)
    assert to_event(lines) == events.NonPrivateDpEvent()


@pytest.mark.parametrize(
    "event",
    [
        events.LaplaceDpEvent(1.0),
        events.NonPrivateDpEvent(),
        events.TruncatedSubsampledGaussianDpEvent(N, 0.1, 150, 1.0),
        events.SampledWithReplacementDpEvent(N, 100, GaussianDpEvent(1.0)),
        events.PoissonSampledDpEvent(0.1, SMALL_SGD),
        events.MixtureOfGaussiansDpEvent(1.0, [0.0, 1.0, 2.0], [0.8, 0.1, 0.1]),
        ComposedDpEvent([SMALL_SGD, dp_sgd(1.0, 0.2, 2)]),
        ComposedDpEvent([GaussianDpEvent(1.0), SMALL_SGD]),
        events.SampledWithoutReplacementDpEvent(N + 1, 100, GaussianDpEvent(1.0)),
    ],
)
def test_from_event_refuses_trees_without_an_analysis(event):
    with pytest.raises(DpsumError):
        from_event(event, units=N)


DP_SGD_LINES = from_event(dp_sgd(1.1, 0.05, 4), units=N)
OF_A_CLIENT = dataclasses.replace(DP_SGD_LINES[0], unit="client")


@pytest.mark.parametrize(
    ("lines", "adjacency"),
    [
        ([OF_A_CLIENT, *DP_SGD_LINES], "zero-out"),
        (known_rounds("balls-and-bins", 10), "zero-out"),
        (known_rounds("one-pass", 10), "add-or-remove"),
        (DP_SGD_LINES, "replace-special"),
    ],
)
def test_to_event_refuses_ledgers_without_a_tree(lines, adjacency):
    with pytest.raises(DpsumError):
        to_event(lines, adjacency=adjacency)
