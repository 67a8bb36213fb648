"""Local privacy: what another update makes, clipped and noised by the client itself
before it is sent.

Li et al. (Differentially Private Meta-Learning, 2020, Section 4): DP-FedAvg (McMahan et
al. 2018) with the noise added to each clipped update, and not to their sum. The server
learns of all that a client holds no more than this one release tells.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from dpfedbench.lazy import np, torch
from dpfedbench.parts.client_updates.client_update import (
    Clients,
    ClientUpdate,
    Row,
    Setup,
    Stream,
)
from dpfedbench.parts.participation.participation import Participation
from dpfedbench.settings.part import setting
from dpfedbench.settings.run import Run
from dpsum import participation
from dpsum.sampling import Sampler

if TYPE_CHECKING:
    from dpfedbench.models.net import Net

OWN_UPDATE = "own-update"


class Noised(ClientUpdate):
    """Each contribution of another update as the client's own private sum over itself
    alone.

    It has no kind, so that it is in no configuration: a method lays it around its
    client update.
    """

    sends = "noised-update-sum"
    keeps_state = None  # each client takes part once
    client_data: ClassVar[str] = "tasks"

    update: ClientUpdate = setting(doc="what is noised")

    def net(self, net: Net) -> Net:
        return self.update.net(net)

    def adapted(self, net: Net) -> Sequence[str] | None:
        return self.update.adapted(net)

    def samplers(self, run: Run, records: int) -> dict[str, Sampler]:
        return {OWN_UPDATE: _sampler(run)}

    def clients(self, setup: Setup) -> Clients:
        return NoisedClients(
            setup, self.update.clients(dataclasses.replace(setup, own=()))
        )


def _sampler(run: Run) -> Sampler:
    plan = run.part(Participation)
    return participation.own_update(
        clients=run.clients.count, cohort=plan.cohort, rounds=plan.rounds
    )


class NoisedClients(Clients):
    """Clients that noise what they would send.

    Args:
        setup: of the run; its one own sum is theirs.
        inner: the clients without it; each makes one contribution.
    """

    def __init__(self, setup: Setup, inner: Clients) -> None:
        self._inner, run = inner, setup.run
        self.served, self.divides = inner.served, inner.divides
        (sum_,) = setup.own
        given = sum_.within_task
        assert given is not None and inner.each == 1
        self._entry = setup.enter(
            sum_,
            sampler=_sampler(run),
            denominator=1.0,
            dimension=setup.net.dimension,
            indices=("round", "client"),
            multiplier=given.noise_multiplier({OWN_UPDATE: _sampler(run)}, run.claims),
        )

    def contributions(
        self, theta: np.ndarray, cohort: np.ndarray, index: int
    ) -> Stream:
        """What the clients release; no loss of theirs is told."""
        done = 0
        for rows, _, _ in self._inner.contributions(theta, cohort, index):
            for row, client in zip(rows, cohort[done : done + len(rows)], strict=True):
                own = self._entry.open(index, holder=int(client))
                own.add(row[None])
                row.copy_(torch.from_numpy(self._entry.end(own)))
            done += len(rows)
            yield rows, np.zeros(0), np.zeros(0)
        self._entry.write(index)

    def row(self) -> Row | None:
        return self._inner.row()

    def work(self, cohort: np.ndarray) -> int | None:
        return self._inner.work(cohort)

    def state(self) -> Any:
        return self._inner.state()

    def restore(self, state: Any) -> None:
        self._inner.restore(state)
