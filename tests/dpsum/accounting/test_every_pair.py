"""Every public participation and noise has an account, or says that it has none; and
participation that hides nothing is a Gaussian.
"""

import inspect
import math
import warnings

import numpy as np
import pytest

import dpsum
from dpsum import factorisations
from dpsum.accounting.account import account
from dpsum.accounting.context import AccountContext
from dpsum.accounting.image_level import ImageUse
from dpsum.accounting.tuning import Search
from tests.dpsum.accounting.helpers import sampled_gaussian_epsilon
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
    cohort = 6 if kind is dpsum.Everyone else 2
    return kind(units=6, cohort=cohort, rounds=ROUNDS, seed=0)


def make_noise(kind, participation):
    times = ROUNDS if isinstance(participation, dpsum.Everyone) else 1
    if kind is dpsum.Factorised:
        return kind(multiplier=2.0).planned(ROUNDS, step=None, apart=(1, times))
    if kind is not dpsum.Correlated:
        return kind(multiplier=2.0)
    weights = factorisations.square_root(ROUNDS)
    weights = factorisations.scaled(weights, separation=1, participations=times)
    return kind(multiplier=2.0, weights=weights)


def draw(participation, noise, ledger=None):
    """Release the sums of all rounds; return the ledger's lines."""
    ledger = [] if ledger is None else ledger
    mechanism = make_mechanism(
        dimension=4,
        participation=participation,
        clipping=dpsum.Constant(1.0),
        noise=noise,
        ledger=ledger,
        seed=1,
    )
    rows = np.ones((int(participation.describe()["cohort"]), 4))
    release_rounds(mechanism, rows, participation.rounds)
    return ledger


def exact(mu):
    """Return epsilon of one Gaussian at a distance of mu deviations, approximately."""
    return pytest.approx(sampled_gaussian_epsilon(1 / mu, 1.0, DELTA), rel=1e-9)


def ends(entry):
    return entry.epsilon_low, entry.epsilon_high


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
        entry = account(ledger, delta=DELTA).profiles["proven"]
        assert entry.status == "proved"
        assert 0 <= entry.epsilon_low <= entry.epsilon_high < math.inf


@pytest.mark.parametrize(
    "kind",
    [
        dpsum.Everyone,
        dpsum.Poisson,
        dpsum.FixedSize,
        dpsum.ShuffledEpochs,
        dpsum.MinSeparation,
        dpsum.RecordLots,
    ],
)
def test_account_of_whole_cohorts_is_a_gaussian_in_every_profile(kind):
    """z = 1 in three rounds of all units: mu = sqrt(3), twice that for replace-one."""
    if kind is dpsum.RecordLots:
        plan, images = kind(lot=6, records=6, rounds=3, seed=0), None
    else:
        plan = kind(units=6, cohort=6, rounds=3, seed=0)
        images = ImageUse(images=np.zeros((2, 1), dtype=int), rounds=None)
    context = AccountContext(
        images=images,
        search=Search(runs=4, data="private", number="fixed"),
        own_streams=True,
    )
    lines = draw(plan, dpsum.Gaussian(1.0))
    profiles = account(lines, delta=DELTA, context=context).profiles
    assert ends(profiles["proven"]) == (exact(3**0.5), exact(3**0.5))
    doubled = exact(2 * 3**0.5)
    assert ends(profiles["replace_one"]) == (doubled, doubled)
    assert profiles["tuning"].epsilon_high == doubled
    if kind in (dpsum.Everyone, dpsum.Poisson, dpsum.FixedSize):
        assert ends(profiles["image_level"]) == (doubled, doubled)


def test_account_of_everyone_with_correlated_noise_sums_all_columns():
    """Contributions that all point the same way move C S by C 1, of norm |C 1|."""
    participation = make_participation(dpsum.Everyone)
    noise = make_noise(dpsum.Correlated, participation)
    entry = account(draw(participation, noise), delta=DELTA).profiles["proven"]
    encoder = np.linalg.inv(noise.weights)
    mu = float(np.linalg.norm(encoder.sum(axis=1))) / 2.0
    assert ends(entry) == (exact(mu), exact(mu))


def test_correlated_noise_for_one_participation_refuses_everyone():
    participation = make_participation(dpsum.Everyone)
    noise = make_noise(dpsum.Correlated, make_participation(dpsum.OnePass))
    with pytest.raises(dpsum.DpsumError, match="3 participations move"):
        noise.sampled(participation.describe())
