"""Finite contributions of every size are clipped, or count as zero and are counted.

Expected values are by hand, or from mpmath in 60 digits.
"""

import math
import sys

import mpmath
import numpy as np
import pytest
import torch

import dpsum
from dpfedbench.models.torch_sums import add_on_device, add_to
from dpsum.norms import clip, l2_norm
from dpsum.private_sum import PrivateSum
from dpsum.randomness import stream
from dpsum.secure import Lattice, SecureSum
from tests.dpsum.helpers import NO_NOISE, make_mechanism, release_rounds

LARGEST = sys.float_info.max
SMALLEST = 5e-324

ROWS = [
    [1.2e154, 1.2e154, 0.0],  # squares are finite, their sum is not
    [1e308, 1e308, -1e308],
    [LARGEST, LARGEST, LARGEST],  # the norm is beyond the largest double
    [LARGEST, 0.0, 0.0],
    [1e308, 1e-308, SMALLEST],
    [1e200, -0.0, 1.0],
    [1e-200, 1e-200, 0.0],  # squares are 0
    [SMALLEST, 0.0, -SMALLEST],
    [-0.0, 0.0, -0.0],
]


def make_sum(dimension, threshold):
    return PrivateSum(dimension=dimension, threshold=threshold, noise_multiplier=1.0)


def exact_norm(row):
    with mpmath.workdps(60):
        return mpmath.sqrt(mpmath.fsum(mpmath.mpf(value) ** 2 for value in row))


def clip_in_60_digits(row, limit):
    with mpmath.workdps(60):
        norm = exact_norm(row)
        factor = mpmath.mpf(1) if norm <= limit else mpmath.mpf(limit) / norm
        return [float(factor * mpmath.mpf(value)) for value in row]


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("limit", [1e-20, 0.5, 1e150, math.inf])
def test_clip_of_a_finite_row_equals_60_digits(row, limit):
    values = np.array(row)
    norm = l2_norm(values)
    assert norm == pytest.approx(float(min(exact_norm(row), LARGEST)), rel=1e-15)
    expected = clip_in_60_digits(row, limit)
    assert clip(values, norm, limit) == pytest.approx(expected, rel=1e-14, abs=SMALLEST)


@pytest.mark.parametrize("row", ROWS)
def test_private_sum_moves_by_the_threshold_at_most_for_a_huge_row(row):
    usual_rows = np.random.default_rng(0).normal(size=(4, 3))
    totals = []
    for rows in (usual_rows, np.vstack([usual_rows[:2], [row], usual_rows[2:]])):
        private_sum = make_sum(3, 0.5)
        private_sum.add(rows)
        assert private_sum.non_finite == 0
        totals.append(private_sum.release(NO_NOISE))
    distance = np.linalg.norm(totals[1] - totals[0])
    assert distance == pytest.approx(float(min(exact_norm(row), 0.5)), abs=1e-15)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (np.array([[3, 4]], np.uint8), [3.0, 4.0]),
        (np.full((1, 2), 65504, np.float16), [50**0.5, 50**0.5]),
        # Beyond double precision, so that the row counts as zero.
        (np.array([[np.longdouble("1e4000"), 1]]), [0.0, 0.0]),
    ],
)
def test_private_sum_takes_numbers_of_every_width(rows, expected):
    private_sum = make_sum(2, 10.0)
    private_sum.add(rows)
    assert private_sum.release(NO_NOISE) == pytest.approx(expected, rel=1e-15)
    assert private_sum.non_finite == (expected == [0.0, 0.0])


def add_rows_on_device(private_sum, rows):
    def add(limit, total, norms):
        add_on_device(torch.as_tensor(rows).float(), limit, total, norms)

    return private_sum.add_by(add, len(rows))


@pytest.mark.parametrize(
    "add", [add_to, add_rows_on_device], ids=["compiled", "device"]
)
@pytest.mark.parametrize(
    "kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64]
)
def test_torch_sums_take_the_ends_of_every_type(add, kind):
    """A row that single precision cannot hold counts as zero and is counted."""
    ends = torch.finfo(kind)
    rows = [
        [ends.max, ends.max],
        [ends.smallest_normal, ends.smallest_normal],
        [-0.0, 0.0],
        [3.0, 4.0],
    ]
    private_sum = make_sum(2, 1.0)
    add(private_sum, torch.tensor(rows, dtype=kind))
    is_double = kind is torch.float64
    assert (private_sum.count, private_sum.non_finite) == (4, int(is_double))
    first_rows = 0.0 if is_double else math.sqrt(0.5) + ends.smallest_normal
    expected = [first_rows + 0.6, first_rows + 0.8]
    assert private_sum.release(NO_NOISE) == pytest.approx(expected, rel=1e-6)


def test_secure_sum_clips_huge_messages_and_leaves_small_ones():
    """Three clients point the same way: the sum is 3 C / sqrt(2) in two coordinates.
    Noise and rounding of 2^-30 of it are below the tolerance.
    """
    mechanism = {"dimension": 2, "threshold": 0.5, "noise_multiplier": 1e-6}
    lattice = Lattice.finest(**mechanism, bits=40, deviations=4.0, clients=5, counted=5)
    secure_sum = SecureSum(
        **mechanism,
        lattice=lattice,
        dropped=0,
        streams=lambda suffix, *indices: stream(0, "noise" + suffix, 0, *indices),
    )
    rows = [[1e308, 1e308], [1e200, 1e200], [0.9, 0.9], [math.nan, 1], [SMALLEST, 0]]
    norms = secure_sum.add(rows)
    assert (secure_sum.count, secure_sum.non_finite) == (5, 1)
    assert norms[:2] == pytest.approx([math.sqrt(2) * 1e308, math.sqrt(2) * 1e200])
    assert secure_sum.release(None) == pytest.approx([1.5 / 2**0.5] * 2, rel=1e-4)


@pytest.mark.parametrize(
    "rule",
    [
        dpsum.Constant(1.0),
        dpsum.PrivateQuantile(1.0, count_noise=10.0),
        dpsum.NoisedMeanNorm(1.0),
        dpsum.NormOfRelease(1.0),
        dpsum.PercentileOfReleases(1.0),
        dpsum.PercentileOfRawNorms(1.0, never_rising=False, window=1),
        dpsum.MeanOfRawNorms(1.0),
    ],
    ids=lambda rule: type(rule).__name__,
)
def test_mechanism_finishes_each_round_whatever_the_contributions(rule):
    ledger = []
    mechanism = make_mechanism(
        dimension=3,
        participation=dpsum.OnePass(units=30, cohort=10, rounds=3, seed=0),
        clipping=rule,
        noise=dpsum.Gaussian(1.0),
        ledger=ledger,
        seed=0,
    )
    rows = np.array([*ROWS, [math.nan] * 3, [math.inf, 0.0, 0.0]])
    assert np.isfinite(release_rounds(mechanism, rows, 3)).all()
    assert mechanism.non_finite == 6
    assert {line.round for line in ledger} == {0, 1, 2}
