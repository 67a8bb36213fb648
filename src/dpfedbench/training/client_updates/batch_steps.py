"""Steps of all parties along the mean gradient of their batches, without privacy: the
training of the found network in DARTS (Liu et al. 2018, Section 4.2) and DP-FNAS.

    each party's lot -> augmented images -> gradient of the mean loss, in training mode
    the parties' mean gradient -> one step; running statistics move to the batch's

The gradient of a lot is that of its mean loss, so that batch normalisation, drop path
and the second classifier's loss can be part of it. The result is not private: the
statistics of a batch couple its records. Methods that claim privacy do not use this
update.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dpfedbench.config.part import setting
from dpfedbench.config.rules import Rule
from dpfedbench.lazy import np, torch
from dpfedbench.models.zoo.darts import DartsCells
from dpfedbench.parts.augmentation import Augmentation
from dpfedbench.parts.step_of_sum import StepOfSum
from dpfedbench.training.client_updates.client_update import ClientUpdate
from dpfedbench.training.client_updates.parties import PartyClients
from dpfedbench.training.clients import Clients, Setup
from dpfedbench.training.history import Row
from dpsum.randomness import stream

if TYPE_CHECKING:
    from dpfedbench.models.batch_gradient import BatchMeasures


class BatchSteps(ClientUpdate):
    """One step of the whole model in each round, along the gradient of whole batches.
    Not private.
    """

    kind: Literal["batch-steps"] = "batch-steps"
    client_data = "records"
    sends = "batch-gradient"

    weights: StepOfSum = setting(StepOfSum(), doc="step of the model's weights")
    augmentation: Augmentation = setting(
        Augmentation(), doc="random changes of each image of a batch"
    )
    drop_path: float = setting(
        0.0,
        ge=0,
        lt=1,
        doc=(
            "probability that an edge's map of a record is dropped; it grows"
            " linearly from 0 to this"
        ),
        paper="0.2",
    )
    auxiliary: float = setting(
        0.4,
        ge=0,
        le=1e6,
        doc="weight of the loss of model.auxiliary",
        paper="0.4",
    )

    @property
    def steps(self) -> Mapping[str, StepOfSum]:
        """Step that follows each sum, by the name of the sum."""
        return {self.sends: self.weights}

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda update, run: not isinstance(run.model, DartsCells),
            "model.kind is {run.model.kind}, but client_update.kind batch-steps"
            " trains only darts-cells: take darts-cells, or client_update.kind"
            " summed-steps",
        ),
        Rule(
            lambda update, run: update.weights.cut is not None,
            "client_update.weights.cut clips the gradients of single records,"
            " but batch-steps takes the gradient of a whole batch: set it to"
            " null",
        ),
    )

    def clients(self, setup: Setup) -> Clients:
        from dpfedbench.models.batch_gradient import BatchGradient, generator_of

        run = setup.run
        held = setup.held
        count = len(held.images)
        rounds = run.participation.rounds
        seed = run.stream_seed
        lots = run.participation.lots(
            clients=count, seed=seed, steps=1, records=len(held.images[0])
        )
        gradient_of = BatchGradient(
            setup.net,
            device=setup.gradients.device,
            drop_path=self.drop_path,
            auxiliary=self.auxiliary,
        )

        def take(model: torch.Tensor, index: int, client: int) -> BatchMeasures | None:
            """Return one party's batch; None for fewer than two records.

            A batch of one record has no statistics.
            """
            lot = lots.lot(index, 0, client)
            if len(lot) < 2:
                return None
            images = self.augmentation.apply(
                held.images[client][lot], stream(seed, "augmentation", index, client)
            )
            return gradient_of(
                model,
                images,
                held.labels[client][lot],
                generator=generator_of(stream(seed, "drop-path", index, client)),
                progress=index / rounds,
            )

        def move(model: torch.Tensor, index: int, state: Any) -> Row:
            """Move the model along the mean gradient of the parties' batches."""
            batches = [take(model, index, client) for client in range(count)]
            measured = [batch for batch in batches if batch is not None]
            if measured:
                mean = torch.stack([batch.gradient for batch in measured]).mean(dim=0)
                self.weights.step(model, mean, state, index=index, rounds=rounds)
                for statistics in zip(
                    *(batch.statistics for batch in measured), strict=True
                ):
                    values = torch.stack([value for _, value in statistics])
                    model[statistics[0][0]] = values.mean(dim=0)
            losses = [batch.loss for batch in measured]
            loss = float(np.mean(losses)) if losses else math.nan
            return {"clients": count, "loss": loss}

        state = self.weights.begin(torch.zeros(setup.net.dimension))
        return PartyClients(move, state, count * lots.size)
