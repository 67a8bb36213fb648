"""Every public participation and noise has an account, or says that it has none;
participation that hides nothing is a Gaussian; explanations state a bracket's width.
"""

import inspect
import math
import re
import warnings

import numpy as np
import pytest

import dpsum
from dpsum.accounting.account import account
from dpsum.accounting.image_level import ImageUse
from dpsum.accounting.tuning import Search
from tests.dpsum.accounting.helpers import (
    ends,
    profiles_of,
    sampled_gaussian_epsilon,
)
from tests.dpsum.helpers import make_mechanism, release_rounds

DELTA = 1e-5
ROUNDS = 3


def public_classes(base):
    """Return the public classes of `dpsum` that derive from a base."""
    values = (getattr(dpsum, name) for name in dpsum.__all__)
    kinds = (value for value in values if inspect.isclass(value))
    return [kind for kind in kinds if issubclass(kind, base) and kind is not base]


def make_participation(kind):
    """Return the smallest valid participation of a class, with three rounds."""
    if kind is dpsum.RecordLots:
        return kind(clients=1, lot=2, rounds=ROUNDS, records=6, seed=0)
    if kind is dpsum.PoissonLots:
        return kind(units=6, lot=2, rounds=ROUNDS, seed=0)
    cohort = 6 if kind is dpsum.Everyone else 2
    return kind(units=6, cohort=cohort, rounds=ROUNDS, seed=0)


def make_noise(kind, participation):
    times = ROUNDS if isinstance(participation, dpsum.Everyone) else 1
    if kind is dpsum.Factorised:
        return kind(multiplier=2.0).planned(ROUNDS, step=None, apart=(1, times))
    return kind(multiplier=2.0)


def draw(participation, noise, ledger=None):
    """Release the sums of all rounds; return the ledger's lines."""
    ledger = [] if ledger is None else ledger
    values = {"participation": participation, "noise": noise, "ledger": ledger}
    clipping = dpsum.Constant(1.0)
    mechanism = make_mechanism(dimension=4, clipping=clipping, seed=1, **values)
    rows = np.ones((int(participation.describe()["cohort"]), 4))
    release_rounds(mechanism, rows, participation.rounds)
    return ledger


def exact(mu):
    """Return epsilon of one Gaussian at a distance of mu deviations, approximately."""
    return pytest.approx(sampled_gaussian_epsilon(1 / mu, 1.0, DELTA), rel=1e-9)


PARTICIPATIONS = [*public_classes(dpsum.Participation), dpsum.RecordLots]
NOISES = public_classes(dpsum.Noise)
assert len(PARTICIPATIONS) > 6
assert len(NOISES) > 3


@pytest.mark.parametrize("noise_kind", NOISES)
@pytest.mark.parametrize("kind", PARTICIPATIONS)
def test_pair_that_draws_has_an_account_or_warns_that_it_has_none(kind, noise_kind):
    participation = make_participation(kind)
    ledger = []
    refusal = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            draw(participation, make_noise(noise_kind, participation), ledger)
        except dpsum.DpsumError as error:
            refusal = str(error)
    warned = [line for line in caught if line.category is dpsum.NoAccountWarning]
    if warned:
        assert len(caught) == 1
        assert "no analysis for" in str(warned[0].message)
        if ledger:
            with pytest.raises(dpsum.DpsumError, match="no analysis for"):
                account(ledger, delta=DELTA)
    elif refusal:
        assert not ledger
    else:
        entry = profiles_of(ledger, DELTA)["proven"]
        follows_loss = noise_kind.follows_loss
        assert entry.status == ("as run" if follows_loss else "proved")
        assert 0 <= entry.epsilon_low <= entry.epsilon_high < math.inf


WITH_IMAGES = [dpsum.Everyone, dpsum.Poisson, dpsum.FixedSize]


@pytest.mark.parametrize(
    "kind",
    [*WITH_IMAGES, dpsum.ShuffledEpochs, dpsum.MinSeparation, dpsum.RecordLots],
)
def test_account_of_whole_cohorts_is_a_gaussian_in_every_profile(kind):
    """z = 1 in three rounds of all units: mu = sqrt(3), twice that for replace-one."""
    if kind is dpsum.RecordLots:
        plan = kind(lot=6, records=6, rounds=3, seed=0)
        images = None
    else:
        plan = kind(units=6, cohort=6, rounds=3, seed=0)
        images = ImageUse(images=np.zeros((2, 1), dtype=int), rounds=None)
    search = Search(runs=4, data="private", number="fixed")
    context = {"images": images, "search": search, "own_streams": True}
    profiles = profiles_of(draw(plan, dpsum.Gaussian(1.0)), DELTA, **context)
    assert ends(profiles["proven"]) == (exact(3**0.5), exact(3**0.5))
    doubled = exact(2 * 3**0.5)
    assert ends(profiles["replace_one"]) == (doubled, doubled)
    assert profiles["tuning"].epsilon_high == doubled
    if kind in WITH_IMAGES:
        assert ends(profiles["image_level"]) == (doubled, doubled)


def test_account_of_everyone_with_correlated_noise_sums_all_columns():
    """Contributions that all point the same way move C S by C 1, of norm |C 1|."""
    participation = make_participation(dpsum.Everyone)
    noise = make_noise(dpsum.Factorised, participation)
    entry = profiles_of(draw(participation, noise), DELTA)["proven"]
    encoder = np.linalg.inv(noise.inverse())
    mu = float(np.linalg.norm(encoder.sum(axis=1))) / 2.0
    assert ends(entry) == (exact(mu), exact(mu))


def test_correlated_noise_for_one_participation_refuses_everyone():
    participation = make_participation(dpsum.Everyone)
    noise = make_noise(dpsum.Factorised, make_participation(dpsum.OnePass))
    with pytest.raises(dpsum.DpsumError, match="3 participations move"):
        noise.sampled(participation.describe())


def stated_width(explanation):
    """Return the width that an explanation states, its share of the low end, and why."""
    words = r"the high end is (\S+) above the low end \((\S+) % of it\), since (.*)"
    width, share, reason = re.search(words, explanation).groups()
    return float(width), float(share) / 100, reason


def test_explanation_states_that_no_grid_is_made_for_a_tiny_delta():
    """The low end is that of delta = 1e-300, the high end that of a known cohort."""
    plan = dpsum.Poisson(units=6, cohort=3, rounds=1, seed=0)
    entry = profiles_of(draw(plan, dpsum.Gaussian(1.0)), 1e-303)["proven"]
    width, share, reason = stated_width(entry.explanation)
    low = sampled_gaussian_epsilon(1.0, 0.5, "1e-300")
    high = sampled_gaussian_epsilon(1.0, 1.0, "1e-303")
    assert width == pytest.approx(high - low, rel=0.05)
    assert share == pytest.approx((high - low) / low, rel=0.05)
    assert reason.startswith("no grid is made below delta = 1e-300")


def test_explanation_of_fixed_size_has_a_gap_of_theory():
    plan = dpsum.FixedSize(units=100, cohort=10, rounds=60, seed=0)
    profiles = profiles_of(draw(plan, dpsum.Gaussian(0.4)), 1e-5)
    for entry in (profiles["proven"], profiles["replace_one"]):
        width, _, reason = stated_width(entry.explanation)
        assert width == pytest.approx(entry.epsilon_high - entry.epsilon_low, rel=0.01)
        assert reason.endswith("no theory says what lies between")
        assert entry.explanation.count("above the low end") == 1
