"""Noise as the adapters of Flower and pfl measure it: right draws and faults."""

import operator

import numpy as np
import pytest

from dpwatch.adapters import watch
from dpwatch.adapters.watch import NoiseSeen

STD = 0.75
SHAPES = [(40, 10), (100,), (100,), (5,)]


def draw(rng):
    return [STD * rng.standard_normal(shape) for shape in SHAPES]


def faults_of(draw_release, releases=3, seed=0):
    """Return the faults of the last of several releases."""
    noise = NoiseSeen()
    rng = np.random.default_rng(seed)
    return [noise.faults(draw_release(rng), STD) for _ in range(releases)][-1]


def scaled(*factors):
    """Return draws whose arrays are multiplied by factors."""
    return lambda rng: list(map(operator.mul, factors, draw(rng)))


def same_noise_for_two_arrays(rng):
    first, second, _, last = draw(rng)
    return [first, second, second.copy(), last]


def no_noise_on_some_coordinates(rng):
    arrays = draw(rng)
    arrays[0][:2] = 0.0
    return arrays


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        # Half of it is also the noise of one sum that four arrays share.
        (scaled(0.5, 0.5, 0.5, 0.5), "has deviation 0.3"),
        (scaled(1, 1, 1, 10), "the noise of array 3 has deviation"),
        (lambda _: draw(np.random.default_rng(7)), "before: in an earlier release"),
        (same_noise_for_two_arrays, "was used before: in this release"),
        (no_noise_on_some_coordinates, "20 of 605 coordinates have no noise"),
    ],
)
def test_noise_seen_reports_a_fault(fault, message):
    faults = faults_of(fault)
    assert any(message in text for text in faults), faults


def test_noise_seen_adds_up_the_noise_of_all_releases():
    """Less by a tenth does not show in one release."""
    assert faults_of(scaled(0.9, 0.9, 0.9, 0.9), releases=1) == []
    (fault,) = faults_of(scaled(0.9, 0.9, 0.9, 0.9), releases=10)
    assert "has deviation 0.6" in fault


def test_noise_seen_rejects_correct_noise_as_rarely_as_stated(monkeypatch):
    """At a level of 1 %, each of at most 14 tests of a release errs: 42 of 300 runs are
    expected at most, and more than 75 have a probability of 1e-6.
    """
    assert not any(faults_of(draw, seed=seed) for seed in range(100))
    monkeypatch.setattr(watch, "FALSE_ALARM", 0.01)
    alarms = sum(bool(faults_of(draw, seed=seed)) for seed in range(300))
    assert alarms <= 75


def test_noise_seen_allows_noise_that_rounding_removes():
    """The spacing of single-precision numbers near 1e6 is 1/16."""
    values = np.full(600, 1e6, np.float32)
    noise = np.random.default_rng(1).standard_normal(600).astype(np.float32) / 10
    observed = (values + noise) - values
    assert (observed == 0).sum() > 100
    assert NoiseSeen().faults([observed], 0.1, [values]) == []
    (fault,) = NoiseSeen().faults([observed], 0.1)
    assert "coordinates have no noise" in fault


def test_noise_seen_allows_the_zeros_of_a_single_precision_generator():
    """Torch's draws are 0 in pairs, with probability 2^-24 a pair.

    1.6 million coordinates have 0.05 such pairs on average, and sixteen have a
    probability below 1e-30; of 600 coordinates one pair is right, and two are not.
    """
    rng = np.random.default_rng(2)
    for size, pairs, is_right in (
        (1_600_000, 1, True),
        (1_600_000, 16, False),
        (600, 1, True),
        (600, 2, False),
    ):
        noise = rng.standard_normal(size).astype(np.float32)
        noise[: 2 * pairs] = 0.0
        values = np.zeros(size, np.float32)
        faults = NoiseSeen().faults([noise], 1.0, [values])
        assert (faults == []) == is_right
        assert NoiseSeen().faults([noise], 1.0, [values.astype(np.float64)])


def test_noise_seen_adds_up_coordinates_without_noise_over_releases():
    """A pair in one release of 600 coordinates is right, the same pair twice is not."""
    rng = np.random.default_rng(2)
    seen = NoiseSeen()
    values = np.zeros(600, np.float32)
    faults = []
    for _ in range(2):
        noise = rng.standard_normal(600).astype(np.float32)
        noise[:2] = 0.0
        faults.append(seen.faults([noise], 1.0, [values]))
    assert faults == [[], ["2 of 600 coordinates have no noise"]]
