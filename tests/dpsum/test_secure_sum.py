"""The secure sum: whole numbers modulo 2^b that add up, a bound that rounding keeps,
noise of the right law.
"""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.linalg import hadamard

import dpsum
from dpfedbench.errors import BenchError
from dpfedbench.parts.budget import BudgetSettings
from dpfedbench.parts.participation.cohorts import OnePass
from dpsum.clipping import Constant
from dpsum.mechanism import Mechanism
from dpsum.private_sum import PrivateSum
from dpsum.randomness import stream
from dpsum.secure import Lattice, SecureSum, rotated, rounded
from dpsum.skellam_noise import Skellam
from dpsum.sums import SumSpec

LEVEL = 1e-3  # of each statistical test, with fixed seeds
C, Z, CLIENTS = 0.5, 1.0, 10
GIVEN = {"threshold": C, "noise_multiplier": Z}


def lattice_of(
    dimension=100, bits=16, counted=CLIENTS, deviations=4.0, clients=CLIENTS
):
    return Lattice.of(
        dimension=dimension,
        bits=bits,
        deviations=deviations,
        clients=clients,
        counted=counted,
        **GIVEN,
    )


def sum_of(lattice=None, dimension=100, dropped=0, seed=0, colluding=0):
    def streams(what, *indices):
        return stream(seed, f"noise{what}", *indices)

    return SecureSum(
        dimension=dimension,
        lattice=lattice or lattice_of(dimension),
        dropped=dropped,
        streams=streams,
        colluding=colluding,
        **GIVEN,
    )


def contributions(count=CLIENTS, dimension=100, size=1.0, seed=0):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(
        (size * rng.standard_normal((count, dimension))).astype(np.float32)
    )


class Silent(SecureSum):
    """Without noise, to see what is under it."""

    def _share(self, place):
        return np.zeros(self.lattice.coordinates, np.int64)


@pytest.mark.parametrize("size", [1, 2, 8, 64, 512])
def test_the_rotation_is_hadamards_matrix_and_orthogonal(size):
    values = np.random.default_rng(0).standard_normal(size)
    assert rotated(values) == pytest.approx(
        hadamard(size) @ values / math.sqrt(size), abs=1e-12
    )
    assert rotated(rotated(values)) == pytest.approx(values, abs=1e-12)
    assert np.linalg.norm(rotated(values)) == pytest.approx(
        np.linalg.norm(values), rel=1e-12
    )


def test_a_rotated_canary_has_all_coordinates_alike():
    assert set(np.abs(rotated(np.eye(64)[5]) * 8).round(12)) == {1.0}


@pytest.mark.parametrize("norm", [0.0, 1e-3, 0.7, 3.0, 40.0])
def test_rounding_keeps_the_bound(norm):
    """Whole numbers next to the values, whose norm is within the bound in each of 300
    draws.
    """
    lattice = Lattice(granularity=1.0, bits=16, coordinates=256, clients=1, counted=1)
    rng, bound = np.random.default_rng(0), lattice.bound(norm)
    values = rng.standard_normal(256)
    values *= norm / np.linalg.norm(values)
    for _ in range(300):
        found = rounded(values, bound, rng)
        assert int(found @ found) <= bound**2
        assert np.all(np.abs(found - values) < 1)
    if not norm:
        assert not found.any()


def test_without_the_condition_the_bound_would_not_hold():
    """Halves: the norm's square is Binomial(256, 1/2); the bound's is 144 + 8 above at
    most, so many draws are out.
    """
    lattice = Lattice(granularity=1.0, bits=16, coordinates=256, clients=1, counted=1)
    values = np.full(256, 0.5)
    bound, rng = lattice.bound(8.0), np.random.default_rng(0)
    tight = 11.0
    free = [rounded(values, math.inf, rng) for _ in range(200)]
    assert max(float(np.linalg.norm(one)) for one in free) > tight
    assert all(
        float(np.linalg.norm(rounded(values, tight, rng))) <= tight for _ in range(200)
    )
    assert bound >= math.sqrt(64 + 64)


def test_rounding_that_never_fits_goes_towards_zero():
    assert rounded(
        np.array([2.7, -2.7, 0.2]), 2.9, np.random.default_rng(0)
    ).tolist() == [2, -2, 0]


def test_rounding_keeps_the_mean():
    """The mean of 4,000 draws of 64 coordinates: chi-squared, level 1e-3. The
    condition, left out, costs a bias.
    """
    rng = np.random.default_rng(0)
    values = rng.uniform(-3, 3, 64)
    drawn = np.stack([rounded(values, math.inf, rng) for _ in range(4000)])
    share = values - np.floor(values)
    scores = (drawn.mean(axis=0) - values) / np.sqrt(share * (1 - share) / 4000)
    assert stats.chi2(64).sf(float(scores @ scores)) > LEVEL


@pytest.mark.parametrize(
    ("dimension", "bits"), [(1, 16), (100, 16), (100, 10), (3000, 14)]
)
def test_the_lattice_solves_its_equation(dimension, bits):
    """Half the modulus is so many deviations of the aligned signal, the rounding and
    all noise: by hand.
    """
    lattice = lattice_of(dimension, bits, counted=8)
    reach = lattice.bound(C) ** 2
    assert lattice.coordinates == 2 ** math.ceil(math.log2(dimension))
    norm, d = C / lattice.granularity, lattice.coordinates
    if reach < (norm + math.sqrt(d)) ** 2:
        signal = (CLIENTS * norm) ** 2 / d
        noise = Z**2 * reach * CLIENTS / 8
        assert 4 * math.sqrt(signal + CLIENTS / 4 + noise) == pytest.approx(
            2 ** (bits - 1), rel=1e-9
        )


def test_a_modulus_too_small_names_the_smallest():
    with pytest.raises(BenchError) as caught:
        lattice_of(30_000, 8, clients=400, counted=400)
    said_ = str(caught.value)
    assert said_.startswith(
        "noise.bits is 8, too few for the sum of 400 clients' 32768 coordinates at"
        " z = 1"
    )
    least = int(said_.rsplit(" ", 1)[1])
    assert lattice_of(30_000, least, clients=400, counted=400).bits == least
    with pytest.raises(BenchError, match="too few"):
        lattice_of(30_000, least - 1, clients=400, counted=400)


def messages(total, rows):
    """Each client's whole numbers with noise, before the modulus."""
    sent = []
    take = total._share

    def share(place):
        sent.append(take(place))
        return sent[-1]

    total._share = share
    encoded = total._encoded

    def encode(row, norm, place):
        found = encoded(row, norm, place)
        kept.append(found)
        return found

    kept = []
    total._encoded = encode
    total.add(rows)
    return np.stack(kept), np.stack(sent)


def test_without_a_wrap_the_sum_modulo_is_the_sum():
    total, rows = sum_of(), contributions()
    kept, noise = messages(total, rows)
    released = total.release(None)
    signs = stream(0, "noise-rotation").integers(2, size=128) * 2.0 - 1.0
    whole = (kept + noise).sum(axis=0)
    expected = (
        signs * (hadamard(128) @ whole) / math.sqrt(128) * total.lattice.granularity
    )[:100]
    assert released == pytest.approx(expected, abs=1e-12)
    assert total.told == {"wrapped": 0, "dropped": 0}


def test_the_server_sees_numbers_below_the_modulus_alone():
    total = sum_of(lattice_of(bits=10))
    total.add(contributions())
    assert total._seen_sum.min() >= 0 and total._seen_sum.max() < 1024


def test_what_wraps_is_counted():
    """At a granularity for a range of one deviation a third of the coordinates is out
    of it, and off by 2^b.
    """
    lattice = lattice_of(bits=10, deviations=1.0)
    total, rows = sum_of(lattice), contributions()
    kept, noise = messages(total, rows)
    whole = (kept + noise).sum(axis=0)
    total.release(None)
    beyond = int(((whole < -512) | (whole >= 512)).sum())
    assert total.told["wrapped"] == beyond > 10


@pytest.mark.parametrize("size", [1e-4, 1.0, 1e30])
@pytest.mark.parametrize("bits", [10, 16])
def test_one_client_moves_the_sum_by_the_sensitivity_at_most(bits, size):
    lattice = lattice_of(bits=bits)
    for seed in range(20):
        total = Silent(
            dimension=100,
            lattice=lattice,
            dropped=0,
            streams=lambda what, *at: stream(1, what, *at),
            **GIVEN,
        )
        row = contributions(1, size=size, seed=seed)
        total.add(torch.cat([row, torch.zeros(CLIENTS - 1, 100)]))
        assert np.linalg.norm(total.release(None)) <= total.sensitivity * (1 + 1e-9)
        assert total.sensitivity >= C


def test_the_mean_is_that_of_the_clipped_rows():
    """The noiseless sum is the clipped sum, up to rounding: deviation at most half a
    unit a client and coordinate.
    """
    total = Silent(
        dimension=100,
        lattice=lattice_of(),
        dropped=0,
        streams=lambda what, *at: stream(1, what, *at),
        **GIVEN,
    )
    rows = contributions()
    norms = total.add(rows)
    clipped = (rows.double() * (C / torch.from_numpy(norms)).clamp(max=1)[:, None]).sum(
        dim=0
    )
    off = (total.release(None) - clipped.numpy()) / total.lattice.granularity
    assert np.abs(off).max() < 6 * math.sqrt(CLIENTS) / 2


def test_the_noise_is_skellam():
    """Of a share and of all shares: chi-squared against scipy.stats.skellam over 2^15
    draws, level 1e-3.
    """
    lattice = Lattice(
        granularity=1.0, bits=16, coordinates=1 << 15, clients=4, counted=4
    )
    total = sum_of(lattice, dimension=1 << 15)
    # what the share follows from is the lattice's; here a small one, whose law shows
    total._bound = 4.0
    share = {"share_variance": 4.0}
    type(total).secure, before = property(lambda self: share), type(total).secure
    try:
        shares = [total._share(place) for place in range(4)]
    finally:
        type(total).secure = before

    def fits(drawn, variance):
        law = stats.skellam(variance / 2, variance / 2)
        edges = np.arange(
            -3 * int(math.sqrt(variance)), 3 * int(math.sqrt(variance)) + 1
        )
        counts = np.concatenate(
            [[(drawn < edges[0]).sum()], [(drawn == x).sum() for x in edges]]
        )
        counts = np.append(counts, len(drawn) - counts.sum())
        expected = np.concatenate([[law.cdf(edges[0] - 1)], law.pmf(edges)])
        expected = np.append(expected, 1 - expected.sum())
        return stats.chisquare(counts, expected * len(drawn)).pvalue

    assert fits(shares[0], 4.0) > LEVEL
    assert fits(np.sum(shares, axis=0), 16.0) > LEVEL
    assert (
        fits(np.rint(2 * np.random.default_rng(0).standard_normal(1 << 15)), 4.0)
        < LEVEL
    )
    assert abs(np.corrcoef(shares[0], shares[1])[0, 1]) < 5 / math.sqrt(1 << 15)


def test_all_shares_that_are_counted_come_to_z_times_the_sensitivity():
    """Deviation of the released noise over 2^14 coordinates: within 5 of its own
    deviations, false alarm 1e-6.
    """
    size = 1 << 14
    for counted, dropped in ((CLIENTS, 0), (6, 0), (6, 4)):
        total = sum_of(
            lattice_of(size, counted=counted), dimension=size, dropped=dropped
        )
        total.add(torch.zeros(CLIENTS, size))
        spread = float(total.release(None).std(ddof=1)) / total.noise_std
        assert spread == pytest.approx(
            math.sqrt((CLIENTS - dropped) / counted), rel=5 / math.sqrt(2 * size)
        )


def test_too_few_shares_release_nothing():
    total = sum_of(lattice_of(counted=8), dropped=3)
    total.add(contributions())
    with pytest.raises(
        BenchError,
        match=(
            r"^7 clients' noise is in the sum, fewer than the 8 that the account counts"
        ),
    ):
        total.release(None)


def skellam_of(**values):
    """The sum of a cohort of ten by the noise part, as the book has it made."""
    return Skellam(multiplier=Z, **values).private_sum(
        PrivateSum,
        streams=lambda what, *at: stream(0, f"noise{what}", *at),
        cohort=CLIENTS,
        dimension=100,
        threshold=C,
        noise_multiplier=Z,
        adjacency="zero-out",
    )


@pytest.mark.parametrize(("dropped", "enough"), [(2, True), (3, False)])
def test_colluders_are_not_among_the_shares_that_must_remain(dropped, enough):
    """Of ten clients two may drop out and one may tell: seven are counted. After three
    only six of seven are honest.
    """
    total = skellam_of(dropped=dropped / CLIENTS, dropped_at_most=0.2, colluding=0.1)
    total.add(contributions())
    honest = CLIENTS - dropped - 1
    assert total.lattice.counted == 7 and (honest >= 7) == enough
    if enough:
        assert honest * total.secure["share_variance"] >= (
            Z * total.lattice.bound(C)
        ) ** 2 * (1 - 1e-12)
        total.release(None)
    else:
        with pytest.raises(
            BenchError,
            match=(
                r"^7 clients' noise is in the sum, of whom 1 may tell theirs, fewer"
                r" than"
            ),
        ):
            total.release(None)


def test_a_client_that_drops_out_has_neither_gradient_nor_noise_in_it():
    total = sum_of(lattice_of(counted=1), dropped=9)
    total.add(contributions())
    assert len(total.absent) == 9 and total._shares == 1
    total.release(None)
    assert total.told["dropped"] == 9


def test_chunks_change_no_bit_and_a_release_is_one():
    rows, whole, parts = contributions(), sum_of(), sum_of()
    whole.add(rows)
    for chunk in rows.split(3):
        parts.add(chunk)
    assert np.array_equal(whole.release(None), parts.release(None))
    with pytest.raises(RuntimeError, match="was released"):
        whole.add(rows)
    with pytest.raises(RuntimeError, match="was released"):
        whole.release(None)


def test_rounds_draw_their_own():
    """Rotation, noise, rounding and who drops out, of rounds that the book opens; a
    round that is run again draws same.

    Fair coins of two rounds agree in 100 of 128 places, and eight rounds lose the same
    three of ten clients, with a chance below 1e-9; independent noise of 128 coordinates
    correlates by 0.5 with one below 1e-7.
    """
    sum_ = SumSpec(
        name="sum",
        unit="client",
        observer="server",
        clipping=Constant(threshold=C),
        budget=BudgetSettings(profile="holds"),
        noise=Skellam(multiplier=Z, dropped=0.3, dropped_at_most=0.3),
    )
    entry = Mechanism.of(
        sum_,
        sampler=OnePass(cohort=CLIENTS, rounds=8).plan(clients=80, seed=0).describe(),
        denominator=CLIENTS,
        dimension=128,
        budget=dpsum.Budget(),
        ledger=[],
        seed=0,
    )
    first, second, again = (entry.open(index).sum for index in (0, 1, 0))

    def rounding(total):
        """Up or down, of halves."""
        total._signs = np.ones(128)
        return total._encoded(
            rotated(np.full(128, total.lattice.granularity / 2)), 0.01, 0
        )

    for drawn in (lambda total: total._signs, lambda total: total._share(4), rounding):
        one, other, same = (drawn(total) for total in (first, second, again))
        assert np.array_equal(one, same)
        assert (one == other).sum() < 100 and abs(np.corrcoef(one, other)[0, 1]) < 0.5
    assert first.absent == again.absent
    assert len({tuple(entry.open(index).sum.absent) for index in range(8)}) > 1


def test_a_contribution_that_is_not_finite_is_zero():
    rows = contributions()
    rows[3, 5] = math.nan
    total = sum_of()
    assert math.isnan(total.add(rows)[3])
    assert total.non_finite == 1
    assert np.isfinite(total.release(None)).all()


def test_what_does_not_fit_is_refused():
    with pytest.raises(BenchError, match="must be"):
        sum_of().add(torch.zeros(3, 99))
    with pytest.raises(RuntimeError, match="one by one"):
        sum_of().add_by(lambda *_: None, 3)


def test_the_ledger_says_the_shares():
    total = sum_of(lattice_of(counted=8))
    assert total.secure == total.lattice.said(**GIVEN)
    assert total.secure["share_variance"] * 8 == pytest.approx(
        (total.noise_std / total.lattice.granularity) ** 2
    )
