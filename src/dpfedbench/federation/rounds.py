"""What the training loop asks of a method's rounds, whoever takes the private sum in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from dpfedbench.accounting.budgets import BudgetPlan
from dpfedbench.privacy.ledger import Release

Row = dict[str, Any]
"""A row of history.csv."""

Observer = Callable[[Sequence[Release], Sequence[torch.Tensor]], None]
"""Sees what the ledger's observer sees: a round's lines of the ledger, and for each what left, which is the release
over the denominator (float64 [d]; [clients, d] or [clients] where each client makes it)."""


class Rounds(Protocol):
    """The rounds of one run: `server_sum.ServerSum` or `client_sums.ClientSums`.

    Attributes:
        budget: what may be spent; None where no privacy is claimed.
        lots: releases of the same kind that one round makes.
        non_finite: contributions of the last round that were not finite and counted as zero.
        columns: of history.csv, besides those that every run has.
        served: what a round's work is counted in.
    """

    budget: BudgetPlan | None
    lots: int
    non_finite: int
    columns: tuple[str, ...]
    served: str

    @property
    def net(self) -> Any:
        """The model's shapes."""
        ...

    @property
    def theta(self) -> np.ndarray:
        """The model's weights [d], as of now."""
        ...

    def round(self, index: int) -> tuple[Row, int]:
        """Run a round: its row of the history, and how much it served."""
        ...

    def validate(self) -> dict[str, float]:
        """Measures of the model on public validation data, for the history."""
        ...

    def test(self) -> dict[str, float]:
        """Measures on the test part, for the history; nothing in training may read them."""
        ...

    def state(self) -> dict[str, Any]:
        """Everything a restart needs."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""
        ...


class CohortClients(Protocol):
    """The clients of a `ServerSum`: of `task_clients`, `record_tasks` or `record_clients`.

    Attributes:
        columns: of history.csv, that their measures fill.
        each: contributions that each of them makes to the server's sum.
    """

    columns: tuple[str, ...]
    each: int

    @property
    def net(self) -> Any:
        """The model's shapes."""
        ...

    def stream(
        self, theta: np.ndarray, cohort: np.ndarray, index: int
    ) -> Iterator[tuple[torch.Tensor, np.ndarray, np.ndarray]]:
        """Yield (contributions float32 [n x each, d], losses [n], accuracies [n]) of round `index`, in cohort order.

        Memory grows with the chunk, never with the cohort; a yielded tensor is overwritten later.
        """
        ...

    def validate(self, theta: np.ndarray) -> dict[str, float]:
        """Measures of a model on public validation data, for the history."""
        ...

    def test(self, theta: np.ndarray) -> dict[str, float]:
        """Measures of a model on the test part, for the history; nothing in training may read them."""
        ...
