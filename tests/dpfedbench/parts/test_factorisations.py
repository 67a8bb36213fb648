"""Encoders of correlated noise: closed forms, the figures of jax_privacy, column norms,
what is refused.
"""

import os
import subprocess
import sys

import numpy as np
import pytest

from dpfedbench.errors import BenchError
from dpfedbench.parts.optimizers.optimizer import Sgd
from dpfedbench.parts.schedules.schedule import Cosine
from dpfedbench.parts.server.server_step import Step
from dpfedbench.settings.part import kinds_of
from dpsum.accounting.repeated_participation import sensitivity
from dpsum.factorisations import Banded, Factorisation, Optimised, SquareRoot, inverted
from tests.dpfedbench.federation.conftest import make_config

STEP = Step(rate=1.0, optimizer=Sgd(momentum=0.9))
ALL = [
    SquareRoot(),
    SquareRoot(band=3),
    Optimised(),
    Optimised(workload="server"),
    Banded(bands=3, workload="server"),
]


def test_these_are_all_there_are():
    assert set(kinds_of(Factorisation)) == {"square-root", "optimised", "banded"}


@pytest.mark.parametrize("rounds", [1, 2, 7, 40])
@pytest.mark.parametrize("factorisation", ALL, ids=repr)
def test_the_largest_column_of_the_encoder_has_norm_one(factorisation, rounds):
    """Not above 1, where privacy would be less than stated; and not below, where noise
    would be wasted.
    """
    weights = factorisation.weights(rounds, STEP)
    assert weights.shape == (rounds, rounds) and weights.dtype == np.float64
    assert not np.triu(weights, 1).any() and (np.diag(weights) > 0).all()
    norms = np.linalg.norm(inverted(weights), axis=0)
    assert 1 - 1e-9 < norms.max() <= 1


def test_the_square_root_by_hand():
    """(1 - x)^(1/2) = 1 - x/2 - x^2/8 - x^3/16 ..., its inverse 1 + x/2 + 3x^2/8 +
    5x^3/16 ...
    """
    weights = SquareRoot().weights(4, STEP)
    norm = np.sqrt(1 + 1 / 4 + 9 / 64 + 25 / 256)
    assert weights[3] == pytest.approx(
        norm * np.array([-1 / 16, -1 / 8, -1 / 2, 1]), rel=1e-11
    )
    assert norm * inverted(weights)[:, 0] == pytest.approx(
        [1, 1 / 2, 3 / 8, 5 / 16], rel=1e-11
    )
    encoder = inverted(weights) * norm
    assert encoder @ encoder == pytest.approx(np.tril(np.ones((4, 4))), abs=1e-11)


def test_a_band_keeps_as_many_draws():
    weights = SquareRoot(band=2).weights(5, STEP)
    # The inverse of 1 - x/2 is 1 + x/2 + x^2/4 ..., of squared norm (1 - 4^-5) / (1 -
    # 1/4).
    norm = np.sqrt((1 - 4.0**-5) / (1 - 1 / 4))
    assert weights[4] == pytest.approx(norm * np.array([0, 0, 0, -1 / 2, 1]), rel=1e-11)
    assert SquareRoot(band=1).weights(5, STEP) == pytest.approx(np.eye(5), rel=1e-11)


# jax_privacy 2.0.0, matrix_factorization: `toeplitz.sensitivity_squared` and
# `per_query_error` of `optimal_max_error_strategy_coefs(T)`; `dense.optimize(T, A=A)`
# to a projected gradient of 1e-9, its mean error.
TOEPLITZ = {
    20: (2.0158898280871074, 1.7267322646540735),
    40: (2.238498512625106, 1.936162423399943),
}
DENSE = {("prefix", 20): 3.0763760666835682, ("server", 20): 51.91917608451878}


@pytest.mark.parametrize("rounds", [20, 40])
def test_the_square_root_has_jax_privacys_errors(rounds):
    sensitivity, mean = TOEPLITZ[rounds]
    errors = (
        np.tril(np.ones((rounds, rounds))) @ SquareRoot().weights(rounds, STEP)
    ) ** 2
    assert errors.sum() / rounds == pytest.approx(sensitivity * mean, rel=1e-9)
    assert errors[-1].sum() == pytest.approx(sensitivity**2, rel=1e-9)


@pytest.mark.parametrize("workload", ["prefix", "server"])
def test_the_optimised_has_jax_privacys_error(workload):
    """Of both none is below the least there is; ours is found to a part in a
    thousand.
    """
    moved = np.tril(np.ones((20, 20))) if workload == "prefix" else STEP.response(20)
    error = ((moved @ Optimised(workload=workload).weights(20, STEP)) ** 2).sum() / 20
    least = DENSE[workload, 20]
    assert least * (1 - 1e-5) < error < least * (1 + 1e-3)


def test_the_optimised_is_better_than_the_square_root():
    for workload, moved in (
        ("prefix", np.tril(np.ones((30, 30)))),
        ("server", STEP.response(30)),
    ):
        errors = [
            ((moved @ one.weights(30, STEP)) ** 2).sum()
            for one in (Optimised(workload=workload), SquareRoot())
        ]
        assert errors[0] < errors[1] < (moved**2).sum()


def test_threads_change_no_bit():
    """In processes of their own, since a library takes its threads when it is
    loaded.
    """
    code = (
        "from dpsum.factorisations import Banded, Optimised; from"
        " dpfedbench.parts.server.server_step import Step; import hashlib, sys; found ="
        " (one.weights(120, Step()).tobytes() for one in (Optimised(),"
        " Banded(bands=20))); print(*(hashlib.sha256(one).hexdigest() for one in"
        " found), 'torch' in sys.modules)"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            text=True,
            env=os.environ
            | {
                "OPENBLAS_NUM_THREADS": str(count),
                "OMP_NUM_THREADS": str(count),
            },
        ).stdout
        for count in (1, 2)
    }
    # Nothing but what the environment names has threads here.
    assert len(found) == 1 and found.pop().endswith("False\n")


@pytest.mark.parametrize("workload", ["prefix", "server"])
@pytest.mark.parametrize("bands", [1, 2, 5, 12])
def test_a_banded_encoder_has_its_bands_and_columns_of_norm_one(workload, bands):
    encoder = inverted(Banded(bands=bands, workload=workload).weights(12, STEP))
    apart = np.subtract.outer(np.arange(12), np.arange(12))
    assert np.abs(encoder[(apart >= bands) | (apart < 0)]).max(initial=0) < 1e-12
    assert np.linalg.norm(encoder, axis=0) == pytest.approx(
        1, abs=2e-3 if bands == 12 else 1e-4
    )
    if bands == 1:
        assert encoder == pytest.approx(np.eye(12), rel=1e-9)


def test_the_banded_encoder_of_two_rounds_by_hand():
    """Prefix sums of two rounds and C = [[cos a, 0], [sin a, 1]], the only form: the
    error is least by a search over a.

    Of three rounds and two bands there are two angles.
    """
    prefix = np.tril(np.ones((3, 3)))

    def error(*angles):
        count = len(angles) + 1
        encoder = np.diag([*np.cos(angles), 1.0]) + np.diag(np.sin(angles), -1)
        return float(((prefix[:count, :count] @ np.linalg.inv(encoder)) ** 2).sum())

    grid = np.linspace(0.0, 1.2, 241)
    least = {
        2: min(error(a) for a in grid),
        3: min(error(a, b) for a in grid for b in grid),
    }
    for rounds, wanted in least.items():
        found = (
            (prefix[:rounds, :rounds] @ Banded(bands=2).weights(rounds, STEP)) ** 2
        ).sum()
        assert wanted * (1 - 1e-4) < found < wanted * (1 + 1e-3)


def test_more_bands_leave_less_noise_and_cost_their_overlap():
    """Ten rounds apart, four participations: ten bands move a client by 2, the eleventh
    moves it further.
    """
    moved, errors = STEP.response(40), []
    for bands in (1, 3, 10, 40):
        errors.append(
            (
                (moved @ Banded(bands=bands, workload="server").weights(40, STEP)) ** 2
            ).sum()
        )
    assert errors == sorted(errors, reverse=True) and errors[2] < 0.2 * errors[0]
    assert (
        errors[-1]
        == ((moved @ Optimised(workload="server").weights(40, STEP)) ** 2).sum()
    )
    for bands, most in ((10, 2.0), (11, None)):
        encoder = inverted(Banded(bands=bands, workload="server").weights(40, STEP))
        low, high = sensitivity(encoder.T @ encoder, 10, 4)
        assert (
            (low == high == pytest.approx(2.0, rel=1e-4))
            if most
            else high >= low > 2.002
        )


def test_what_the_servers_steps_make_of_a_unit():
    """By hand: momentum 1/2, rate 2: a unit moves the model by 2, then 1, then 1/2
    more.
    """
    step = Step(rate=2.0, optimizer=Sgd(momentum=0.5))
    assert step.response(3).tolist() == [[2, 0, 0], [3, 2, 0], [3.5, 3, 2]]
    falling = Step(rate=2.0, optimizer=Sgd(), schedule=Cosine())
    assert falling.response(2) == pytest.approx(np.array([[2, 0], [2, 1]]))


def test_a_schedule_that_falls_to_nothing_is_covered():
    step = Step(rate=1.0, optimizer=Sgd(momentum=0.9), schedule=Cosine())
    moved = step.response(60)
    errors = [
        ((moved @ one.weights(60, step)) ** 2).sum()
        for one in (Optimised(workload="server"), SquareRoot())
    ]
    assert errors[0] < errors[1]


@pytest.mark.parametrize(
    ("overlay", "line"),
    [
        (
            {"kind": "square-root", "band": 0},
            "noise.factorisation.band is 0",
        ),
        (
            {"kind": "optimised", "workload": "server"},
            "noise.factorisation.workload is server, but server.optimizer ad",
        ),
        (
            {"kind": "banded", "bands": 0},
            "noise.factorisation.bands is 0",
        ),
        (
            {"kind": "banded", "workload": "server"},
            (
                "noise.factorisation.workload is server, but server.optimizer adam"
                " takes steps that are not linear"
            ),
        ),
        (
            {"kind": "optimised", "band": 3},
            "unknown key noise.factorisation.band",
        ),
    ],
)
def test_bad_values_are_one_line(overlay, line):
    with pytest.raises(BenchError) as caught:
        make_config(
            {
                "method": "dp-agr-ftrl",
                "server": {"optimizer": "adam"},
                "noise": {"factorisation": overlay},
            }
        )
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value)


def test_too_many_rounds_to_optimise_for_are_refused():
    with pytest.raises(BenchError, match="found for at most 2000"):
        make_config(
            {
                "method": "dp-agr-ftrl",
                "clients": {"count": 12000},
                "noise": {"factorisation": "optimised"},
            },
            {"participation": {"rounds": 3000}},
        )
