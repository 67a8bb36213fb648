"""Encoders of correlated noise: jax_privacy's errors, searches, column norms."""

import os
import subprocess
import sys

import numpy as np
import pytest

from dpfedbench.parts.optimizers.optimizer import Sgd
from dpfedbench.parts.schedules.schedule import Cosine
from dpfedbench.parts.server.server_step import Step
from dpsum.accounting.repeated_participation import sensitivity
from dpsum.factorisations import Banded, Optimised, SquareRoot, inverted

STEP = Step(rate=1.0, optimizer=Sgd(momentum=0.9))
ALL = [
    SquareRoot(),
    SquareRoot(band=3),
    Optimised(),
    Optimised(workload="server"),
    Banded(bands=3, workload="server"),
]


def prefix_sums(rounds):
    return np.tril(np.ones((rounds, rounds)))


def squared_error(workload, factorisation):
    """Return the squared error of all rounds of a workload matrix."""
    weights = factorisation.weights(len(workload), STEP)
    return float(((workload @ weights) ** 2).sum())


@pytest.mark.parametrize("rounds", [1, 2, 40])
@pytest.mark.parametrize("factorisation", ALL, ids=repr)
def test_encoder_has_largest_column_norm_one(factorisation, rounds):
    """A norm above 1 protects less than stated; below 1 noise is wasted."""
    weights = factorisation.weights(rounds, STEP)
    assert weights.shape == (rounds, rounds)
    assert weights.dtype == np.float64
    assert not np.triu(weights, 1).any()
    assert (np.diag(weights) > 0).all()
    encoder = inverted(weights)
    assert 1 - 1e-9 < np.linalg.norm(encoder, axis=0).max() <= 1
    if isinstance(factorisation, Banded):
        assert np.abs(np.tril(encoder, -factorisation.bands)).max() < 1e-12


# jax_privacy 2.0.0, matrix_factorization: `toeplitz.sensitivity_squared` and
# `per_query_error` of `optimal_max_error_strategy_coefs(T)`; `dense.optimize(T, A=A)`
# to a projected gradient of 1e-9, its mean error.
TOEPLITZ = {
    20: (2.0158898280871074, 1.7267322646540735),
    40: (2.238498512625106, 1.936162423399943),
}
DENSE = {"prefix": 3.0763760666835682, "server": 51.91917608451878}


@pytest.mark.parametrize("rounds", [20, 40])
def test_square_root_has_jax_privacys_errors(rounds):
    squared_sensitivity, mean = TOEPLITZ[rounds]
    errors = (prefix_sums(rounds) @ SquareRoot().weights(rounds, STEP)) ** 2
    expected = squared_sensitivity * mean
    assert errors.sum() / rounds == pytest.approx(expected, rel=1e-9)
    assert errors[-1].sum() == pytest.approx(squared_sensitivity**2, rel=1e-9)


@pytest.mark.parametrize("kind", ["prefix", "server"])
def test_optimised_has_jax_privacys_error(kind):
    """Both errors are above the least possible one, ours by at most 0.1 %."""
    workload = prefix_sums(20) if kind == "prefix" else STEP.response(20)
    error = squared_error(workload, Optimised(workload=kind)) / 20
    assert DENSE[kind] * (1 - 1e-5) < error < DENSE[kind] * (1 + 1e-3)


PRINT_BITS = """
import hashlib
from dpfedbench.parts.server.server_step import Step
from dpsum.factorisations import Banded, Optimised
for factorisation in (Optimised(), Banded(bands=20)):
    print(hashlib.sha256(factorisation.weights(120, Step()).tobytes()).hexdigest())
"""


def test_factorisations_have_the_same_bits_with_any_number_of_threads():
    """Each number has its own process: a library sets its threads when it is loaded."""
    outputs = set()
    for count in ("1", "2"):
        threads = {"OPENBLAS_NUM_THREADS": count, "OMP_NUM_THREADS": count}
        command = [sys.executable, "-c", PRINT_BITS]
        outputs.add(subprocess.check_output(command, env=os.environ | threads))
    assert len(outputs) == 1


def test_banded_encoder_of_two_and_three_rounds_by_a_search():
    """C of two rounds is [[cos a, 0], [sin a, 1]]; of three it has two angles."""

    def error(*angles):
        encoder = np.diag([*np.cos(angles), 1.0]) + np.diag(np.sin(angles), -1)
        decoder = prefix_sums(len(encoder)) @ np.linalg.inv(encoder)
        return float((decoder**2).sum())

    grid = np.linspace(0.0, 1.2, 241)
    least = {2: min(map(error, grid))}
    least[3] = min(error(a, b) for a in grid for b in grid)
    for rounds, expected in least.items():
        banded = squared_error(prefix_sums(rounds), Banded(bands=2))
        assert expected * (1 - 1e-4) < banded < expected * (1 + 1e-3)


def test_banded_encoder_with_more_bands_has_less_noise_and_costs_their_overlap():
    """Ten rounds apart, four times: ten bands move a client by 2, eleven further."""
    response = STEP.response(40)
    errors = [
        squared_error(response, Banded(bands=bands, workload="server"))
        for bands in (1, 3, 10, 40)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[2] < 0.2 * errors[0]
    assert errors[-1] == squared_error(response, Optimised(workload="server"))

    def moved(bands):
        encoder = inverted(Banded(bands=bands, workload="server").weights(40, STEP))
        return sensitivity(encoder.T @ encoder, 10, 4)

    low, high = moved(10)
    assert low <= high
    assert [low, high] == pytest.approx([2.0, 2.0], rel=1e-4)
    low, high = moved(11)
    assert high >= low > 2.002


def test_server_response_by_hand():
    """Momentum 1/2, rate 2: a unit moves the model by 2, then 1, then 1/2 more."""
    step = Step(rate=2.0, optimizer=Sgd(momentum=0.5))
    assert step.response(3).tolist() == [[2, 0, 0], [3, 2, 0], [3.5, 3, 2]]
    falling = Step(rate=2.0, optimizer=Sgd(), schedule=Cosine())
    assert falling.response(2) == pytest.approx(np.array([[2, 0], [2, 1]]))
