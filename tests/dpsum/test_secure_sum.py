"""Secure sums: whole numbers modulo 2^b, a norm that rounding keeps, Skellam noise."""

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
CLIENTS = 10


def make_lattice(dimension=100, bits=16, counted=CLIENTS, deviations=4.0):
    return Lattice.finest(
        dimension=dimension,
        bits=bits,
        deviations=deviations,
        clients=CLIENTS,
        counted=counted,
        threshold=C,
        noise_multiplier=Z,
    )


def round_streams(purpose, *indices):
    return stream(0, f"noise{purpose}", *indices)


def make_sum(lattice=None, dimension=100, kind=SecureSum, dropped=0):
    return kind(
        dimension=dimension,
        lattice=lattice or make_lattice(dimension),
        dropped=dropped,
        streams=round_streams,
        threshold=C,
        noise_multiplier=Z,
    )


def make_rows(count=CLIENTS, scale=1.0, seed=0):
    rows = scale * np.random.default_rng(seed).standard_normal((count, 100))
    return torch.from_numpy(rows.astype(np.float32))


class SumWithoutNoise(SecureSum):
    """Secure sum whose clients add no noise."""

    def _share(self, place):
        return np.zeros(self.lattice.coordinates, np.int64)


class RecordingSum(SecureSum):
    """Secure sum that keeps each client's whole numbers and noise."""

    def __init__(self, **values):
        super().__init__(**values)
        self.messages = []

    def _share(self, place):
        self.messages.append(super()._share(place))
        return self.messages[-1]

    def _encoded(self, row, norm, place):
        self.messages.append(super()._encoded(row, norm, place))
        return self.messages[-1]


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


def test_rounding_that_never_fits_goes_towards_zero():
    values = np.array([2.7, -2.7, 0.2])
    assert rounded(values, 2.9, np.random.default_rng(0)).tolist() == [2, -2, 0]


def test_rounding_keeps_the_mean():
    """Chi-squared over the mean of 4,000 draws of 64 coordinates."""
    rng = np.random.default_rng(0)
    values = rng.uniform(-3, 3, 64)
    draws = np.stack([rounded(values, math.inf, rng) for _ in range(4000)])
    fraction = values - np.floor(values)
    std = np.sqrt(fraction * (1 - fraction) / 4000)
    scores = (draws.mean(axis=0) - values) / std
    assert stats.chi2(64).sf(float(scores @ scores)) > LEVEL


@pytest.mark.parametrize(("dimension", "bits"), [(100, 16), (3000, 14)])
def test_lattice_solves_its_equation(dimension, bits):
    """Half the modulus is four deviations of the signal, the rounding and all noise."""
    lattice = make_lattice(dimension, bits, counted=8)
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
    secure_sum = make_sum(make_lattice(bits=10, deviations=1.0), kind=RecordingSum)
    secure_sum.add(make_rows())
    assert secure_sum._seen_sum.min() >= 0
    assert secure_sum._seen_sum.max() < 1024
    total = sum(secure_sum.messages)
    secure_sum.release(None)
    wrapped = int(((total < -512) | (total >= 512)).sum())
    assert secure_sum.public_values["wrapped"] == wrapped > 10


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e30])
@pytest.mark.parametrize("bits", [10, 16])
def test_secure_sum_moves_by_the_sensitivity_at_most(bits, scale):
    for seed in range(20):
        secure_sum = make_sum(make_lattice(bits=bits), kind=SumWithoutNoise)
        row = make_rows(1, scale=scale, seed=seed)
        secure_sum.add(torch.cat([row, torch.zeros(CLIENTS - 1, 100)]))
        norm = np.linalg.norm(secure_sum.release(None))
        assert norm <= secure_sum.sensitivity * (1 + 1e-9)
        assert secure_sum.sensitivity >= C


def test_secure_sum_is_the_clipped_sum_up_to_rounding():
    """Rounding deviates by at most half a unit a client and coordinate."""
    secure_sum = make_sum(kind=SumWithoutNoise)
    rows = make_rows().double().numpy()
    norms = secure_sum.add(rows)
    expected = (rows * np.minimum(C / norms, 1)[:, None]).sum(axis=0)
    error = (secure_sum.release(None) - expected) / secure_sum.lattice.granularity
    assert np.abs(error).max() < 6 * math.sqrt(CLIENTS) / 2


def skellam_p_value(draws, variance):
    """Chi-squared against scipy's probabilities, with all of each tail in one cell."""
    law = stats.skellam(variance / 2, variance / 2)
    reach = 3 * int(math.sqrt(variance))
    values = np.arange(-reach, reach + 1)
    counts = [(draws < -reach).sum(), *((draws == x).sum() for x in values)]
    chances = [law.cdf(-reach - 1), *law.pmf(values)]
    counts.append(len(draws) - sum(counts))
    chances.append(1 - sum(chances))
    return stats.chisquare(counts, np.array(chances) * len(draws)).pvalue


def test_secure_sum_noise_is_skellam_in_each_share_and_in_all(monkeypatch):
    """2^15 draws of variance 4 a share, whose law shows; rounded normal noise fails."""
    size = 1 << 15
    lattice = Lattice(granularity=1.0, bits=16, coordinates=size, clients=4, counted=4)
    secure_sum = make_sum(lattice, dimension=size)
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
    lattice = make_lattice(size, counted=counted)
    secure_sum = make_sum(lattice, dimension=size, dropped=dropped)
    secure_sum.add(torch.zeros(CLIENTS, size))
    ratio = float(secure_sum.release(None).std(ddof=1)) / secure_sum.noise_std
    expected = math.sqrt((CLIENTS - dropped) / counted)
    assert ratio == pytest.approx(expected, rel=5 / math.sqrt(2 * size))


@pytest.mark.parametrize(("dropped", "honest"), [(2, 7), (3, 6)])
def test_secure_sum_does_not_count_shares_of_colluders(dropped, honest):
    """Two of ten clients may drop out and one may tell its noise: seven are counted."""
    noise = Skellam(
        multiplier=Z, dropped=dropped / CLIENTS, dropped_at_most=0.2, colluding=0.1
    )
    secure_sum = noise.private_sum(
        streams=round_streams,
        cohort=CLIENTS,
        dimension=100,
        threshold=C,
        noise_multiplier=Z,
        adjacency="zero-out",
    )
    secure_sum.add(make_rows())
    assert secure_sum.lattice.counted == 7
    if honest < 7:
        with pytest.raises(DpsumError, match=r"^7 clients'.* of whom 1 may tell"):
            secure_sum.release(None)
        return
    required = (Z * secure_sum.lattice.bound(C)) ** 2
    assert honest * secure_sum.secure["share_variance"] >= required * (1 - 1e-12)
    secure_sum.release(None)


def test_secure_sum_has_neither_gradient_nor_noise_of_a_dropped_client():
    secure_sum = make_sum(make_lattice(counted=1), dropped=9)
    secure_sum.add(make_rows())
    assert len(secure_sum.absent) == 9
    assert secure_sum._shares == 1
    secure_sum.release(None)
    assert secure_sum.public_values["dropped"] == 9


def test_secure_sum_chunks_change_no_bit_and_it_is_released_once():
    whole, chunked = make_sum(), make_sum()
    rows = make_rows()
    whole.add(rows)
    for chunk in rows.split(3):
        chunked.add(chunk)
    assert np.array_equal(whole.release(None), chunked.release(None))
    with pytest.raises(RuntimeError, match="was released"):
        whole.add(rows)
    with pytest.raises(RuntimeError, match="was released"):
        whole.release(None)


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
