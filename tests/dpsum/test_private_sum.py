"""Private sums: properties 1, 2, 3, 4, 8 and 15 of docs/properties.md."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from dpfedbench.training.mechanisms import add_on_device, add_to
from dpsum import DpsumError
from dpsum.private_sum import PlainSum, PrivateSum
from dpsum.randomness import stream
from tests.dpsum.helpers import NO_NOISE, make_sum

both_loops = pytest.mark.parametrize("add", [PrivateSum.add, add_to])


def sum_before_noise(contributions, threshold=0.5, add=PrivateSum.add):
    private_sum = make_sum(contributions.shape[1], threshold)
    add(private_sum, contributions)
    return private_sum.release(NO_NOISE)


def draw_noise(threshold, noise_multiplier, dimension, *stream_name):
    empty_sum = make_sum(dimension, threshold, noise_multiplier)
    return empty_sum.release(stream(*stream_name).standard_normal(dimension))


def random_rows(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("threshold", "noise_multiplier"), [(0.5, 1.0), (0.2, 3.0), (7.0, 0.4)]
)
def test_private_sum_noise_std_is_z_times_c(threshold, noise_multiplier):
    """Kolmogorov-Smirnov; a tenth less and a tenth more are rejected."""
    draws = draw_noise(threshold, noise_multiplier, 100_000, 0, "test")
    standard = draws / (noise_multiplier * threshold)
    assert stats.kstest(standard, "norm").pvalue > 1e-3
    assert stats.kstest(standard / 0.9, "norm").pvalue < 1e-3
    assert stats.kstest(standard / 1.1, "norm").pvalue < 1e-3


def test_private_sum_noise_is_independent_over_coordinates_rounds_and_clients():
    """Correlations of independent draws are N(0, 1/n). Five deviations: false alarm
    below 1e-5 over all pairs.
    """
    streams = [(0, "noise", 0), (0, "noise", 1), (1, "noise", 0), (0, "noise", 0, 1)]
    streams.append((0, "client-noise", 0))
    draws = np.array([draw_noise(1.0, 1.0, 100_000, *name) for name in streams])
    limit = 5 / math.sqrt(100_000)
    assert np.abs(np.corrcoef(draws) - np.eye(5)).max() < limit
    neighbours = [np.corrcoef(row[:-1], row[1:])[0, 1] for row in draws]
    assert np.abs(neighbours).max() < limit
    assert len(np.unique(draws)) == draws.size


def test_private_sum_noise_repeats_after_a_restart_and_in_no_other_round():
    draws = draw_noise(1.0, 1.0, 50, 3, "noise", 7)
    assert np.array_equal(draws, draw_noise(1.0, 1.0, 50, 3, "noise", 7))
    assert not np.array_equal(draws, draw_noise(1.0, 1.0, 50, 3, "noise", 8))


def test_private_sum_without_contributions_is_noised():
    """The tolerance is 4.5 deviations of the estimated deviation."""
    draws = draw_noise(0.5, 2.0, 1000, 0, "empty")
    assert np.abs(draws).min() > 0
    assert draws.std() == pytest.approx(1.0, rel=0.1)


def test_private_sum_is_released_once_and_keeps_no_sum_before_noise():
    private_sum = make_sum(2)
    private_sum.add(torch.ones(2, 2))
    private_sum.release(np.ones(2))
    assert not hasattr(private_sum, "norms")
    assert private_sum._total.size == 0
    with pytest.raises(RuntimeError):
        private_sum.release(np.ones(2))
    with pytest.raises(RuntimeError):
        private_sum.add(torch.ones(1, 2))


@both_loops
def test_private_sum_of_neighbours_differs_by_at_most_the_sensitivity(add):
    """10,000 pairs of neighbours, with extreme contributions among them."""
    rng = np.random.default_rng(0)
    extremes = [1e30, -1e30, 1e-30, 3.4e38, -3.4e38, 0.0, 1e-45, math.inf, math.nan]
    largest_ratio = 0.0
    for _ in range(2_500):
        count = int(rng.integers(1, 6))
        threshold = float(10 ** rng.uniform(-6, 3))
        rows = rng.normal(size=(count, 7)) * 10 ** rng.uniform(-8, 8)
        rows = torch.from_numpy(rows.astype(np.float32))
        for extreme in rng.choice(extremes, rng.integers(0, 4)):
            rows[rng.integers(count), rng.integers(7)] = extreme
        total = sum_before_noise(rows, threshold, add)
        for _ in range(4):
            neighbour = rows.clone()
            neighbour[rng.integers(count)] = 0.0
            distance = total - sum_before_noise(neighbour, threshold, add)
            largest_ratio = max(largest_ratio, np.linalg.norm(distance) / threshold)
    assert 0.99 < largest_ratio <= 1 + 1e-6


@both_loops
def test_private_sum_clips_one_norm_over_all_parameters(add):
    """By hand: (3, 4, 0, 0) has norm 5, so C = 1 leaves (0.6, 0.8, 0, 0)."""
    for row in ([3.0, 4.0, 0.0, 0.0], [3.0, 0.0, 0.0, 4.0]):
        clipped = sum_before_noise(torch.tensor([row]), 1.0, add)
        assert clipped == pytest.approx(np.array(row) / 5, abs=1e-15)


@both_loops
def test_private_sum_leaves_a_contribution_within_the_threshold_unchanged(add):
    for row, threshold in (([0.3, -0.1, 0.2], 0.5), ([3.0, 4.0], 5.0)):
        rows = torch.tensor([row])
        clipped = sum_before_noise(rows, threshold, add)
        assert np.array_equal(clipped, rows[0].double())


@both_loops
def test_private_sum_rounds_each_product_and_each_sum_in_chunks_too(add):
    """A compiler that may reorder or fuse operations gives other bits."""
    scales = torch.logspace(-3, 3, 13)[:, None]
    rows = scales * random_rows((13, 3000), 5)
    private_sum = make_sum(3000)
    norms = add(private_sum, rows)
    values = rows.double().numpy()
    np.testing.assert_allclose(norms, np.linalg.norm(values, axis=1), rtol=1e-14)
    expected = np.zeros(3000)
    for row, norm in zip(values, norms, strict=True):
        expected += (1.0 if norm <= 0.5 else 0.5 / norm) * row
    assert np.array_equal(private_sum.release(NO_NOISE), expected)
    for size in (1, 2, 5):
        private_sum = make_sum(3000)
        for chunk in rows.split(size):
            add(private_sum, chunk)
        assert np.array_equal(private_sum.release(NO_NOISE), expected)


@pytest.mark.cuda
def test_add_to_clips_contributions_on_their_gpu():
    rows = random_rows((13, 50), 4)
    on_gpu = sum_before_noise(rows.cuda(), add=add_to)
    assert on_gpu == pytest.approx(sum_before_noise(rows), rel=1e-12)


@both_loops
@pytest.mark.parametrize(
    "make", [lambda: make_sum(2, 10.0), lambda: PlainSum(dimension=2)]
)
def test_sum_counts_contributions_that_are_not_finite_as_zero(make, add):
    nan = math.nan
    inf = math.inf
    rows = [[0.1, 0.2], [nan, 0.0], [0.0, inf], [-inf, nan], [0.3, 0.0]]
    total = make()
    add(total, torch.tensor(rows))
    assert (total.count, total.non_finite) == (5, 3)
    assert total.release(NO_NOISE) == pytest.approx([0.4, 0.2])


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
    private_sum.add_by(lambda *rest: add_on_device(rows.float(), *rest), len(rows))


@pytest.mark.parametrize("add", [add_to, add_rows_on_device])
@pytest.mark.parametrize(
    "kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64]
)
def test_torch_sums_take_the_ends_of_every_type(add, kind):
    """A row that single precision cannot hold counts as zero and is counted."""
    ends = torch.finfo(kind)
    rows = [[ends.max] * 2, [ends.smallest_normal] * 2, [-0.0, 0.0], [3.0, 4.0]]
    private_sum = make_sum(2, 1.0)
    add(private_sum, torch.tensor(rows, dtype=kind))
    is_double = kind is torch.float64
    assert (private_sum.count, private_sum.non_finite) == (4, int(is_double))
    first_rows = 0.0 if is_double else math.sqrt(0.5) + ends.smallest_normal
    expected = [first_rows + 0.6, first_rows + 0.8]
    assert private_sum.release(NO_NOISE) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan, 1e160])
def test_private_sum_refuses_noise_that_no_ledger_holds(value):
    with pytest.raises(DpsumError, match=r"threshold is .*from 1e-150 to"):
        make_sum(2, value)
    with pytest.raises(DpsumError, match=r"noise.multiplier is .*from 1e-150 to"):
        make_sum(2, 1.0, value)
    for huge_or_tiny in (1e100, 1e-100):
        with pytest.raises(DpsumError, match="the deviation of the noise is "):
            make_sum(2, huge_or_tiny, huge_or_tiny)
