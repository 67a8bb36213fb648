"""Steps of all parties along the sum of their (private) sums over lots: DP-SGD of
records that several parties hold.

    for each phase:  each party's lot -> per-record gradients of a block of the model -> (private) sum
                     all parties' sums, over the expected lot -> one step of that block

The parties share one model. Each phase uses the model after the phase before. A phase
may read a part of each party's records only, and no record is in two parts. Because all
parties have the same model, a party sees of the others no more than the sum of their
sums.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from dpfedbench.config.part import setting
from dpfedbench.errors import BenchError
from dpfedbench.lazy import np, torch
from dpfedbench.parts.step_of_sum import StepOfSum
from dpfedbench.training.client_updates.client_update import (
    Clients,
    ClientUpdate,
    Setup,
    SharedModelClients,
    each_holder,
)
from dpfedbench.training.history import Row
from dpsum import participation
from dpsum.accounting.units import cannot_compose
from dpsum.private_sum import PlainSum
from dpsum.sampling import Sampler
from dpsum.sums import SumSpec

if TYPE_CHECKING:
    from dpfedbench.models.net import Net
    from dpfedbench.run import Run
    from dpsum.mechanism import Mechanism


class SummedUpdate(ClientUpdate):
    """Base of the updates whose parties share one model.

    Each sum of a party (`Run.client_sums`) is a phase of a round.
    """

    client_data = "records"
    sends = "gradient-sum"
    by_record = True
    keeps_state = False  # optimisers follow releases
    columns_are_released = True

    parties: Literal["mean", "sum"] = setting(
        "mean",
        doc=(
            "mean: a step follows the mean over all parties' lots; sum: the sum of each"
            " party's mean"
        ),
        paper="sum",
    )

    @property
    def steps(self) -> Mapping[str, StepOfSum]:
        """Step that follows each sum, by the sum's name, in the order of a round."""
        raise NotImplementedError

    def block_of(self, sum_: SumSpec) -> str:
        """Return the block of the model that a sum belongs to; "": all of it."""
        return ""

    def public_columns(self, run: Run, net: Net) -> Callable[[torch.Tensor], Row]:
        """Return a function from released weights [d] to columns of the history."""
        return lambda theta: {}

    def lots(
        self, run: Run, sum_: SumSpec, *, clients: int, records: int
    ) -> participation.RecordLots:
        """Return the lots of a sum.

        Args:
            run: the run.
            sum_: the sum.
            clients: number of clients.
            records: number of records of each client that the sum may read.
        """
        return run.participation.lots(
            clients=clients,
            seed=run.stream_seed,
            steps=1,
            records=records,
            purpose=f"lot/{sum_.part}" if sum_.part else "lot",
            holder_name=f"the {sum_.part} of a client" if sum_.part else "a client",
        )

    def samplers(self, run: Run, records: int) -> dict[str, Sampler]:
        clients = run.clients.count
        return {
            sum_.name: self.lots(run, sum_, clients=clients, records=records).describe()
            for sum_ in run.client_sums
        }

    def columns(self, run: Run) -> tuple[str, ...]:
        quantities = (
            "released_norm",
            "noise_multiplier" if run.private else "mean_norm",
        )
        return tuple(
            f"{name}_{quantity}"
            for name in list(self.steps)[1:]
            for quantity in quantities
        )

    def clients(self, setup: Setup) -> Clients:
        return Parties(self, setup)


class SummedSteps(SummedUpdate):
    """One step of the whole model in each round, along the sum over all records."""

    kind: Literal["summed-steps"] = "summed-steps"

    weights: StepOfSum = setting(StepOfSum(), doc="step of the model's weights")

    @property
    def steps(self) -> Mapping[str, StepOfSum]:
        return {self.sends: self.weights}

    def check(self, run: Run) -> None:
        if getattr(run.model, "auxiliary", False):
            raise BenchError(
                "model.auxiliary is true, but client_update.kind summed-steps has no"
                " loss for a second classifier: set it to false, or take batch-steps"
                " for training without privacy"
            )


class _Cut(PlainSum):
    """Plain sum of gradients that are clipped to a norm, without noise or privacy."""

    def __init__(self, *, dimension: int, norm: float) -> None:
        super().__init__(dimension=dimension)
        self._norm = norm

    @property
    def _limit(self) -> float:
        return self._norm


@dataclasses.dataclass
class _Phase:
    """One sum of each party over the records at `record_positions`, and the step after it."""

    steps: StepOfSum
    block: str
    coordinates: slice
    record_positions: list[np.ndarray]
    lots: participation.RecordLots
    mechanism: Mechanism


class Parties(SharedModelClients):
    """Parties of a run."""

    def __init__(self, update: SummedUpdate, setup: Setup) -> None:
        super().__init__()
        self._update = update
        self._setup = setup
        self._public_columns = update.public_columns(setup.run, setup.net)
        run = setup.run
        net = setup.net
        self._held = setup.held
        self._count, held = len(self._held.images), len(self._held.images[0])
        self._workers = setup.workers(lambda gradients: gradients)
        self._rounds = run.participation.rounds
        self._phases = list[_Phase]()
        self._state = []
        for sum_ in setup.client_sums:
            block = update.block_of(sum_)
            steps = update.steps[sum_.name]
            coordinates = net.blocks[block] if block else slice(0, net.dimension)
            indices = [
                update.record_subset(sum_, seed=run.seed, client=client, records=held)
                for client in range(self._count)
            ]
            drawn = update.lots(run, sum_, clients=self._count, records=len(indices[0]))
            for earlier in self._phases:
                if (
                    sum_.private
                    and earlier.mechanism.spec.part == sum_.part
                    and earlier.lots.purpose != drawn.purpose
                ):
                    # The ledger describes both sums alike. An account takes releases
                    # of one lot as one Gaussian release; releases of two lots are
                    # not one.
                    raise BenchError(
                        cannot_compose(
                            earlier.mechanism.spec.name,
                            sum_.name,
                            sum_.unit,
                            sum_.part,
                            "draw their own lots",
                        )
                    )
            mechanism = setup.create_mechanism(
                sum_,
                participation=drawn,
                dimension=coordinates.stop - coordinates.start,
                stream_indices=("round", "client"),
                holders=self._count,
                plain_sum=lambda dimension, cut=steps.cut: _Cut(
                    dimension=dimension, norm=cut or math.inf
                ),
            )
            self._state.append(steps.begin(torch.zeros(mechanism.dimension)))
            self._phases.append(
                _Phase(steps, block, coordinates, indices, drawn, mechanism)
            )

    def move(self, model: torch.Tensor, index: int) -> Row:
        row: Row = {"clients": self._count}
        with self._workers.running() as pool:
            for phase, state in zip(self._phases, self._state, strict=True):

                def party(client: int, phase: _Phase = phase) -> Any:
                    return self._party(phase, model.numpy(), index, client)

                parties = each_holder(
                    phase.mechanism, self._setup.processes, pool, party
                )
                total = torch.stack([released for released, _, _ in parties]).sum(dim=0)
                row |= self._phase_columns(
                    phase, parties, total, first=phase is self._phases[0]
                )
                if phase.mechanism.spec.private:
                    phase.mechanism.write(index)
                mean = total / (
                    phase.lots.denominator
                    * (self._count if self._update.parties == "mean" else 1)
                )
                phase.steps.step(
                    model[phase.coordinates],
                    mean,
                    state,
                    index=index,
                    rounds=self._rounds,
                )
        return row | self._public_columns(model)

    def _party(
        self, phase: _Phase, theta: np.ndarray, index: int, client: int
    ) -> tuple[torch.Tensor, np.ndarray, Sequence[float]]:
        """Return one party's release [block], its losses and its raw norms.

        A private sum has no raw norms.
        """
        chosen = phase.record_positions[client][phase.lots.lot(index, 0, client)]
        images = self._held.images[client][chosen]
        labels = self._held.labels[client][chosen]
        total = phase.mechanism.begin_round(index, holder=client)
        with self._workers.worker() as gradients:
            losses, _ = gradients.add_record_gradients(
                theta, images, labels, total, block=phase.block
            )
        raw = [] if phase.mechanism.spec.private else total.norms
        return torch.from_numpy(phase.mechanism.finish(total)), losses, raw

    def _phase_columns(
        self,
        phase: _Phase,
        parties: Sequence[tuple[torch.Tensor, np.ndarray, Sequence[float]]],
        total: torch.Tensor,
        *,
        first: bool,
    ) -> Row:
        """Return the columns of the history for one phase.

        Everyone reads the history, so that the columns of a private phase follow from
        the total alone. The server's view of a single party has the noise of that party
        only, and not the noise of all parties.
        """
        mechanism = phase.mechanism
        row: Row = {"released_norm": float(total.norm())}
        if mechanism.spec.private:
            row["noise_multiplier"] = mechanism.noise_multiplier
            if first:
                row["threshold"] = mechanism.states[0]["threshold"]
        else:
            row["mean_norm"] = _mean([norms for _, _, norms in parties])
            if first:
                row["loss"] = _mean([losses for _, losses, _ in parties])
        if first:
            return row
        return {f"{mechanism.spec.name}_{key}": value for key, value in row.items()}

    def work(self, cohort: np.ndarray) -> int:
        return self._count * sum(phase.lots.size for phase in self._phases)


def _mean(parts: Sequence[Sequence[float] | np.ndarray]) -> float:
    """Return the mean over the values of all parties; nan without values."""
    values = np.concatenate(parts)
    return float(values.mean()) if len(values) else math.nan
