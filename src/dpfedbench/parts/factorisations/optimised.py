"""The factorisation of the least total error for the planned rounds (Denisov et al. 2022, Theorem 3.2)."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Literal

from dpfedbench.errors import BenchError
from dpfedbench.parts.factorisations.factorisation import Factorisation, inverted, scaled
from dpfedbench.settings.part import setting

if TYPE_CHECKING:
    import numpy as np
    import torch

    from dpfedbench.parts.server.server_step import ServerStep

_STEPS, _CLOSE = 200, 1e-3
"""The search ends at either: the least error is flat, and any encoder is as private."""

_RIDGE = 1e-6

_DIGITS = 2.0**-30
"""The encoder is rounded to it: what machines make of the last digits moves its noise seldom."""

MOST = 2000
"""Rounds up to which it is computed: each step of the search takes the eigenvalues of a [T, T] matrix."""


class Optimised(Factorisation):
    """The encoder C of least total squared error of all models, |A C^-1|_F^2 at columns of norm 1.

    `prefix`: A is all ones. `server`: A is what the server's own step makes of a unit in each round's mean, momentum
    and schedule included; its step has to be linear.
    """

    kind: Literal["optimised"] = "optimised"
    workload: Literal["prefix", "server"] = setting("prefix", doc="what A is: prefix sums, or the server's steps")

    def check(self, run: Any) -> None:
        if run.participation.rounds > MOST:
            raise BenchError(
                f"participation.rounds is {run.participation.rounds}, but an optimised factorisation is found for at "
                f"most {MOST}: take noise.factorisation.kind square-root"
            )
        if self.workload == "server" and not run.server.linear:
            raise BenchError(
                f"noise.factorisation.workload is server, but server.optimizer {run.server.optimizer.kind} takes steps "
                "that are not linear in the sums: take sgd, or workload prefix"
            )

    def weights(self, rounds: int, step: ServerStep) -> np.ndarray:
        import numpy as np

        workload = np.tril(np.ones((rounds, rounds))) if self.workload == "prefix" else response(step, rounds)
        return _weights(rounds, workload.tobytes()).copy()


def response(step: ServerStep, rounds: int) -> np.ndarray:
    """How far the model has moved after each round for a unit in the mean of each, float64 [after, of]."""
    import numpy as np
    import torch

    model = torch.zeros(rounds, dtype=torch.float64)
    state, moved = step.begin(model), np.zeros((rounds, rounds))
    for index in range(rounds):
        unit = torch.zeros(rounds, dtype=torch.float64)
        unit[index] = 1.0
        step.step(model, unit, state, index=index, rounds=rounds)
        moved[index] = -model.numpy()
    return moved


@functools.lru_cache(maxsize=16)
def _weights(rounds: int, workload: bytes) -> np.ndarray:
    import numpy as np

    if not rounds:
        return np.zeros((0, 0))
    import torch

    moved = torch.tensor(np.frombuffer(workload).reshape(rounds, rounds))
    # One thread, so that the bits are those of any number.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        square = gram(moved.T @ moved)
        # gram = C^T C with C lower triangular: Cholesky from the last coordinate to the first.
        encoder = torch.linalg.cholesky(square.flip(0, 1)).flip(0, 1).T.numpy()
    finally:
        torch.set_num_threads(threads)
    return scaled(inverted(np.round(encoder / _DIGITS) * _DIGITS))


def gram(squares: torch.Tensor) -> torch.Tensor:
    """The X with ones on its diagonal that makes the trace of `squares` X^-1 nearly least, both float64 [T, T].

    X = D^-1/2 (D^1/2 squares D^1/2)^1/2 D^-1/2, where the diagonal D is that of the root itself: a fixed point.
    """
    import torch

    # Steps at a rate of almost nothing would have noise without end.
    squares = squares + _RIDGE * squares.diagonal().mean() * torch.eye(len(squares), dtype=squares.dtype)
    diagonal = squares.diagonal().sqrt()
    for _ in range(_STEPS):
        half = diagonal.sqrt()
        values, vectors = torch.linalg.eigh(half[:, None] * squares * half)
        root = (vectors * values.clamp(min=0.0).sqrt()) @ vectors.T
        found = root.diagonal()
        done, diagonal = bool((found / diagonal - 1).abs().max() < _CLOSE), found
        if done:
            break
    size = root.diagonal().sqrt()
    return root / (size[:, None] * size)
