"""DP-MAML with fixed gradients, as published and repaired: properties 3, 4 and 9 of
docs/properties.md, and the account.
"""

import math

import numpy as np
import pytest

from dploss.gaussian import gaussian_epsilon
from tests.dpfedbench.training.conftest import (
    accounted,
    make_config,
    releases_of,
    train,
)

PUBLISHED = {"method": "dp-maml"}
QUANTILE = {"kind": "private-quantile", "never_rising": False}
REPAIRED = PUBLISHED | {
    "clipping": QUANTILE | {"count_noise": 2.0, "quantile_rate": 0.2}
}
VARIANTS = pytest.mark.parametrize(
    "variant", [PUBLISHED, REPAIRED], ids=["published", "repaired"]
)
ORDINARY = 5


def sums(variant, gradients):
    """Return the released sums [rounds, ORDINARY] and the threshold of each round."""
    rounds = releases_of(make_config(variant), gradients)
    released = [
        values[0][:ORDINARY] * ledger[0].denominator for ledger, values in rounds
    ]
    return np.stack(released), np.array([ledger[0].threshold for ledger, _ in rounds])


@VARIANTS
def test_dp_maml_sum_moves_by_at_most_the_threshold_with_one_task(variant):
    rng = np.random.default_rng(0)
    for trial in range(60):
        sizes = np.exp(2 * rng.normal(size=(48, 1)))
        gradients = rng.normal(size=(48, ORDINARY)) * sizes
        task = int(rng.integers(48))
        gradients[task] *= rng.choice([1e30, -1e30, 1.0, 30.0])
        first, thresholds = sums(variant, gradients)
        gradients[task] = 0.0
        second, _ = sums(variant, gradients)
        distances = np.linalg.norm(first - second, axis=1)
        # Before the task's lot nothing differs, the thresholds included.
        lot = int(np.flatnonzero(distances)[0])
        assert distances[lot] <= thresholds[lot] * (1 + 1e-6), trial


@VARIANTS
def test_dp_maml_clips_one_norm_over_all_weights(variant):
    """A run of zeros has the same noise. The difference is one task's clipped gradient:
    the gradient itself where its norm is below the threshold.
    """
    rng = np.random.default_rng(1)
    nothing, _ = sums(variant, np.zeros((48, ORDINARY)))
    for size in (0.3, 0.4999, 0.5001, 7.0, 1e20):
        gradients = np.zeros((48, ORDINARY))
        direction = rng.normal(size=ORDINARY)
        direction /= np.linalg.norm(direction)
        gradients[7] = size * direction
        released, thresholds = sums(variant, gradients)
        differences = released - nothing
        lot = int(np.flatnonzero(np.linalg.norm(differences, axis=1))[0])
        expected = direction * min(size, thresholds[lot])
        assert differences[lot] == pytest.approx(expected, rel=1e-5, abs=1e-7)


def equal_releases():
    """Return two sets of gradients whose first two lots have equal clipped sums.

    One task's norm is 0.6 or 0.9, and C = 0.5 clips both to the same vector. The other
    seven norms of the window are 0.1. So the 90th percentile of the eight norms is
    0.7 x 0.1 + 0.3 x 0.6, or 0.7 x 0.1 + 0.3 x 0.9.
    """
    config = make_config(PUBLISHED)
    plan = config.participation.plan(clients=48, seed=config.seed)
    gradients = np.zeros((2, 48, ORDINARY))
    gradients[:, :, 0] = 0.1
    gradients[:, int(plan.sample_cohort(0)[0]), 0] = (0.6, 0.9)
    return gradients


def test_dp_maml_threshold_reveals_raw_norms():
    """The first two releases are equal and the next threshold is not: it reveals what
    the noise hides (property 9 fails as published).
    """
    first, second = (sums(PUBLISHED, gradients) for gradients in equal_releases())
    assert first[0][:2] == pytest.approx(second[0][:2], abs=1e-7)
    assert first[1][:3] == pytest.approx([0.5, 0.5, 0.25])
    assert second[1][:3] == pytest.approx([0.5, 0.5, 0.34])


def test_repaired_dp_maml_threshold_follows_from_the_releases():
    """Property 9 holds for the private quantile."""
    first, second = equal_releases()
    assert np.array_equal(sums(REPAIRED, first)[1], sums(REPAIRED, second)[1])
    # The threshold follows from the released counts alone.
    threshold = 0.5
    for ledger, values in releases_of(make_config(REPAIRED), first):
        assert ledger[0].threshold == pytest.approx(threshold, rel=1e-12)
        threshold *= math.exp(-0.2 * (0.5 + float(values[1][0]) - 0.9))


@pytest.mark.parametrize(
    ("variant", "kind", "status"),
    [
        (PUBLISHED, "one-pass", "void"),
        (REPAIRED, "one-pass", "proved"),
        (REPAIRED, "balls-and-bins", "proved"),
    ],
)
def test_dp_maml_account_is_finite_where_it_is_repaired(
    federation, tmp_path, variant, kind, status
):
    config = make_config(variant, {"participation": {"kind": kind}})
    train(config, federation, tmp_path)
    account = accounted(config, tmp_path, federation[1])["profiles"]["proven"]
    epsilon = float(account["epsilon_high"])
    alone = gaussian_epsilon(1.0, 1e-3)
    assert account["status"] == status
    assert math.isinf(epsilon) == (status == "void")
    assert (0 < epsilon <= alone * (1 + 1e-9)) == (status == "proved")
    assert (epsilon < 0.9 * alone) == (kind == "balls-and-bins")
