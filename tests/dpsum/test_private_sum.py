"""The private sum: properties 1, 2, 3, 4, 8 and 15 of a mechanism that can be relied
on.
"""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from dpfedbench.errors import BenchError
from dpfedbench.models.torch_sums import add_on_device, add_to, rows_of
from dpkernels.clipped_sum import add_rows
from dpsum.private_sum import PlainSum, PrivateSum
from dpsum.randomness import stream


class Silent:
    """In place of the noise generator: no noise, so that the sum before noise is
    seen.
    """

    def standard_normal(self, size):
        return np.zeros(size)


ways = pytest.mark.parametrize(
    "add", [lambda total, rows: total.add(rows), add_to], ids=["numpy", "compiled"]
)


def pre_noise(contributions, threshold=0.5, add=PrivateSum.add):
    total = PrivateSum(
        dimension=contributions.shape[1], threshold=threshold, noise_multiplier=1.0
    )
    add(total, contributions)
    return total.release(Silent())


def noise(threshold, multiplier, dimension, *names):
    return PrivateSum(
        dimension=dimension, threshold=threshold, noise_multiplier=multiplier
    ).release(stream(*names))


class TestNoise:
    """Kolmogorov-Smirnov at level 1e-3 with a fixed seed: a correct mechanism fails for
    one seed in a thousand.
    """

    LEVEL = 1e-3

    def accepted(self, draws, deviation):
        return stats.kstest(draws / deviation, "norm").pvalue > self.LEVEL

    @pytest.mark.parametrize(
        ("threshold", "multiplier"), [(0.5, 1.0), (0.2, 3.0), (7.0, 0.4)]
    )
    def test_its_deviation_is_z_times_c(self, threshold, multiplier):
        draws = noise(threshold, multiplier, 100_000, 0, "test")
        assert self.accepted(draws, multiplier * threshold)
        # The same draws are told from a tenth less and a tenth more.
        assert not self.accepted(draws, 0.9 * multiplier * threshold)
        assert not self.accepted(draws, 1.1 * multiplier * threshold)

    def test_coordinates_rounds_and_clients_are_independent(self):
        names = [
            (0, "noise", 0),
            (0, "noise", 1),
            (1, "noise", 0),
            (0, "client-noise", 0),
            (0, "noise", 0, 1),
        ]
        draws = np.array([noise(1.0, 1.0, 100_000, *name) for name in names])
        # Correlations of independent draws are N(0, 1/n): 5 deviations, false alarm
        # below 1e-5 over all pairs.
        correlations = np.corrcoef(draws) - np.eye(len(draws))
        assert np.abs(correlations).max() < 5 / math.sqrt(100_000)
        neighbours = [np.corrcoef(draw[:-1], draw[1:])[0, 1] for draw in draws]
        assert np.abs(neighbours).max() < 5 / math.sqrt(100_000)
        assert len(np.unique(draws)) == draws.size

    def test_it_is_the_same_after_a_restart_and_never_another_rounds(self):
        assert np.array_equal(
            noise(1.0, 1.0, 50, 3, "noise", 7), noise(1.0, 1.0, 50, 3, "noise", 7)
        )
        assert not np.array_equal(
            noise(1.0, 1.0, 50, 3, "noise", 7), noise(1.0, 1.0, 50, 3, "noise", 8)
        )

    def test_an_empty_sum_is_noised_too(self):
        draws = noise(0.5, 2.0, 1000, 0, "empty")
        assert np.abs(draws).min() > 0
        assert draws.std() == pytest.approx(
            1.0, rel=0.1
        )  # 4.5 deviations of a deviation's estimate


def test_a_release_can_be_had_once():
    total = PrivateSum(dimension=3, threshold=1.0, noise_multiplier=1.0)
    total.release(stream(0, "once"))
    with pytest.raises(RuntimeError):
        total.release(stream(0, "once"))
    with pytest.raises(RuntimeError):
        total.add(torch.ones(1, 3))


@ways
def test_neighbouring_sums_differ_by_at_most_the_sensitivity(add):
    """Property 3: 10,000 neighbouring pairs, extreme contributions among them."""
    rng = np.random.default_rng(0)
    special = [1e30, -1e30, 1e-30, 3.4e38, -3.4e38, 0.0, 1e-45, math.inf, math.nan]
    worst = 0.0
    for _ in range(2_500):
        n, threshold = int(rng.integers(1, 6)), float(10 ** rng.uniform(-6, 3))
        inputs = torch.from_numpy(
            (rng.normal(size=(n, 7)) * 10 ** rng.uniform(-8, 8)).astype(np.float32)
        )
        for _ in range(int(rng.integers(0, 4))):
            inputs[rng.integers(n), rng.integers(7)] = special[
                rng.integers(len(special))
            ]
        whole = pre_noise(inputs, threshold, add)
        for _ in range(4):
            neighbour = inputs.clone()
            neighbour[rng.integers(n)] = 0.0
            worst = max(
                worst,
                np.linalg.norm(whole - pre_noise(neighbour, threshold, add))
                / threshold,
            )
    assert 0.99 < worst <= 1 + 1e-6


@ways
def test_clipping_is_one_norm_over_all_parameters(add):
    """Property 4. By hand: (3, 4, 0, 0) has norm 5, so C = 1 leaves (0.6, 0.8, 0, 0);
    per-part clipping would not.
    """
    found = pre_noise(torch.tensor([[3.0, 4.0, 0.0, 0.0]]), 1.0, add)
    assert found.tolist() == pytest.approx([0.6, 0.8, 0, 0], abs=1e-15)
    both = pre_noise(torch.tensor([[3.0, 0.0, 0.0, 4.0]]), 1.0, add)
    assert both.tolist() == pytest.approx([0.6, 0, 0, 0.8], abs=1e-15)
    rng = np.random.default_rng(1)
    for scale in (1e-30, 1e-3, 1.0, 1e10, 1e30):
        x = torch.from_numpy((scale * rng.normal(size=(1, 1000))).astype(np.float32))
        assert np.linalg.norm(pre_noise(x, 0.5, add)) <= 0.5 * (1 + 1e-12)


@ways
@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1e30, 1e36])
def test_extreme_contributions_are_clipped_and_not_lost(scale, add):
    """Squares of these leave single precision: a norm taken there would be 0 or
    infinite.
    """
    x = torch.from_numpy(
        (scale * np.random.default_rng(3).uniform(0.5, 1, size=(1, 1000))).astype(
            np.float32
        )
    )
    threshold = min(1.0, scale)
    assert np.linalg.norm(pre_noise(x, threshold, add)) == pytest.approx(
        threshold, rel=1e-9
    )


@ways
def test_a_contribution_within_the_threshold_is_left_as_it_is(add):
    x = torch.tensor([[0.3, -0.1, 0.2]])
    assert np.array_equal(pre_noise(x, 0.5, add), x[0].double())
    exact = torch.tensor([[3.0, 4.0]])
    assert np.array_equal(pre_noise(exact, 5.0, add), exact[0].double())


@ways
def test_contributions_are_added_one_after_another_each_product_and_sum_rounded(add):
    """As numpy does it: a compiler that is let reorder or fuse gives other bits."""
    rng = np.random.default_rng(5)
    x = torch.from_numpy(
        (rng.normal(size=(11, 3000)) * 10 ** rng.uniform(-3, 3, size=(11, 1))).astype(
            np.float32
        )
    )
    total = PrivateSum(dimension=3000, threshold=0.5, noise_multiplier=1.0)
    norms = add(total, x)
    np.testing.assert_allclose(
        norms, np.linalg.norm(x.double().numpy(), axis=1), rtol=1e-14
    )
    expected = np.zeros(3000)
    for row, norm in zip(x.double().numpy(), norms, strict=True):
        expected += (1.0 if norm <= 0.5 else 0.5 / norm) * row
    assert np.array_equal(total.release(Silent()), expected)


@ways
def test_chunks_change_no_bit(add):
    x = torch.from_numpy(
        np.random.default_rng(2).normal(size=(13, 50)).astype(np.float32)
    )
    whole = pre_noise(x, add=add)
    for size in (1, 2, 5):
        total = PrivateSum(dimension=50, threshold=0.5, noise_multiplier=1.0)
        for start in range(0, 13, size):
            add(total, x[start : start + size])
        assert np.array_equal(total.release(Silent()), whole)


@pytest.mark.parametrize("limit", [0.5, 30.0, math.inf])
@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
)
def test_rows_are_clipped_and_added_on_the_device_as_by_the_compiled_loop(
    limit, device
):
    """Rows of norms from 0 to 1e33, whose squares no float32 holds, below, above and
    (the fourth) at the limit.
    """
    x = torch.from_numpy(
        np.random.default_rng(3).normal(size=(40, 257)).astype(np.float32)
    )
    x *= torch.logspace(-30, 32, 40)[:, None]
    x[3], x[5], x[7, 0], x[9, -1] = 0.0, 0.0, math.nan, math.inf
    x[3, 0] = limit if math.isfinite(limit) else 1.0
    x[:, 11] = -0.0
    wanted, found = (np.linspace(-1, 1, 257) for _ in range(2))
    norms, own = np.empty(40), np.empty(40)
    add_rows(rows_of(x), limit, wanted, norms)
    add_on_device(x.to(device), limit, found, own)
    np.testing.assert_allclose(own, norms, rtol=1e-13)
    np.testing.assert_allclose(
        found, wanted, rtol=1e-11, atol=1e-13 * min(limit * 40, np.abs(wanted).max())
    )


@pytest.mark.cuda
def test_contributions_on_a_gpu_are_clipped_where_they_are():
    x = torch.from_numpy(
        np.random.default_rng(4).normal(size=(13, 50)).astype(np.float32)
    )
    assert pre_noise(x.cuda(), add=add_to).tolist() == pytest.approx(
        pre_noise(x).tolist(), rel=1e-12
    )


@ways
@pytest.mark.parametrize("kind", ["private", "plain"])
def test_not_finite_contributions_are_zero_and_counted(kind, add):
    """Property 15."""
    x = torch.tensor(
        [
            [0.1, 0.2],
            [math.nan, 0.0],
            [0.0, math.inf],
            [-math.inf, math.nan],
            [0.3, 0.0],
        ]
    )
    if kind == "private":
        total = PrivateSum(dimension=2, threshold=10.0, noise_multiplier=1.0)
    else:
        total = PlainSum(dimension=2)
    add(total, x)
    assert (total.count, total.non_finite) == (5, 3)
    assert total.release(Silent()).tolist() == pytest.approx([0.4, 0.2])


def test_a_private_sum_shows_no_norms_and_no_sum_without_noise():
    total = PrivateSum(dimension=2, threshold=1.0, noise_multiplier=1.0)
    total.add(torch.ones(2, 2))
    assert not hasattr(total, "norms")
    total.release(stream(0, "x"))
    held = [
        value
        for value in vars(total).values()
        if isinstance(value, np.ndarray | torch.Tensor) and len(value)
    ]
    assert held == []


@pytest.mark.parametrize("threshold", [0.0, -1.0, math.inf, math.nan])
def test_impossible_thresholds_are_refused(threshold):
    with pytest.raises(BenchError, match="threshold"):
        PrivateSum(dimension=2, threshold=threshold, noise_multiplier=1.0)


@pytest.mark.parametrize("multiplier", [0.0, -1.0, math.inf, math.nan])
def test_impossible_noise_is_refused(multiplier):
    with pytest.raises(BenchError, match=r"noise\.multiplier"):
        PrivateSum(dimension=2, threshold=1.0, noise_multiplier=multiplier)
