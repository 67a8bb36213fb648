"""Parties that hold records and keep one model: each (privately) sums over lots, and all step along the sums' sum.

    for each phase:  each party's lot -> per-record gradients of a block of the model -> (private) sum
                     all parties' sums, over the expected lot -> one step of that block

A phase sees the model as the phase before left it. What a phase reads may be a part of each party's records, and no
record is in two parts. Since all parties have the same model, what a party sees of the others is their sums' sum.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dpfedbench.errors import BenchError
from dpfedbench.parts.client_updates.client_update import Clients, Row, Setup, Stream, each_holder
from dpfedbench.parts.participation.participation import Participation
from dpsum.accounting.units import cannot_compose
from dpsum.mechanism import Mechanism
from dpsum.private_sum import PlainSum
from dpsum.randomness import stream

if TYPE_CHECKING:
    from dpfedbench.parts.step_of_sum import StepOfSum
    from dpsum.participation import PoissonLots
    from dpsum.sums import Sum


class _Cut(PlainSum):
    """A plain sum of gradients that are cut to a norm: clipping without noise, which protects nobody."""

    def __init__(self, *, dimension: int, norm: float) -> None:
        super().__init__(dimension=dimension)
        self._norm = norm

    @property
    def _limit(self) -> float:
        return self._norm


@dataclasses.dataclass
class _Phase:
    """A sum of each party, and the step that follows it."""

    name: str
    steps: StepOfSum
    block: str
    place: slice
    lots: PoissonLots
    entry: Mechanism
    state: dict[str, Any]


class Parties(Clients):
    """The parties of a run.

    Args:
        setup: of the run; its own sums are the phases, in this order.
        steps: the step that follows each sum, by the sum's name.
        block_of: the block of the model that a sum is of; "": all of it.
        lots: of a sum, of so many clients that each hold so many records which it may read.
        places: which of a client's records a sum is over.
        told: what the history says of a model.
        mean: whether a step follows the mean over all parties' lots; else the sum of each party's mean.
    """

    served = "records"
    divides = True

    def __init__(
        self, setup: Setup, *, steps: Mapping[str, StepOfSum], block_of: Callable[[Sum], str],
        lots: Callable[..., PoissonLots], places: Callable[..., np.ndarray], told: Callable[[torch.Tensor], Row],
        mean: bool,
    ) -> None:  # fmt: skip
        self._setup, self._told, self._mean = setup, told, mean
        run, net, self._held = setup.run, setup.net, setup.held
        self._count, held = len(self._held.images), len(self._held.images[0])
        self._workers = setup.workers(lambda gradients: gradients)
        blocks = net.blocks
        theta = torch.from_numpy(net.initial(stream(run.seed, "initial-weights")).copy())
        self._phases = list[_Phase]()
        for sum_ in setup.own:
            name = block_of(sum_)
            place = blocks[name] if name else slice(0, net.dimension)
            size = len(places(sum_, seed=run.seed, client=0, records=held))
            drawn = lots(sum_, clients=self._count, records=size)
            for other in self._phases:
                if sum_.private and other.entry.sum.part == sum_.part and other.lots.purpose != drawn.purpose:
                    # Described alike in the ledger, where releases of one lot are one Gaussian; of two they are not.
                    names = other.name, sum_.name
                    raise BenchError(cannot_compose(*names, sum_.unit, sum_.part, "draw lots of their own"))
            cut = steps[sum_.name].cut
            entry = setup.enter(
                sum_, sampler=drawn.describe(), denominator=drawn.denominator, dimension=place.stop - place.start,
                indices=("round", "client"), holders=self._count,
                plain=lambda dimension, cut=cut: _Cut(dimension=dimension, norm=cut or math.inf),
            )  # fmt: skip
            phase = _Phase(sum_.name, steps[sum_.name], name, place, drawn, entry, steps[sum_.name].begin(theta[place]))
            self._phases.append(phase)
        self._places = [
            [places(sum_, seed=run.seed, client=client, records=held) for client in range(self._count)]
            for sum_ in setup.own
        ]
        self._rounds = run.part(Participation).rounds
        self._row: Row = {}

    def contributions(self, theta: np.ndarray, cohort: np.ndarray, index: int) -> Stream:
        """The model that all parties have after the round: one row."""
        model = torch.from_numpy(theta.copy())
        row: Row = {"clients": self._count}
        with self._workers.running() as pool:
            for phase, places in zip(self._phases, self._places, strict=True):

                def party(client: int, phase: _Phase = phase, places: list[np.ndarray] = places) -> Any:
                    return self._party(phase, places[client], model.numpy(), index, client)

                parties = each_holder(phase.entry, self._setup.processes, pool, party)
                total = torch.stack([released for released, _, _ in parties]).sum(dim=0)
                row |= self._said(phase, parties, total, first=phase is self._phases[0])
                if phase.entry.sum.private:
                    phase.entry.write(index)
                mean = total / (phase.lots.denominator * (self._count if self._mean else 1))
                phase.steps.step(
                    model[phase.place],
                    mean,
                    phase.state,
                    index=index,
                    rounds=self._rounds,
                )
        self._row = row | self._told(model)
        yield model[None], np.zeros(0), np.zeros(0)

    def _party(
        self, phase: _Phase, places: np.ndarray, theta: np.ndarray, index: int, client: int
    ) -> tuple[torch.Tensor, np.ndarray, Sequence[float]]:
        """One party's lot and what it releases [block]; where nothing is claimed also losses and norms."""
        chosen = places[phase.lots.lot(index, 0, client)]
        images, labels = self._held.images[client][chosen], self._held.labels[client][chosen]
        total = phase.entry.open(index, holder=client)
        with self._workers.worker() as gradients:
            measured, _ = gradients.add_each(theta, images, labels, total, block=phase.block)
        raw = [] if phase.entry.sum.private else total.norms
        return torch.from_numpy(phase.entry.end(total)), measured.losses, raw

    def _said(
        self, phase: _Phase, parties: Sequence[tuple[torch.Tensor, np.ndarray, Sequence[float]]], total: torch.Tensor,
        *, first: bool,
    ) -> Row:  # fmt: skip
        """What the history may say of a phase: everyone reads it, so of a private one it follows from the total alone.

        What the server sees of each party by itself has the noise of one, and not of all.
        """
        entry = phase.entry
        row: Row = {"released_norm": float(total.norm())}
        if entry.sum.private:
            row["noise_multiplier"] = entry.noise_multiplier
            if first:
                row["threshold"] = entry.states[0]["threshold"]
        else:
            raw = np.concatenate([np.asarray(each) for _, _, each in parties])
            row["mean_norm"] = float(raw.mean()) if len(raw) else float("nan")
            losses = np.concatenate([each for _, each, _ in parties])
            if first:
                row["loss"] = float(losses.mean()) if len(losses) else float("nan")
        return row if first else {f"{phase.name}_{key}": value for key, value in row.items()}

    def row(self) -> Row:
        return self._row

    def work(self, cohort: np.ndarray) -> int:
        return self._count * sum(phase.lots.size for phase in self._phases)

    def state(self) -> Any:
        return [phase.state for phase in self._phases]

    def restore(self, state: Any) -> None:
        for phase, saved in zip(self._phases, state, strict=True):
            phase.state = saved
