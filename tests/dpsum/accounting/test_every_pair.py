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
from dpsum.ledger import read_ledger
from tests.dpsum.accounting.helpers import sampled_gaussian_epsilon
from tests.dpsum.helpers import make_mechanism, make_releases

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


@pytest.fixture
def draw(tmp_path):
    """Release the sums of all rounds; return the ledger's path."""
    path = tmp_path / "ledger.jsonl"

    def draw_rounds(participation, noise):
        mechanism = make_mechanism(
            dimension=4,
            participation=participation,
            clipping=dpsum.Constant(1.0),
            noise=noise,
            ledger=path,
            seed=1,
        )
        for index in range(participation.rounds):
            if isinstance(participation, dpsum.RecordLots):
                cohort = participation.lot(index)
            else:
                cohort = participation.sample_cohort(index)
            total = mechanism.begin_round(index)
            total.add(np.ones((len(cohort), 4)))
            mechanism.release(total)
        return path

    draw_rounds.path = path
    return draw_rounds


def exact(mu):
    """Return epsilon of one Gaussian at a distance of mu deviations, approximately."""
    return pytest.approx(sampled_gaussian_epsilon(1 / mu, 1.0, DELTA), rel=1e-9)


def ends(entry):
    return entry.epsilon_low, entry.epsilon_high


PARTICIPATIONS = [*public_classes(dpsum.Participation), dpsum.RecordLots]
NOISES = public_classes(dpsum.Noise)


def test_public_classes_are_not_an_empty_list():
    assert {dpsum.Everyone, dpsum.Passes, dpsum.FixedSize} <= set(PARTICIPATIONS)
    assert {dpsum.Gaussian, dpsum.Correlated, dpsum.Skellam} <= set(NOISES)


@pytest.mark.parametrize("noise_kind", NOISES)
@pytest.mark.parametrize("kind", PARTICIPATIONS)
def test_pair_that_draws_has_an_account_or_warns_that_it_has_none(
    kind, noise_kind, draw
):
    participation = make_participation(kind)
    refusal = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            draw(participation, make_noise(noise_kind, participation))
        except dpsum.DpsumError as error:
            refusal = str(error)
    warned = [line for line in caught if line.category is dpsum.NoAccountWarning]
    if warned:
        assert len(caught) == 1
        assert "no analysis for" in str(warned[0].message)
        if draw.path.exists() and draw.path.stat().st_size:
            with pytest.raises(dpsum.DpsumError, match="no analysis for"):
                account(draw.path, delta=DELTA)
    elif refusal:
        assert "\n" not in refusal
        assert not draw.path.exists()
    else:
        entry = account(draw.path, delta=DELTA).profiles["proven"]
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
def test_account_of_whole_cohorts_is_a_gaussian_in_every_profile(kind, draw):
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
    path = draw(plan, dpsum.Gaussian(1.0))
    profiles = account(read_ledger(path), delta=DELTA, context=context).profiles
    assert ends(profiles["proven"]) == (exact(3**0.5), exact(3**0.5))
    doubled = exact(2 * 3**0.5)
    assert ends(profiles["replace_one"]) == (doubled, doubled)
    assert profiles["tuning"].epsilon_high == doubled
    if kind in (dpsum.Everyone, dpsum.Poisson, dpsum.FixedSize):
        assert ends(profiles["image_level"]) == (doubled, doubled)


@pytest.mark.parametrize(
    ("kind", "cohort", "rounds"),
    [
        (dpsum.OnePass, 2, 3),
        (dpsum.BallsAndBins, 6, 1),
        (dpsum.Poisson, 6, 1),
        (dpsum.ShuffledEpochs, 2, 3),
        (dpsum.MinSeparation, 2, 3),
    ],
)
def test_account_of_one_known_round_is_one_gaussian(kind, cohort, rounds, draw):
    plan = kind(units=6, cohort=cohort, rounds=rounds, seed=0)
    profiles = account(draw(plan, dpsum.Gaussian(1.0)), delta=DELTA).profiles
    assert ends(profiles["proven"]) == (exact(1.0), exact(1.0))
    assert ends(profiles["replace_one"]) == (exact(2.0), exact(2.0))


def test_account_of_correlated_noise_in_one_bin_is_one_gaussian(draw):
    """The weight 2 makes the encoder 1/2."""
    plan = dpsum.BallsAndBins(units=6, cohort=6, rounds=1, seed=0)
    noise = dpsum.Correlated(multiplier=1.0, weights=np.array([[2.0]]))
    entry = account(draw(plan, noise), delta=DELTA).profiles["proven"]
    assert ends(entry) == (exact(0.5), exact(0.5))


def test_account_of_secret_batches_of_all_units_is_a_gaussian():
    plan = dpsum.ShuffledEpochs(units=6, cohort=6, rounds=3, seed=0)
    sampler = {**plan.describe(), "batches": "secret"}
    releases = make_releases(3, sampler=sampler)
    entry = account(releases, delta=DELTA, claims={}).profiles["proven"]
    assert ends(entry) == (exact(3**0.5), exact(3**0.5))


def test_account_of_a_search_of_one_run_is_that_of_the_run(draw):
    path = draw(make_participation(dpsum.Poisson), dpsum.Gaussian(1.0))
    search = Search(runs=1, data="private", number="fixed")
    context = AccountContext(search=search, own_streams=True)
    profiles = account(path, delta=DELTA, context=context).profiles
    assert profiles["tuning"].epsilon_high == profiles["proven"].epsilon_high


def test_account_of_everyone_with_correlated_noise_sums_all_columns(draw):
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


def test_everyone_refuses_a_part_of_the_units():
    with pytest.raises(dpsum.DpsumError, match="2 of 6 units"):
        dpsum.Everyone(units=6, cohort=2, rounds=3)


def test_factorised_noise_refuses_to_draw_without_a_number_of_rounds():
    with pytest.raises(dpsum.DpsumError, match="no number of rounds"):
        dpsum.Factorised(multiplier=2.0).inverse()
