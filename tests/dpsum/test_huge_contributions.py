"""Finite contributions of every size: each is clipped, or counts as zero and is
counted, and none stops a round.

Expected values are worked out by hand, or with mpmath in 60 digits.
"""

import math
import sys

import mpmath
import numpy as np
import pytest
import torch

import dpsum
from dpfedbench.models.torch_sums import add_on_device, add_to
from dpsum.clipping import (
    LARGEST_PERCENTILE,
    MeanOfRawNorms,
    NoisedMeanNorm,
    PercentileOfRawNorms,
    Seen,
)
from dpsum.errors import DpsumError
from dpsum.ledger import read_ledger
from dpsum.norms import clip, l2_norm
from dpsum.private_sum import PrivateSum
from dpsum.randomness import streams
from dpsum.secure import Lattice, SecureSum

LARGEST, SMALLEST = sys.float_info.max, 5e-324

ROWS = [
    [1.2e154, 1.2e154, 0.0],  # squares are finite, their sum is not
    [1.3e154, -1.0, 0.0],
    [1e308, 1e308, -1e308],
    [LARGEST, LARGEST, LARGEST],  # the norm is beyond the largest number
    [LARGEST, 0.0, 0.0],
    [1e308, 1e-308, SMALLEST],
    [1e200, -0.0, 1.0],
    [1e-200, 1e-200, 0.0],  # squares are 0
    [SMALLEST, 0.0, -SMALLEST],
    [-0.0, 0.0, -0.0],
]


class Silent:
    """Stand-in for a generator that draws no noise."""

    def standard_normal(self, size):
        return np.zeros(size)


def exact_norm(row):
    with mpmath.workdps(60):
        return mpmath.sqrt(mpmath.fsum(mpmath.mpf(value) ** 2 for value in row))


def exactly_clipped(row, limit):
    """The clipped row, from 60 digits."""
    with mpmath.workdps(60):
        norm = exact_norm(row)
        factor = mpmath.mpf(1) if norm <= limit else mpmath.mpf(limit) / norm
        return [float(factor * mpmath.mpf(value)) for value in row]


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("limit", [1e-20, 0.5, 1e20, 1e150, math.inf])
def test_every_finite_row_is_clipped_as_in_60_digits(row, limit):
    values = np.array(row)
    norm = l2_norm(values)
    assert norm == pytest.approx(float(min(exact_norm(row), LARGEST)), rel=1e-15)
    found = clip(values, norm, limit)
    assert found.tolist() == pytest.approx(
        exactly_clipped(row, limit), rel=1e-14, abs=SMALLEST
    )


@pytest.mark.parametrize("row", ROWS)
def test_one_client_moves_a_sum_by_the_threshold_at_most_and_stops_nothing(row):
    others = np.random.default_rng(0).normal(size=(4, 3))
    totals = []
    for rows in (others, np.vstack([others[:2], [row], others[2:]])):
        total = PrivateSum(dimension=3, threshold=0.5, noise_multiplier=1.0)
        total.add(rows)
        assert total.non_finite == 0
        totals.append(total.release(Silent()))
    moved = np.linalg.norm(totals[1] - totals[0])
    assert moved == pytest.approx(float(min(exact_norm(row), 0.5)), abs=1e-15)


def test_rows_that_are_not_finite_count_as_zero_beside_huge_ones():
    rows = np.array([[math.nan, 1e308], [1e308, math.inf], [1e308, -1e308]])
    total = PrivateSum(dimension=2, threshold=1.0, noise_multiplier=1.0)
    norms = total.add(rows)
    assert (total.count, total.non_finite) == (3, 2)
    assert np.isnan(norms[:2]).all()
    root = math.sqrt(0.5)
    assert total.release(Silent()).tolist() == pytest.approx([root, -root], rel=1e-15)


@pytest.mark.parametrize(
    "kind", [np.float16, np.float32, np.longdouble, np.int64, np.uint8, bool]
)
def test_numbers_of_every_width_are_taken(kind):
    """By hand: (3, 4) has norm 5; True counts as 1."""
    row = np.array([[3, 4]], dtype=kind)
    total = PrivateSum(dimension=2, threshold=10.0, noise_multiplier=1.0)
    total.add(row)
    expected = [1.0, 1.0] if kind is bool else [3.0, 4.0]
    assert total.release(Silent()).tolist() == expected


def test_the_largest_numbers_of_narrow_types_are_clipped():
    """65504 and 3.39e38 are the largest of float16 and bfloat16; 1e4000 of a long
    double is beyond double precision, so that it counts as zero.
    """
    half = np.full((1, 4), 65504, np.float16)
    brain = torch.full((1, 4), torch.finfo(torch.bfloat16).max, dtype=torch.bfloat16)
    for rows in (half, brain):
        total = PrivateSum(dimension=4, threshold=1.0, noise_multiplier=1.0)
        total.add(rows)
        assert total.release(Silent()).tolist() == pytest.approx([0.5] * 4, rel=1e-15)
    total = PrivateSum(dimension=2, threshold=1.0, noise_multiplier=1.0)
    total.add(np.array([[np.longdouble("1e4000"), 1]]))
    assert total.non_finite == 1 and total.release(Silent()).tolist() == [0.0, 0.0]


def on_device(total, rows):
    def add(limit, into, norms):
        add_on_device(torch.as_tensor(rows).float(), limit, into, norms)

    return total.add_by(add, len(rows))


@pytest.mark.parametrize("add", [add_to, on_device], ids=["compiled", "device"])
@pytest.mark.parametrize(
    "kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64]
)
def test_the_benchmarks_sums_take_every_type_at_its_ends(add, kind):
    """The rows are the largest numbers of the type, its smallest, zeros of both signs,
    and 3 and 4. What single precision cannot hold counts as zero and is counted.
    """
    ends = torch.finfo(kind)
    rows = torch.tensor(
        [
            [ends.max, ends.max],
            [ends.smallest_normal, ends.smallest_normal],
            [-0.0, 0.0],
            [3.0, 4.0],
        ],
        dtype=kind,
    )
    total = PrivateSum(dimension=2, threshold=1.0, noise_multiplier=1.0)
    add(total, rows)
    too_large = kind is torch.float64
    assert (total.count, total.non_finite) == (4, int(too_large))
    first = 0.0 if too_large else math.sqrt(0.5)
    smallest = 0.0 if too_large else ends.smallest_normal
    expected = [first + smallest + 0.6, first + smallest + 0.8]
    assert total.release(Silent()).tolist() == pytest.approx(expected, rel=1e-6)


def test_a_secure_sum_clips_huge_messages_and_leaves_others_alone():
    """Three clients point the same way, two of them with huge coordinates: all are
    clipped to C, so that the sum is 3 C / 2^(1/2) in two coordinates. Noise and
    rounding of 2^-30 of it are below the tolerance.
    """
    lattice = Lattice.of(
        dimension=2,
        threshold=0.5,
        noise_multiplier=1e-6,
        bits=40,
        deviations=4.0,
        clients=5,
        counted=5,
    )
    total = SecureSum(
        dimension=2,
        threshold=0.5,
        noise_multiplier=1e-6,
        lattice=lattice,
        dropped=0,
        streams=lambda what, *indices: streams(0, "noise" + what, None, *indices)(0),
    )
    rows = np.array([[1e308, 1e308], [1e200, 1e200], [0.9, 0.9]])
    norms = total.add(np.vstack([rows, [[math.nan, 1.0], [SMALLEST, 0.0]]]))
    assert (total.count, total.non_finite) == (5, 1)
    assert norms[:2].tolist() == pytest.approx([1.4142135623730951e308, 2**0.5 * 1e200])
    assert total.release(None).tolist() == pytest.approx([1.5 / 2**0.5] * 2, rel=1e-4)


@pytest.mark.parametrize("rule", [MeanOfRawNorms(), PercentileOfRawNorms(window=1)])
def test_rules_that_read_raw_norms_keep_a_threshold_that_a_ledger_holds(rule):
    state = rule.begin(1.0)
    if isinstance(rule, PercentileOfRawNorms):
        rule = PercentileOfRawNorms(window=1, never_rising=False)
    for norms in ([LARGEST, LARGEST], [0.0, SMALLEST], [math.nan]):
        seen = Seen(
            released=np.zeros(2), extra=None, denominator=2.0, raw_norms=list(norms)
        )
        rule.observe(state, seen)
        assert 1e-20 <= state["threshold"] <= LARGEST_PERCENTILE


def test_a_huge_norm_in_a_secondary_sum_counts_as_the_threshold():
    """The extra release clips each norm to C = 2: 2 + 2 + 1.5, and NaN counts as 0."""
    rule = NoisedMeanNorm()
    values = rule.values(rule.begin(2.0), np.array([LARGEST, 1e39, 1.5, math.nan]))
    total = PrivateSum(dimension=1, threshold=2.0, noise_multiplier=1.0)
    total.add(values)
    assert total.release(Silent())[0] == pytest.approx(5.5, rel=1e-7)
    assert total.non_finite == 1


@pytest.mark.parametrize(
    "rule",
    [
        dpsum.Constant(1.0),
        dpsum.PrivateQuantile(1.0, count_noise=10.0),
        dpsum.NoisedMeanNorm(1.0),
        dpsum.NormOfRelease(1.0),
        dpsum.PercentileOfReleases(1.0),
        PercentileOfRawNorms(1.0, never_rising=False, window=1),
        MeanOfRawNorms(1.0),
    ],
    ids=lambda rule: type(rule).__name__,
)
def test_no_contribution_stops_a_round_under_any_rule(rule, tmp_path):
    participation = dpsum.OnePass(units=30, cohort=10, rounds=3, seed=0)
    mechanism = dpsum.Mechanism(
        name="sum",
        unit="client",
        observer="everyone",
        dimension=3,
        participation=participation,
        clipping=rule,
        noise=dpsum.Gaussian(1.0),
        ledger=tmp_path / "ledger.jsonl",
        seed=0,
    )
    for index in range(3):
        total = mechanism.open(index)
        total.add(np.array(ROWS))
        total.add(np.array([[math.nan] * 3, [math.inf, 0.0, 0.0]]))
        assert np.isfinite(mechanism.release(total)).all()
    assert mechanism.non_finite == 6
    assert {event.round for event in read_ledger(tmp_path / "ledger.jsonl")} == {
        0,
        1,
        2,
    }


@pytest.mark.parametrize(
    ("threshold", "multiplier", "named"),
    [
        (1e160, 1.0, "the clipping threshold"),
        (1e-160, 1.0, "the clipping threshold"),
        (1.0, 1e160, "noise.multiplier"),
        (1e100, 1e100, "the deviation of the noise"),
        (1e-100, 1e-100, "the deviation of the noise"),
        (math.nan, 1.0, "the clipping threshold"),
    ],
)
def test_what_no_ledger_holds_is_refused_when_the_sum_is_made(
    threshold, multiplier, named
):
    with pytest.raises(DpsumError, match=f"^{named} is .*from 1e-150 to"):
        PrivateSum(dimension=2, threshold=threshold, noise_multiplier=multiplier)
