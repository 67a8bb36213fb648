"""The account of correlated noise in one pass: what a ledger's weights say, and what of
it is refused.
"""

import dataclasses
import math

import numpy as np
import pytest

from dpfedbench.errors import BenchError
from dpfedbench.parts.server.server_step import Step
from dpsum.accounting.account import account
from dpsum.accounting.accountant import Events
from dpsum.accounting.analyses import find, of
from dpsum.accounting.calibration import calibrate, epsilon_after
from dpsum.accounting.context import AccountContext
from dpsum.accounting.gaussian import gaussian_epsilon
from dpsum.accounting.image_level import ImageUse
from dpsum.factorisations import SquareRoot
from dpsum.ledger import Ledger, Release, read_ledger

MECHANISM, Z, C, DELTA = "correlated-gaussian", 2.0, 0.5, 1e-6
SAMPLER = {"kind": "one-pass", "clients": 400, "cohort": 100, "rounds": 4, "rate": 0.25}


def ledger(weights=None, rounds=4, **values):
    weights = SquareRoot().weights(4, Step()) if weights is None else weights
    return [
        Release(
            **{
                "round": index,
                "name": "sum",
                "mechanism": MECHANISM,
                "unit": "client",
                "adjacency": "zero-out",
                "observer": "everyone",
                "noise_multiplier": Z,
                "threshold": C,
                "sensitivity": C,
                "noise_std": Z * C,
                "dimension": 3,
                "sampler": SAMPLER,
                "denominator": 100.0,
                "noise_stream": "0/noise",
                "counted_by_paper": True,
                "data_dependent_threshold": False,
                "reason": "",
                "combines": weights[index, : index + 1].tolist(),
            }
            | values
        )
        for index in range(rounds)
    ]


def holds(releases):
    entry = account(releases, delta=DELTA, claims={}).profiles["holds"]
    assert entry.epsilon_low == entry.epsilon_high and entry.status == "proved"
    return entry.epsilon_high


def test_all_rounds_are_one_gaussian_release():
    assert holds(ledger()) == pytest.approx(gaussian_epsilon(Z, DELTA), rel=1e-9)
    assert (
        calibrate("holds", SAMPLER, 1.5, DELTA, mechanism=MECHANISM) == 2.905
    )  # as of one pass: docs/privacy.md
    assert epsilon_after(
        "holds", SAMPLER, Z, 4, DELTA, mechanism=MECHANISM
    ) == gaussian_epsilon(Z, DELTA)


def test_a_run_that_was_stopped_is_accounted_for_by_what_it_released():
    """By hand: of one round alone the noise is z times the whole encoder's norm, (1 +
    1/4 + 9/64 + 25/256)^1/2.
    """
    norm = math.sqrt(1 + 1 / 4 + 9 / 64 + 25 / 256)
    assert holds(ledger(rounds=1)) == pytest.approx(
        gaussian_epsilon(Z * norm, DELTA), rel=1e-9
    )
    assert holds(ledger(rounds=2)) == pytest.approx(
        gaussian_epsilon(Z * norm / math.sqrt(1.25), DELTA), rel=1e-9
    )


def test_no_correlation_is_one_pass():
    own, plain = ledger(np.eye(4)), ledger(mechanism="gaussian", combines=None)
    assert holds(own) == holds(plain) == gaussian_epsilon(Z, DELTA)


def test_it_is_the_gaussian_that_tells_two_neighbours_apart():
    """The optimal test between two Gaussians of one covariance: their distance by its
    inverse, for every round.
    """
    weights = SquareRoot().weights(4, Step())
    covariance = (Z * C) ** 2 * weights @ weights.T
    worst = max(math.sqrt(C**2 * np.linalg.inv(covariance)[at, at]) for at in range(4))
    assert holds(ledger()) == pytest.approx(
        gaussian_epsilon(1 / worst, DELTA), rel=1e-9
    )


def image_level(releases, use):
    entry = account(
        releases, delta=DELTA, claims={}, given=AccountContext(images=use)
    ).profiles["image_level"]
    return entry.epsilon_low, entry.epsilon_high


def test_an_image_in_several_rounds():
    """By hand for two rounds and C = [[1, 0], [1/2, 1]] / norm, norm^2 = 5/4: C^T C =
    [[5/4, 1/2], [1/2, 1]] / norm^2.

    Image 7 is with two clients of round 0 and one of round 1: (4 x 5/4 + 2 x 2 x 1/2 +
    1) / (5/4) = 6.4; image 8 with three of round 1: 9 / (5/4) = 7.2; image 9 with a
    client of no round.
    """
    norm = math.sqrt(1.25)
    weights = np.array([[norm, 0.0], [-norm / 2, norm]])
    releases = ledger(weights, rounds=2)
    images, rounds = (
        np.array([[7], [7], [7], [8], [8], [8], [9]]),
        np.array([0, 0, 1, 1, 1, 1, -1]),
    )
    low, high = image_level(releases, ImageUse(images=images, rounds=rounds))
    assert (
        low
        == high
        == pytest.approx(gaussian_epsilon(Z / math.sqrt(7.2), DELTA), rel=1e-9)
    )
    low, high = image_level(releases, ImageUse(images=images[:4], rounds=rounds[:4]))
    assert (
        low
        == high
        == pytest.approx(gaussian_epsilon(Z / math.sqrt(6.4), DELTA), rel=1e-9)
    )


def test_an_image_takes_the_weights_and_not_z_alone():
    use = ImageUse(images=np.array([[7]]), rounds=np.array([0]))
    with pytest.raises(BenchError, match="takes the ledger's weights"):
        of(ledger()).image(Events.planned(((Z, 4),), SAMPLER), use, DELTA)


def test_an_encoder_with_entries_below_nothing_has_two_ends():
    """Clients who point in opposite ways are then further apart: the high end takes
    them so.
    """
    weights = np.array([[math.sqrt(1.25), 0.0], [math.sqrt(1.25) / 2, math.sqrt(1.25)]])
    low, high = image_level(
        ledger(weights, rounds=2),
        ImageUse(images=np.array([[7], [7]]), rounds=np.array([0, 1])),
    )
    squares = [(5 / 4 + 1 + sign * 2 * 1 / 2) / (5 / 4) for sign in (-1, 1)]
    assert [low, high] == pytest.approx(
        [gaussian_epsilon(Z / math.sqrt(one), DELTA) for one in squares], rel=1e-9
    )


@pytest.mark.parametrize(
    "kind", ["poisson", "fixed-size", "poisson-lots", "own-records"]
)
def test_other_samplers_have_no_analysis(kind):
    with pytest.raises(
        BenchError,
        match=f"no analysis for correlated-gaussian noise with the sampler '{kind}'",
    ):
        find(MECHANISM, kind)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            lambda lines: [*lines[:3], dataclasses.replace(lines[3], combines=None)],
            "release 3 does not say which draws",
        ),
        (
            lambda lines: [*lines[:3], dataclasses.replace(lines[3], combines=[1.0])],
            "release 3 does not say which draws",
        ),
        (
            lambda lines: [
                *lines[:3],
                dataclasses.replace(lines[3], combines=[0.0] * 4),
            ],
            "release 3 does not say which",
        ),
        (
            lambda lines: [
                *lines[:3],
                dataclasses.replace(
                    lines[3], threshold=0.25, sensitivity=0.25, noise_std=0.5
                ),
            ],
            "release 3 has another threshold or noise than the first",
        ),
        # The square root without its scale: an observer is told more than z says.
        (
            lambda lines: ledger(SquareRoot().weights(4, Step()) / 1.2),
            "its encoder has a column of norm 1.2:",
        ),
        (lambda lines: [lines[0], *lines[2:]], "release 1 is of round 2"),
    ],
)
def test_ledgers_of_another_mechanism_are_refused(change, line):
    with pytest.raises(BenchError) as caught:
        account(change(ledger()), delta=DELTA, claims={})
    assert line in str(caught.value) and "\n" not in str(caught.value)


def test_the_ledger_keeps_the_weights_and_names_none_where_there_are_none(tmp_path):
    written = Ledger(tmp_path / "ledger.jsonl")
    for release in ledger(rounds=3):
        written.append(release)
    assert read_ledger(written.path) == ledger(rounds=3)
    plain = Ledger(tmp_path / "plain.jsonl")
    plain.append(ledger(rounds=1, mechanism="gaussian", combines=None)[0])
    assert "combines" not in plain.path.read_text()
    assert read_ledger(plain.path)[0].combines is None
