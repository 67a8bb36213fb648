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
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dpfedbench.config.part import setting
from dpfedbench.config.rules import Rule
from dpfedbench.errors import BenchError
from dpfedbench.lazy import np, torch
from dpfedbench.parts.step_of_sum import StepOfSum
from dpfedbench.training.client_updates.client_update import ClientUpdate
from dpfedbench.training.client_updates.parties import PartyClients
from dpfedbench.training.clients import Clients, Setup, each_holder
from dpfedbench.training.history import Row
from dpsum import participation
from dpsum.accounting.units import cannot_compose
from dpsum.private_sum import PlainSum
from dpsum.sampling import Sampler
from dpsum.sums import SumSpec

if TYPE_CHECKING:
    from dpfedbench.models.gradients import Gradients
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
            "a step follows the mean over all parties' lots, or the sum of their means"
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
        run = setup.run
        count = len(setup.held.images)
        workers = setup.workers(lambda gradients: gradients)
        phases = list[Phase]()
        for spec in setup.client_sums:
            phases.append(self._create_phase(spec, setup, phases))
        public_columns = self.public_columns(run, setup.net)

        def move(model: torch.Tensor, index: int, states: list[Any]) -> Row:
            row: Row = {"clients": count}
            with workers.running() as pool:
                for phase, state in zip(phases, states, strict=True):

                    def take(client: int, phase: Phase = phase) -> PartyRelease:
                        with workers.worker() as gradients:
                            return phase.take(gradients, model.numpy(), index, client)

                    releases = each_holder(phase.mechanism, setup.processes, pool, take)
                    total = torch.stack([party[0] for party in releases]).sum(dim=0)
                    row |= phase.columns(releases, total, first=phase is phases[0])
                    if phase.mechanism.spec.private:
                        phase.mechanism.write(index)
                    mean = total / (
                        phase.lots.denominator
                        * (count if self.parties == "mean" else 1)
                    )
                    phase.steps.step(
                        model[phase.coordinates],
                        mean,
                        state,
                        index=index,
                        rounds=run.participation.rounds,
                    )
            return row | public_columns(model)

        states = [
            phase.steps.begin(torch.zeros(phase.mechanism.dimension))
            for phase in phases
        ]
        records = count * sum(phase.lots.size for phase in phases)
        return PartyClients(move, states, records)

    def _create_phase(
        self, spec: SumSpec, setup: Setup, earlier_phases: Sequence[Phase]
    ) -> Phase:
        """Return the phase of a sum.

        Raises:
            BenchError: an earlier phase sums the same part of the records over other
                lots.
        """
        run = setup.run
        held = setup.held
        count = len(held.images)
        block = self.block_of(spec)
        steps = self.steps[spec.name]
        whole = slice(0, setup.net.dimension)
        coordinates = setup.net.blocks[block] if block else whole
        positions = [
            self.record_subset(
                spec, seed=run.seed, client=client, records=len(held.images[0])
            )
            for client in range(count)
        ]
        lots = self.lots(run, spec, clients=count, records=len(positions[0]))
        for earlier in earlier_phases:
            if (
                spec.private
                and earlier.mechanism.spec.part == spec.part
                and earlier.lots.purpose != lots.purpose
            ):
                # The ledger describes both sums alike. An account takes releases of one
                # lot as one Gaussian release; releases of two lots are not one.
                raise BenchError(
                    cannot_compose(
                        earlier.mechanism.spec.name,
                        spec.name,
                        spec.unit,
                        spec.part,
                        "draw their own lots",
                    )
                )
        mechanism = setup.create_mechanism(
            dataclasses.replace(spec, stream_indices=("round", "client")),
            participation=lots,
            dimension=coordinates.stop - coordinates.start,
            holders=count,
            plain_sum=lambda dimension: _Cut(
                dimension=dimension, norm=steps.cut or math.inf
            ),
        )
        return Phase(held, steps, block, coordinates, positions, lots, mechanism)


class SummedSteps(SummedUpdate):
    """One step of the whole model in each round, along the sum over all records."""

    kind: Literal["summed-steps"] = "summed-steps"

    weights: StepOfSum = setting(StepOfSum(), doc="step of the model's weights")

    @property
    def steps(self) -> Mapping[str, StepOfSum]:
        return {self.sends: self.weights}

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda update, run: getattr(run.model, "auxiliary", False),
            "model.auxiliary is true, but client_update.kind summed-steps has no"
            " loss for a second classifier: set it to false, or take batch-steps"
            " for training without privacy",
        ),
    )


class _Cut(PlainSum):
    """Plain sum of gradients that are clipped to a norm, without noise or privacy."""

    def __init__(self, *, dimension: int, norm: float) -> None:
        super().__init__(dimension=dimension)
        self._limit = norm


PartyRelease = tuple["torch.Tensor", "np.ndarray", Sequence[float]]
"""One party's release [block], its losses [n] and its raw norms; a private sum has no raw
norms.
"""


@dataclasses.dataclass
class Phase:
    """One sum of each party over the records at `positions`, and the step after it."""

    held: Any
    steps: StepOfSum
    block: str
    coordinates: slice
    positions: list[np.ndarray]
    lots: participation.RecordLots
    mechanism: Mechanism

    def take(
        self, gradients: Gradients, theta: np.ndarray, index: int, client: int
    ) -> PartyRelease:
        """Take one party's sum in a round, at weights `theta` [d]."""
        chosen = self.positions[client][self.lots.lot(index, 0, client)]
        images = self.held.images[client][chosen]
        labels = self.held.labels[client][chosen]
        total = self.mechanism.begin_round(index, holder=client)
        losses, _ = gradients.add_record_gradients(
            theta, images, labels, total, block=self.block
        )
        raw = [] if self.mechanism.spec.private else total.norms
        return torch.from_numpy(self.mechanism.finish(total)), losses, raw

    def columns(
        self, releases: Sequence[PartyRelease], total: torch.Tensor, *, first: bool
    ) -> Row:
        """Return the columns of the history for this phase.

        Everyone reads the history, so that the columns of a private phase follow from
        the total alone. The server's view of a single party has the noise of that party
        only, and not the noise of all parties.
        """
        mechanism = self.mechanism
        row: Row = {"released_norm": float(total.norm())}
        if mechanism.spec.private:
            row["noise_multiplier"] = mechanism.noise_multiplier
            if first:
                row["threshold"] = mechanism.states[0]["threshold"]
        else:
            row["mean_norm"] = _mean([norms for _, _, norms in releases])
            if first:
                row["loss"] = _mean([losses for _, losses, _ in releases])
        if first:
            return row
        return {f"{mechanism.spec.name}_{key}": value for key, value in row.items()}


def _mean(parts: Sequence[Sequence[float] | np.ndarray]) -> float:
    """Return the mean over the values of all parties; nan without values."""
    values = np.concatenate(parts)
    return float(values.mean()) if len(values) else math.nan
