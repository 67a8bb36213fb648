"""Steps of all parties along the sum of their (private) sums over lots: DP-SGD of records that several parties hold."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

from dpfedbench.parts.client_updates.client_update import Clients, ClientUpdate, Row, Setup
from dpfedbench.parts.participation.poisson_lots import PoissonLots
from dpfedbench.parts.step_of_sum import StepOfSum
from dpfedbench.settings.part import setting
from dpsum.sampling import Sampler

if TYPE_CHECKING:
    import torch

    from dpfedbench.models.net import Net
    from dpfedbench.settings.run import Run
    from dpsum import participation
    from dpsum.sums import Sum


class SummedUpdate(ClientUpdate):
    """Base of the updates whose parties keep one model; see `parts.summed`."""

    client_data = "records"
    sends = "gradient-sum"
    by_record = True

    parties: Literal["mean", "sum"] = setting(
        "mean",
        doc="mean: a step follows the mean over all parties' lots; sum: the sum of each party's mean",
        paper="sum",
    )

    @property
    def steps(self) -> Mapping[str, StepOfSum]:
        """The step that follows each sum, by the sum's name, in the order of a round."""
        raise NotImplementedError

    def block_of(self, sum_: Sum) -> str:
        """The block of the model that a sum is of; "": all of it."""
        return ""

    def told(self, run: Run, net: Net) -> Callable[[torch.Tensor], Row]:
        """What the history says of a model that was released, given its weights [d]."""
        return lambda theta: {}

    def lots(self, run: Run, sum_: Sum, *, clients: int, records: int) -> participation.PoissonLots:
        """The lots of a sum, of so many clients that each hold so many records which it may read."""
        return run.part(PoissonLots).lots(
            clients=clients, seed=run.stream_seed, steps=1, records=records,
            purpose=f"lot/{sum_.part}" if sum_.part else "lot",
            whose=f"the {sum_.part} of a client" if sum_.part else "a client",
        )  # fmt: skip

    def samplers(self, run: Run, records: int) -> dict[str, Sampler]:
        lots = (self.lots(run, sum_, clients=run.clients.count, records=records) for sum_ in run.own_sums())
        return {sum_.name: each.describe() for sum_, each in zip(run.own_sums(), lots, strict=True)}

    def columns(self, run: Run) -> tuple[str, ...]:
        told = ("released_norm", "noise_multiplier" if run.private else "mean_norm")
        return tuple(f"{name}_{what}" for name in list(self.steps)[1:] for what in told)

    def clients(self, setup: Setup) -> Clients:
        from dpfedbench.parts.summed import Parties

        run = setup.run
        return Parties(
            setup, steps=self.steps, block_of=self.block_of, lots=functools.partial(self.lots, run), places=self.places,
            told=self.told(run, setup.net), mean=self.parties == "mean",
        )  # fmt: skip


class SummedSteps(SummedUpdate):
    """A step a round of the whole model, along the sum over all records."""

    kind: Literal["summed-steps"] = "summed-steps"

    weights: StepOfSum = setting(StepOfSum(), doc="the step")

    @property
    def steps(self) -> Mapping[str, StepOfSum]:
        return {self.sends: self.weights}
