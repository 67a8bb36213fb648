"""SCAFFOLD (Karimireddy et al., Stochastic Controlled Averaging for Federated Learning,
2020): local steps corrected.

Each client k keeps a control variate c_k, at first 0, and the server one, c. A step
follows g_k(w) - c_k + c, and after K steps of rate r from w_t to w_k the client sends
two vectors (Algorithm 1, option II):

    w_t - w_k    and    c_k' - c_k = (w_t - w_k) / (K r) - c.

The server steps along the mean of the first, and adds to c the sum of the second over
the number of all clients, so that c stays the mean of all c_k. Where the second is
clipped, the client clips it too and keeps what it sent: else c would be the mean of
other control variates than those that clients take off.

The server takes a sum of each. Both are of the same client's contributions, so they
compose (`dpsum.sums.together`). What a client keeps follows from its own records and
from what everyone was sent, and leaves by these sums alone. It also follows from the
rounds that it took part in. Where these are known, or drawn for each client and round
apart from all others, that changes nothing of the account (docs/privacy.md); the
private method takes no other participation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal

from dpfedbench.errors import BenchError
from dpfedbench.lazy import np, torch
from dpfedbench.parts.client_updates.client_update import (
    CHUNK_PER_THREAD,
    Clients,
    Setup,
    Stream,
)
from dpfedbench.parts.client_updates.model_difference import ModelDifference, Trained
from dpfedbench.parts.optimizers.optimizer import Sgd

if TYPE_CHECKING:
    from dpfedbench.settings.run import Run

CONTROL = "control-difference-sum"


class Scaffold(ModelDifference):
    """The model difference of steps that control variates correct, and what the
    client's own moves by.
    """

    kind: Literal["scaffold"] = "scaffold"  # type: ignore[assignment]  # each kind has its name
    sends_too = (CONTROL,)
    keeps_state = True

    def check(self, run: Run) -> None:
        if self.optimizer != Sgd():
            raise BenchError(
                "client_update.optimizer has to be sgd without momentum: a control"
                " variate is the mean gradient of a client's steps, which is what its"
                " model moved by over their rates"
            )

    def clients(self, setup: Setup) -> Clients:
        return _Controlled(self, setup)


class _Controlled(Trained):
    """Clients with control variates. A client is always computed by the same process,
    which has its control variate.
    """

    divides = True

    def __init__(self, update: ModelDifference, setup: Setup) -> None:
        super().__init__(update, setup)
        self._processes, self._whole_rate = (
            setup.processes,
            update.inner_steps * update.inner_rate,
        )
        rule = next(
            (sum_.clipping for sum_ in setup.run.sums if sum_.name == CONTROL), None
        )
        self._threshold = math.inf if rule is None else float(rule.threshold)
        self._server = np.zeros(self.dimension, np.float32)
        self._own: dict[int, np.ndarray] = {}

    def followed(
        self,
        client: int,
        gradient: torch.Tensor,
        model: torch.Tensor,
        start: torch.Tensor,
    ) -> torch.Tensor:
        own = self._own.get(client)
        return gradient.add_(
            torch.from_numpy(self._server if own is None else self._server - own)
        )

    def contributions(
        self, theta: np.ndarray, cohort: np.ndarray, index: int
    ) -> Stream:
        """Both messages [2, n, d]; losses and accuracies are the broadcast model's on
        each client's records.
        """
        chunk = CHUNK_PER_THREAD * self._workers.count
        with self._workers.running() as pool:
            for start in range(0, len(cohort), chunk):
                ids = [int(client) for client in cohort[start : start + chunk]]
                rows, measures = (
                    np.zeros((2, len(ids), self.dimension), np.float32),
                    np.zeros((len(ids), 2)),
                )
                own = [
                    place for place, client in enumerate(ids) if self._is_own(client)
                ]
                outs = [rows[:, place] for place in own]
                made = pool.map(
                    self._both, repeat(theta), [ids[place] for place in own], outs
                )
                for place, measured in zip(own, made, strict=True):
                    measures[place] = measured
                for places, theirs, told in self._processes.collected(
                    (own, rows[:, own], measures[own])
                ):
                    rows[:, places], measures[places] = theirs, told
                yield torch.from_numpy(rows), measures[:, 0], measures[:, 1]

    def _both(self, theta: np.ndarray, client: int, out: np.ndarray) -> Sequence[float]:
        """Write both messages of a client to `out` [2, d], and move its control
        variate.
        """
        with self._workers.worker() as worker:
            measured = self.client(
                worker, theta, client, 0, None, torch.from_numpy(out[:1])
            )
        np.subtract(out[0] / self._whole_rate, self._server, out=out[1])
        norm = float(np.sqrt(np.square(out[1], dtype=np.float64).sum()))
        if self._threshold < norm < math.inf:
            out[1] *= self._threshold / norm
        if math.isfinite(norm):  # what is not finite counts as zero in the sum
            self._own[client] = (
                self._own.get(client, np.zeros_like(self._server)) + out[1]
            )
        return measured

    def _is_own(self, client: int) -> bool:
        return client % self._processes.count == self._processes.rank

    def hear(self, means: Sequence[np.ndarray]) -> None:
        self._server += means[0].astype(np.float32)

    def state(self) -> Any:
        kept: dict[int, torch.Tensor] = {}
        for theirs in self._processes.collected(
            {client: torch.from_numpy(own) for client, own in self._own.items()}
        ):
            kept |= theirs
        return {"server": torch.from_numpy(self._server.copy()), "own": kept}

    def restore(self, state: Any) -> None:
        self._server = state["server"].numpy().copy()
        self._own = {
            client: own.numpy()
            for client, own in state["own"].items()
            if self._is_own(client)
        }
