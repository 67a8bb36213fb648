"""Parties that hold records and share one model, which they move together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dpfedbench.lazy import np, torch
from dpfedbench.training.clients import Clients
from dpfedbench.training.distributed import Stream
from dpfedbench.training.history import Row

Move = Callable[["torch.Tensor", int, Any], Row]
"""Function that moves a model [d] in place in a round, with the state of the parties'
optimisers, and returns the round's row of the history.
"""


class PartyClients(Clients):
    """Parties that share one model, and move it together in each round.

    Args:
        move: moves the model in a round.
        state: state of the parties' optimisers, which a checkpoint saves.
        records: number of records of a round.
    """

    unit = "records"
    divides = True

    def __init__(self, move: Move, state: Any, records: int) -> None:
        self.move = move
        self._state = state
        self._records = records
        self._row: Row = {}

    def contributions(
        self, theta: np.ndarray, cohort: np.ndarray, index: int
    ) -> Stream:
        """Yield the model that all parties have after the round, as one row."""
        model = torch.from_numpy(theta.copy())
        self._row = self.move(model, index, self._state)
        yield model[None], np.zeros(0)

    def row(self) -> Row:
        return self._row

    def work(self, cohort: np.ndarray) -> int:
        return self._records

    def state(self) -> Any:
        return self._state

    def restore(self, state: Any) -> None:
        self._state = state
