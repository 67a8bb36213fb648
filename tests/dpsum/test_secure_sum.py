"""Secure sums: whole numbers modulo 2^b, a norm that rounding keeps, Skellam noise."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.linalg import hadamard

import dpsum
from dpsum import DpsumError
from dpsum.randomness import stream
from dpsum.secure import Lattice, SecureSum, rotated, rounded
from dpsum.skellam_noise import Skellam
from tests.dpsum.helpers import make_mechanism

LEVEL = 1e-3  # of each statistical test, with fixed seeds
C = 0.5
Z = 1.0
NOISE = {"threshold": C, "noise_multiplier": Z}
CLIENTS = 10


def make_lattice(dimension=100, counted=CLIENTS, **changes):
    values = {"bits": 16, "deviations": 4.0, "clients": CLIENTS} | NOISE | changes
    return Lattice.finest(dimension=dimension, counted=counted, **values)


def round_streams(purpose, *indices):
    return stream(0, f"noise{purpose}", *indices)


def make_sum(lattice=None, dimension=100, dropped=0, **changes):
    values = {"dropped": dropped, "streams": round_streams} | NOISE | changes
    lattice = lattice or make_lattice(dimension)
    return SecureSum(dimension=dimension, lattice=lattice, **values)


def make_sum_without_noise(**lattice):
    secure_sum = make_sum(make_lattice(**lattice))
    secure_sum._share = lambda place: 0
    return secure_sum


def make_rows(count=CLIENTS, scale=1.0, seed=0):
    rows = scale * np.random.default_rng(seed).standard_normal((count, 100))
    return torch.from_numpy(rows.astype(np.float32))


@pytest.mark.parametrize("size", [1, 2, 8, 512])
def test_rotation_is_the_orthogonal_hadamard_matrix(size):
    values = np.random.default_rng(0).standard_normal(size)
    expected = hadamard(size) @ values / math.sqrt(size)
    assert rotated(values) == pytest.approx(expected, abs=1e-12)
    assert rotated(rotated(values)) == pytest.approx(values, abs=1e-12)


@pytest.mark.parametrize("norm", [0.0, 1e-3, 0.7, 3.0, 40.0])
def test_rounding_keeps_the_bound_of_the_norm(norm):
    lattice = Lattice(granularity=1.0, bits=16, coordinates=256, clients=1, counted=1)
    rng = np.random.default_rng(0)
    values = rng.standard_normal(256)
    values *= norm / np.linalg.norm(values)
    bound = lattice.bound(norm)
    for _ in range(300):
        numbers = rounded(values, bound, rng)
        assert int(numbers @ numbers) <= bound**2
        assert np.all(np.abs(numbers - values) < 1)
        assert norm or not numbers.any()


def test_rounding_keeps_the_mean_and_goes_towards_zero_if_it_never_fits():
    """Chi-squared over the mean of 4,000 draws of 64 coordinates."""
    rng = np.random.default_rng(0)
    assert rounded(np.array([2.7, -2.7, 0.2]), 2.9, rng).tolist() == [2, -2, 0]
    values = rng.uniform(-3, 3, 64)
    draws = np.stack([rounded(values, math.inf, rng) for _ in range(4000)])
    fraction = values - np.floor(values)
    std = np.sqrt(fraction * (1 - fraction) / 4000)
    scores = (draws.mean(axis=0) - values) / std
    assert stats.chi2(64).sf(float(scores @ scores)) > LEVEL


@pytest.mark.parametrize(("dimension", "bits"), [(100, 16), (3000, 14)])
def test_lattice_solves_its_equation(dimension, bits):
    """Half the modulus is four deviations of the signal, the rounding and all noise."""
    lattice = make_lattice(dimension, 8, bits=bits)
    coordinates = 2 ** math.ceil(math.log2(dimension))
    assert lattice.coordinates == coordinates
    norm = C / lattice.granularity
    squared_bound = lattice.bound(C) ** 2
    assert squared_bound < (norm + math.sqrt(coordinates)) ** 2
    signal = (CLIENTS * norm) ** 2 / coordinates
    noise = Z**2 * squared_bound * CLIENTS / 8
    reach = 4 * math.sqrt(signal + CLIENTS / 4 + noise)
    assert reach == pytest.approx(2 ** (bits - 1), rel=1e-9)


def test_secure_sum_counts_wrapped_coordinates():
    """A range of one deviation leaves a third of the coordinates out; the server sees
    numbers below the modulus alone.
    """
    lattice = make_lattice(bits=10, deviations=1.0)
    secure_sum = make_sum(lattice)
    wide_sum = make_sum(dataclasses.replace(lattice, bits=40))
    for private_sum in (secure_sum, wide_sum):
        private_sum.add(make_rows())
    total = (wide_sum._seen_sum + 2**39) % 2**40 - 2**39
    assert (secure_sum._seen_sum == total % 1024).all()
    secure_sum.release(None)
    wrapped = int(((total < -512) | (total >= 512)).sum())
    assert secure_sum.public_values["wrapped"] == wrapped > 10


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e30])
@pytest.mark.parametrize("bits", [10, 16])
def test_secure_sum_moves_by_the_sensitivity_at_most(bits, scale):
    for seed in range(20):
        secure_sum = make_sum_without_noise(bits=bits)
        row = make_rows(1, scale=scale, seed=seed)
        secure_sum.add(torch.cat([row, torch.zeros(CLIENTS - 1, 100)]))
        norm = np.linalg.norm(secure_sum.release(None))
        assert norm <= secure_sum.sensitivity * (1 + 1e-9)
        assert secure_sum.sensitivity >= C


def test_secure_sum_is_the_clipped_sum_up_to_rounding():
    """Rounding deviates by at most half a unit a client and coordinate."""
    secure_sum = make_sum_without_noise()
    rows = make_rows().double().numpy()
    norms = secure_sum.add(rows)
    expected = (rows * np.minimum(C / norms, 1)[:, None]).sum(axis=0)
    error = (secure_sum.release(None) - expected) / secure_sum.lattice.granularity
    assert np.abs(error).max() < 6 * math.sqrt(CLIENTS) / 2


def skellam_p_value(draws, variance):
    """Chi-squared against scipy's probabilities, with all of each tail in one cell."""
    law = stats.skellam(variance / 2, variance / 2)
    reach = 3 * int(math.sqrt(variance))
    edges = np.arange(-reach, reach + 2) - 0.5
    counts = np.diff([0, *np.searchsorted(np.sort(draws), edges), len(draws)])
    chances = np.diff([0.0, *law.cdf(edges), 1.0])
    return stats.chisquare(counts, chances * len(draws)).pvalue


def test_secure_sum_noise_is_skellam_in_each_share_and_in_all(monkeypatch):
    """2^15 draws of variance 4 a share, whose law shows; rounded normal noise fails."""
    size = 1 << 15
    lattice = Lattice(granularity=1.0, bits=16, coordinates=size, clients=4, counted=4)
    secure_sum = make_sum(lattice, size)
    monkeypatch.setattr(SecureSum, "secure", {"share_variance": 4.0})
    shares = [secure_sum._share(position) for position in range(4)]
    assert skellam_p_value(shares[0], 4.0) > LEVEL
    assert skellam_p_value(np.sum(shares, axis=0), 16.0) > LEVEL
    normal = np.rint(2 * np.random.default_rng(0).standard_normal(size))
    assert skellam_p_value(normal, 4.0) < LEVEL
    correlation = np.corrcoef(shares[0], shares[1])[0, 1]
    assert abs(correlation) < 5 / math.sqrt(size)


@pytest.mark.parametrize(("counted", "dropped"), [(CLIENTS, 0), (6, 0), (6, 4)])
def test_secure_sum_noise_of_counted_shares_is_z_times_the_sensitivity(
    counted, dropped
):
    """Deviation over 2^14 coordinates, within 5 of its own: false alarm 1e-6."""
    size = 1 << 14
    secure_sum = make_sum(make_lattice(size, counted), size, dropped)
    secure_sum.add(torch.zeros(CLIENTS, size))
    ratio = float(secure_sum.release(None).std(ddof=1)) / secure_sum.noise_std
    assert len(secure_sum.absent) == secure_sum.public_values["dropped"] == dropped
    expected = math.sqrt((CLIENTS - dropped) / counted)
    assert ratio == pytest.approx(expected, rel=5 / math.sqrt(2 * size))


@pytest.mark.parametrize("dropped", [0.2, 0.3])
def test_secure_sum_does_not_count_shares_of_colluders(dropped):
    """Two of ten clients may drop out and one may tell its noise: seven are counted."""
    noise = Skellam(multiplier=Z, dropped=dropped, dropped_at_most=0.2, colluding=0.1)
    values = {"cohort": CLIENTS, "dimension": 100, "adjacency": "zero-out"} | NOISE
    secure_sum = noise.private_sum(streams=round_streams, **values)
    secure_sum.add(make_rows())
    assert secure_sum.lattice.counted == 7
    if dropped > 0.2:
        with pytest.raises(DpsumError, match=r"^7 clients'.* of whom 1 may tell"):
            secure_sum.release(None)
        return
    required = (Z * secure_sum.lattice.bound(C)) ** 2
    assert 7 * secure_sum.secure["share_variance"] >= required * (1 - 1e-12)
    secure_sum.release(None)


def test_secure_sum_chunks_change_no_bit_and_it_is_released_once():
    whole = make_sum()
    chunked = make_sum()
    rows = make_rows()
    whole.add(rows)
    for chunk in rows.split(3):
        chunked.add(chunk)
    assert np.array_equal(whole.release(None), chunked.release(None))
    for use in (whole.add, whole.release):
        with pytest.raises(RuntimeError, match="was released"):
            use(rows)


def test_secure_sum_draws_anew_in_each_round_and_alike_when_repeated():
    """Fair coins of two rounds agree in 100 of 128 places, and eight rounds lose the
    same three of ten clients, with a chance below 1e-9; independent noise of 128
    coordinates correlates by 0.5 with one below 1e-7.
    """
    mechanism = make_mechanism(
        observer="server",
        clipping=dpsum.Constant(C),
        budget=dpsum.Budget(),
        noise=Skellam(multiplier=Z, dropped=0.3, dropped_at_most=0.3),
        participation=dpsum.OnePass(units=80, cohort=CLIENTS, rounds=8, seed=0),
        dimension=128,
        ledger=[],
        seed=0,
    )

    def draw(secure_sum):
        signs = secure_sum._signs.copy()
        halves = rotated(np.full(128, secure_sum.lattice.granularity / 2))
        secure_sum._signs = np.ones(128)
        return signs, secure_sum._share(4), secure_sum._encoded(halves, 0.01, 0)

    sums = [mechanism.begin_round(index).sum for index in (0, 1, 0)]
    for first, second, repeated in zip(*map(draw, sums), strict=True):
        assert np.array_equal(first, repeated)
        assert (first == second).sum() < 100
        assert abs(np.corrcoef(first, second)[0, 1]) < 0.5
    assert sums[0].absent == sums[2].absent
    absentees = {tuple(mechanism.begin_round(index).sum.absent) for index in range(8)}
    assert len(absentees) > 1


def test_secure_sum_clips_huge_messages_and_leaves_small_ones():
    """Three clients point the same way: the sum is 3 C / sqrt(2) in two coordinates.
    Noise and rounding of 2^-30 of it are below the tolerance.
    """
    little_noise = {"noise_multiplier": 1e-6}
    lattice = make_lattice(2, counted=5, clients=5, bits=40, **little_noise)
    secure_sum = make_sum(lattice, 2, **little_noise)
    rows = [[1e308, 1e308], [1e200, 1e200], [0.9, 0.9], [math.nan, 1], [5e-324, 0]]
    norms = secure_sum.add(rows)
    assert (secure_sum.count, secure_sum.non_finite) == (5, 1)
    assert norms[:2] == pytest.approx([math.sqrt(2) * 1e308, math.sqrt(2) * 1e200])
    assert secure_sum.release(None) == pytest.approx([1.5 / 2**0.5] * 2, rel=1e-4)
