"""DP-MAML on given gradients: properties 3, 4 and 9, as published and repaired; and
what its account says.
"""

import math

import numpy as np
import pytest

from dpfedbench.settings.merge import merge
from dpsum.accounting.gaussian import gaussian_epsilon
from tests.dpfedbench.federation.conftest import (
    accounted,
    make_config,
    releases_of,
    train,
)

PUBLISHED = {"method": "dp-maml"}
REPAIRED = merge(
    PUBLISHED,
    {
        "clipping": {
            "kind": "private-quantile",
            "never_rising": False,
            "count_noise": 2.0,
            "quantile_rate": 0.2,
        }
    },
)
VARIANTS = pytest.mark.parametrize(
    "variant", [PUBLISHED, REPAIRED], ids=["published", "repaired"]
)
ORDINARY = 5


def sums(rounds):
    """The released sums [rounds, ORDINARY] and the thresholds they were taken at."""
    released = np.stack(
        [values[0][:ORDINARY] * ledger[0].denominator for ledger, values in rounds]
    )
    return released, np.array([ledger[0].threshold for ledger, _ in rounds])


def test_it_is_what_the_text_says():
    """Section 5.2.1: the 90th percentile over two lots, and never above the last
    one.
    """
    assert make_config(PUBLISHED).plain()["clipping"] == {
        "kind": "percentile-of-raw-norms",
        "threshold": 0.5,
        "percentile": 90,
        "window": 2,
        "never_rising": True,
        "groups": "all",
        "noise_by_group": "joint",
    }


@VARIANTS
def test_property_3_one_task_moves_a_lots_sum_by_no_more_than_the_threshold(variant):
    config = make_config(variant)
    rng = np.random.default_rng(0)
    for trial in range(60):
        gradients = rng.normal(size=(48, ORDINARY)) * np.exp(
            2 * rng.normal(size=(48, 1))
        )
        task = int(rng.integers(48))
        gradients[task] *= rng.choice([1e30, -1e30, 1.0, 30.0])
        without = gradients.copy()
        without[task] = 0.0
        (first, thresholds), (second, _) = (
            sums(releases_of(config, each)) for each in (gradients, without)
        )
        moved = np.linalg.norm(first - second, axis=1)
        own = int(
            np.flatnonzero(moved)[0]
        )  # up to the task's own lot nothing differs, the thresholds included
        assert moved[own] <= thresholds[own] * (1 + 1e-6), trial


@VARIANTS
def test_property_4_one_norm_over_all_weights_and_identity_below_the_threshold(variant):
    """Beside a run of zeros with the same noise, a sum is the clipped gradient of the
    one task that has any.
    """
    config = make_config(variant)
    rng = np.random.default_rng(1)
    nothing, _ = sums(releases_of(config, np.zeros((48, ORDINARY))))
    for size in (0.3, 0.4999, 0.5001, 7.0, 1e20):
        gradients = np.zeros((48, ORDINARY))
        direction = rng.normal(size=ORDINARY)
        gradients[7] = size * direction / np.linalg.norm(direction)
        found, thresholds = sums(releases_of(config, gradients))
        own = int(np.flatnonzero(np.linalg.norm(found - nothing, axis=1))[0])
        clipped = found[own] - nothing[own]
        expected = direction / np.linalg.norm(direction) * min(size, thresholds[own])
        assert clipped == pytest.approx(expected, rel=1e-5, abs=1e-7)


def equal_releases():
    """Two sets of gradients whose first two lots are clipped to the same: one task's
    norm is 0.6 or 0.9 at C = 0.5.

    The other seven norms of the window are 0.1, so the 90th percentile of eight is 0.7
    x 0.1 + 0.3 x 0.6 or 0.9.
    """
    config = make_config(PUBLISHED)
    task = int(
        config.participation.plan(clients=48, seed=config.seed).sample_cohort(0)[0]
    )
    made = []
    for norm in (0.6, 0.9):
        gradients = np.zeros((48, ORDINARY))
        gradients[:, 0] = 0.1
        gradients[task, 0] = norm
        made.append(gradients)
    return made


def test_property_9_fails_for_raw_norms():
    """Equal releases, and yet another threshold: it tells what the noise was to
    hide.
    """
    first, second = (
        releases_of(make_config(PUBLISHED), each) for each in equal_releases()
    )
    (one, thresholds) = sums(first)
    (other, others) = sums(second)
    assert one[:2] == pytest.approx(other[:2], abs=1e-7)
    assert thresholds[:2].tolist() == others[:2].tolist() == [0.5, 0.5]
    assert thresholds[2] == pytest.approx(0.25)
    assert others[2] == pytest.approx(0.34)


def test_property_9_holds_for_the_private_quantile():
    first, second = (
        releases_of(make_config(REPAIRED), each) for each in equal_releases()
    )
    assert np.array_equal(sums(first)[1], sums(second)[1])
    # And from the released counts alone.
    threshold = 0.5
    for ledger, values in first:
        assert ledger[0].threshold == pytest.approx(threshold, rel=1e-12)
        threshold *= math.exp(-0.2 * (0.5 + float(values[1][0]) - 0.9))


@pytest.mark.parametrize(
    ("variant", "kind", "is_finite"),
    [
        (PUBLISHED, "one-pass", False),
        (REPAIRED, "one-pass", True),
        (REPAIRED, "balls-and-bins", True),
    ],
)
def test_its_account(federation, tmp_path, variant, kind, is_finite):
    config = make_config(variant, {"participation": {"kind": kind}})
    train(config, federation, tmp_path)
    found = accounted(config, tmp_path, federation[1])["profiles"]["proven"]
    if not is_finite:
        assert found["epsilon_high"] is None or math.isinf(float(found["epsilon_high"]))
        assert found["status"] == "void"
        assert "raw norms" in found["explanation"]
        return
    alone = gaussian_epsilon(1.0, 1e-3)
    assert found["status"] == "proved"
    assert 0 < found["epsilon_high"] <= alone * (1 + 1e-9)
    assert (found["epsilon_high"] < 0.9 * alone) == (kind == "balls-and-bins")
