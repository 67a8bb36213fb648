"""Every participation and noise that a user can draw with has an account, or says at
construction that it has none; and participation that hides nothing is a Gaussian.
"""

import dataclasses
import inspect
import json
import math
import warnings
from typing import Any

import mpmath
import numpy as np
import pytest

import dpsum
from dpsum import factorisations
from dpsum.accounting.account import account
from dpsum.accounting.context import AccountContext
from dpsum.accounting.image_level import ImageUse
from dpsum.accounting.tuning import Search
from dpsum.ledger import read_ledger

DELTA = 1e-5
ROUNDS = 3


def classes(module_base: type) -> list[type]:
    """The public classes of `dpsum` that derive from a base, without the base."""
    public = [getattr(dpsum, name) for name in dpsum.__all__]
    return [
        value
        for value in public
        if inspect.isclass(value)
        and issubclass(value, module_base)
        and value is not module_base
    ]


def participation_of(kind: type) -> Any:
    """The smallest valid participation of a class, with three rounds."""
    if kind is dpsum.PoissonLots:
        return kind(clients=1, lot=2, rounds=ROUNDS, records=6, seed=0)
    cohort = 6 if kind is dpsum.Everyone else 2
    return kind(units=6, cohort=cohort, rounds=ROUNDS, seed=0)


def noise_of(kind: type, participation: Any) -> Any:
    whole = isinstance(participation, dpsum.Everyone)
    times = ROUNDS if whole else 1
    if kind is dpsum.Factorised:
        return kind(multiplier=2.0).planned(ROUNDS, step=None, apart=(1, times))
    if kind is not dpsum.Correlated:
        return kind(multiplier=2.0)
    weights = factorisations.square_root(ROUNDS)
    scaled = factorisations.scaled(weights, separation=1, participations=times)
    return kind(multiplier=2.0, weights=scaled)


def draw(participation: Any, noise: Any, path: Any) -> None:
    """Release the sums of all rounds, of units that contribute ones."""
    mechanism = dpsum.Mechanism(
        name="sum",
        unit="client",
        observer="everyone",
        dimension=4,
        participation=participation,
        clipping=dpsum.Constant(1.0),
        noise=noise,
        ledger=path,
        seed=1,
    )
    for index in range(participation.rounds):
        lots = isinstance(participation, dpsum.PoissonLots)
        cohort = participation.lot(index) if lots else participation.cohort(index)
        total = mechanism.open(index)
        total.add(np.ones((len(cohort), 4)))
        mechanism.release(total)


PARTICIPATIONS = [*classes(dpsum.Participation), dpsum.PoissonLots]
NOISES = classes(dpsum.Noise)
PAIRS = [(way, noise) for way in PARTICIPATIONS for noise in NOISES]


def test_the_public_classes_are_found():
    """A list that is empty by mistake would let everything pass."""
    assert {dpsum.Everyone, dpsum.Passes, dpsum.FixedSize} <= set(PARTICIPATIONS)
    assert {dpsum.Gaussian, dpsum.Correlated, dpsum.Skellam} <= set(NOISES)


@pytest.mark.parametrize(("way", "noise"), PAIRS)
def test_a_pair_that_draws_has_an_account_or_says_that_it_has_none(
    way, noise, tmp_path
):
    participation = participation_of(way)
    path = tmp_path / "ledger.jsonl"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            draw(participation, noise_of(noise, participation), path)
            refusal = ""
        except dpsum.DpsumError as error:
            refusal = str(error)
    if any(one.category is dpsum.NoAccountWarning for one in said):
        assert len(said) == 1 and "no analysis for" in str(said[0].message)
        if path.exists() and path.stat().st_size:
            with pytest.raises(dpsum.DpsumError, match="no analysis for"):
                account(path, delta=DELTA)
        return
    if refusal:
        assert "\n" not in refusal and not path.exists()
        return
    holds = account(path, delta=DELTA).profiles["holds"]
    assert holds.status == "proved"
    assert 0 <= holds.epsilon_low <= holds.epsilon_high < math.inf


def exact(mu: float) -> float:
    """Epsilon of one Gaussian at a distance of mu deviations, in 60 digits."""
    with mpmath.workdps(60):
        low, high = mpmath.mpf(0), mpmath.mpf(1000)
        for _ in range(100):
            epsilon = (low + high) / 2
            first = mpmath.ncdf(mu / 2 - epsilon / mu)
            second = mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)
            enough = first - second <= mpmath.mpf(DELTA)
            low, high = (low, epsilon) if enough else (epsilon, high)
        return float(high)


WHOLE = {
    "everyone": dpsum.Everyone(units=6, cohort=6, rounds=3, seed=0),
    "poisson": dpsum.Poisson(units=6, cohort=6, rounds=3, seed=0),
    "fixed-size": dpsum.FixedSize(units=6, cohort=6, rounds=3, seed=0),
    "shuffled-epochs": dpsum.ShuffledEpochs(units=6, cohort=6, rounds=3, seed=0),
    "min-separation": dpsum.RepeatedPasses(units=6, cohort=6, rounds=3, seed=0),
    "poisson-lots": dpsum.PoissonLots(lot=6, records=6, rounds=3, seed=0),
}
ONCE = {
    "one-pass": dpsum.OnePass(units=6, cohort=2, rounds=3, seed=0),
    "balls-and-bins": dpsum.BallsAndBins(units=6, cohort=6, rounds=1, seed=0),
    "poisson": dpsum.Poisson(units=6, cohort=6, rounds=1, seed=0),
    "one epoch": dpsum.ShuffledEpochs(units=6, cohort=2, rounds=3, seed=0),
    "one pass": dpsum.RepeatedPasses(units=6, cohort=2, rounds=3, seed=0),
}


def test_the_exact_values_are_those_of_the_public_report():
    assert exact(3**0.5) == pytest.approx(8.3854, abs=5e-5)
    assert exact(2 * 3**0.5) == pytest.approx(20.1250, abs=5e-5)


@pytest.mark.parametrize("name", WHOLE)
def test_sampling_that_is_none_is_a_gaussian_in_every_profile(name, tmp_path):
    """z = 1 in three rounds of all units: mu = sqrt(3), twice it for replace-one."""
    draw(WHOLE[name], dpsum.Gaussian(1.0), tmp_path / "ledger")
    lines = read_ledger(tmp_path / "ledger")
    context = AccountContext(
        images=None
        if name == "poisson-lots"
        else ImageUse(images=np.zeros((2, 1), dtype=int), rounds=None),
        search=Search(runs=4, data="private", number="fixed"),
        own_streams=True,
    )
    said = account(lines, delta=DELTA, given=context)
    scales = {"holds": 1, "replace_one": 2, "tuning": 2}
    for profile, scale in scales.items():
        wanted = pytest.approx(exact(scale * 3**0.5), rel=1e-9)
        assert said.profiles[profile].epsilon_high == wanted
        if profile != "tuning":
            assert said.profiles[profile].epsilon_low == wanted
    if name in ("everyone", "poisson", "fixed-size"):
        image = said.profiles["image_level"]
        wanted = pytest.approx(exact(2 * 3**0.5), rel=1e-9)
        assert (image.epsilon_low, image.epsilon_high) == (wanted, wanted)


@pytest.mark.parametrize("name", ONCE)
def test_one_known_round_is_one_gaussian(name, tmp_path):
    draw(ONCE[name], dpsum.Gaussian(1.0), tmp_path / "ledger")
    said = account(tmp_path / "ledger", delta=DELTA)
    for profile, mu in (("holds", 1.0), ("replace_one", 2.0)):
        wanted = pytest.approx(exact(mu), rel=1e-9)
        entry = said.profiles[profile]
        assert (entry.epsilon_low, entry.epsilon_high) == (wanted, wanted)


def test_balls_and_bins_of_one_round_has_the_same_for_correlated_noise(tmp_path):
    noise = dpsum.Correlated(multiplier=1.0, weights=np.array([[2.0]]))
    draw(ONCE["balls-and-bins"], noise, tmp_path / "ledger")
    entry = account(tmp_path / "ledger", delta=DELTA).profiles["holds"]
    wanted = pytest.approx(exact(0.5), rel=1e-9)  # C is 1/2
    assert (entry.epsilon_low, entry.epsilon_high) == (wanted, wanted)


def test_secret_batches_of_all_units_hide_nothing(tmp_path):
    draw(WHOLE["shuffled-epochs"], dpsum.Gaussian(1.0), tmp_path / "ledger")
    text = (tmp_path / "ledger").read_text().replace('"known"', '"secret"')
    lines = _unchained(text, tmp_path / "secret")
    entry = account(lines, delta=DELTA).profiles["holds"]
    wanted = pytest.approx(exact(3**0.5), rel=1e-9)
    assert (entry.epsilon_low, entry.epsilon_high) == (wanted, wanted)


def _unchained(text: str, path: Any) -> Any:
    """Lines of a ledger that was edited, without its chain of digests."""
    values = [json.loads(line) for line in text.splitlines()]
    kept = {field.name for field in dataclasses.fields(dpsum.Release)}
    return [
        dpsum.Release(**{key: value for key, value in line.items() if key in kept})
        for line in values
    ]


def test_a_search_of_one_run_is_that_run(tmp_path):
    draw(participation_of(dpsum.Poisson), dpsum.Gaussian(1.0), tmp_path / "ledger")
    search = Search(runs=1, data="private", number="fixed")
    context = AccountContext(search=search, own_streams=True)
    said = account(tmp_path / "ledger", delta=DELTA, given=context)
    both = said.profiles["tuning"], said.profiles["holds"]
    assert both[0].epsilon_high == both[1].epsilon_high


def test_everyone_with_correlated_noise_is_the_sum_of_all_columns(tmp_path):
    """Contributions that all point the same way move C S by C 1, of norm |C 1|."""
    way = participation_of(dpsum.Everyone)
    noise = noise_of(dpsum.Correlated, way)
    draw(way, noise, tmp_path / "ledger")
    encoder = np.linalg.inv(noise.weights)
    mu = float(np.linalg.norm(encoder.sum(axis=1))) / 2.0
    entry = account(tmp_path / "ledger", delta=DELTA).profiles["holds"]
    wanted = pytest.approx(exact(mu), rel=1e-9)
    assert (entry.epsilon_low, entry.epsilon_high) == (wanted, wanted)


def test_everyone_with_noise_that_everyone_moves_too_far_is_refused(tmp_path):
    """An encoder that is scaled for one participation is not for three."""
    way = participation_of(dpsum.Everyone)
    noise = noise_of(dpsum.Correlated, participation_of(dpsum.OnePass))
    with pytest.raises(dpsum.DpsumError, match="3 participations move"):
        noise.sampled(way.describe())


def test_everyone_of_a_part_is_refused():
    with pytest.raises(dpsum.DpsumError, match="2 of 6 units"):
        dpsum.Everyone(units=6, cohort=2, rounds=3)


def test_factorised_noise_without_rounds_is_refused():
    noise = dpsum.Factorised(multiplier=2.0)
    with pytest.raises(dpsum.DpsumError, match="no number of rounds") as caught:
        noise.inverse()
    assert "\n" not in str(caught.value)
