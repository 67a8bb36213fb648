"""Noise as the adapters of Flower and pfl measure it: right draws and faults."""

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
    seen = NoiseSeen()
    rng = np.random.default_rng(seed)
    return [seen.faults(draw_release(rng), STD) for _ in range(releases)][-1]


def half_noise(rng):
    return [array / 2 for array in draw(rng)]


def noise_shared_among_arrays(rng):
    return [array / len(SHAPES) ** 0.5 for array in draw(rng)]


def too_much_noise_on_an_array(rng):
    *arrays, last = draw(rng)
    return [*arrays, 10 * last]


def slightly_too_little_noise(rng):
    """Less by a tenth: it shows over all releases so far, not in one."""
    return [0.9 * array for array in draw(rng)]


def repeated_noise(rng):
    return draw(np.random.default_rng(7))


def same_noise_for_two_arrays(rng):
    arrays = draw(rng)
    return [*arrays[:2], arrays[1].copy(), arrays[3]]


def no_noise_on_some_coordinates(rng):
    arrays = draw(rng)
    arrays[0][:2] = 0.0
    return arrays


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (half_noise, "has deviation 0.3"),
        (noise_shared_among_arrays, "has deviation 0.3"),
        (too_much_noise_on_an_array, "the noise of array 3 has deviation"),
        (repeated_noise, "was used before: in an earlier release"),
        (same_noise_for_two_arrays, "was used before: in this release"),
        (no_noise_on_some_coordinates, "20 of 605 coordinates have no noise"),
    ],
)
def test_noise_seen_reports_a_fault(fault, message):
    faults = faults_of(fault)
    assert any(message in text for text in faults), faults


def test_noise_seen_adds_up_the_noise_of_all_releases():
    assert faults_of(slightly_too_little_noise, releases=1) == []
    (fault,) = faults_of(slightly_too_little_noise, releases=10)
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
