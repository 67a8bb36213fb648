"""What a method is made of: one part of each kind, put together for one run.

Nothing heavy is imported here: the workflow reads the methods each time it is called.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from dpfedbench.accounting.claims import ONE_RELEASE, POISSON_MOMENTS, REPTILE_STEPS, WHOLE_ORDERS, Claims
from dpfedbench.config import ClippingConfig, LocalConfig, RunConfig
from dpfedbench.errors import BenchError
from dpfedbench.federation.participation import Participation, make_participation

CLAIMS_OF_TODAY: Claims = {"one-pass": POISSON_MOMENTS, "poisson-lots": WHOLE_ORDERS, "own-records": ONE_RELEASE}
"""The papers' own accounting, for the samplers that have one."""


def claims_of_today(config: RunConfig) -> Claims:
    """What the paper of a run's method claims."""
    reptile = config.client_update.kind == "reptile"
    return {**CLAIMS_OF_TODAY, "own-records": REPTILE_STEPS} if reptile else CLAIMS_OF_TODAY


@dataclasses.dataclass(frozen=True, kw_only=True)
class Maml:
    """The MAML client update (computed in `models.meta_gradient`).

    Attributes:
        inner_steps: gradient steps on the support set, >= 1.
        inner_rate: their learning rate (eta_1), > 0.
        order: 2 to differentiate through the steps, 1 to treat the adapted weights as constants (first-order MAML).
        learnable_rates: whether the model has a rate for each step and tensor, which starts at `inner_rate` and gets
            its gradient with the weights (MAML++, Antoniou et al. 2019).
        multi_step_rounds: rounds in which the query loss counts after each step, not the last alone (MAML++).
    """

    inner_steps: int
    inner_rate: float
    order: int
    learnable_rates: bool = False
    multi_step_rounds: int = 0

    def step_weights(self, index: int) -> np.ndarray | None:
        """Weight [inner_steps] of the query loss after each step in round `index`, from 0; None: the last alone.

        At first all are equal; those before the last then fall linearly, to 3 % of that (as in MAML++'s code).
        """
        if index >= self.multi_step_rounds:
            return None
        share = max(1 - index / self.multi_step_rounds, 0.03) / self.inner_steps
        weights = np.full(self.inner_steps, share)
        weights[-1] = 1 - share * (self.inner_steps - 1)
        return weights

    def __post_init__(self) -> None:
        if self.inner_steps < 1 or not self.inner_rate > 0 or self.order not in (1, 2):
            raise BenchError(
                f"MAML needs inner_steps >= 1, inner_rate > 0 and order 1 or 2, not "
                f"{self.inner_steps}, {self.inner_rate} and {self.order}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reptile:
    """The Reptile client update: what training on all of its examples changes (in `federation.record_tasks`).

    Attributes:
        steps: optimiser steps, >= 1.
        optimizer: "adam" or "sgd"; it starts anew at every client.
        rate: its learning rate, > 0.
    """

    steps: int
    optimizer: str
    rate: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalSteps:
    """The local update of a client that sums over its own records (computed in `federation.client_sums`).

    Attributes:
        steps: optimiser steps a round, each on a new lot, >= 1.
        optimizer: "adam" or "sgd".
        rate: its learning rate, > 0.
        keep_state: whether its moments are kept from round to round.
    """

    steps: int
    optimizer: str
    rate: float
    keep_state: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelDifference:
    """The update of a client that trains on its records and sends what that changed (in `federation.record_clients`).

    Attributes:
        steps: optimiser steps a round, each along the mean gradient of all of the client's records, >= 1.
        optimizer: "adam" or "sgd"; it starts anew in every round.
        rate: its learning rate, > 0.
    """

    steps: int
    optimizer: str
    rate: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Composition:
    """The parts of a method.

    Attributes:
        participation: which clients take part in which round; None where all do, with lots of their records.
        update: what each of them computes.
        local: the private sums that each client takes over its own examples, within its task; None: there are none.
        clipping: how the threshold of the server's private sum moves; None where the server takes none.
        rounds: rounds planned.
        release: the name of what a round hands out.
        unit, observer: whom the private sum protects, and from whom.
    """

    participation: Participation | None
    update: Maml | Reptile | LocalSteps | ModelDifference
    clipping: ClippingConfig | None
    rounds: int
    release: str
    unit: str
    observer: str
    local: LocalConfig | None = None

    def starting_at(self, threshold: float) -> Composition:
        """The same with a first clipping threshold that was found and not configured."""
        assert self.clipping is not None
        return dataclasses.replace(self, clipping=dataclasses.replace(self.clipping, threshold=threshold))

    @classmethod
    def of(cls, config: RunConfig, *, rounds: int | None = None) -> Composition:
        """The parts that the configuration names.

        Args:
            config: the run.
            rounds: in place of the configured number.
        """
        update, participation = config.client_update, config.participation
        planned = participation.rounds if rounds is None else rounds
        if config.by_record:
            return cls(
                participation=None,
                update=LocalSteps(
                    steps=update.inner_steps,
                    optimizer=update.optimizer,
                    rate=update.inner_rate,
                    keep_state=update.keep_state,
                ),
                clipping=config.clipping,
                rounds=planned,
                release="gradient-sum",
                unit="record",
                # A pre-trained body goes to others; whoever holds all records sees them anyway.
                observer="everyone" if config.pretrains else "server",
            )
        computed: Maml | Reptile | ModelDifference
        if update.kind == "reptile":
            computed = Reptile(steps=update.inner_steps, optimizer=update.optimizer, rate=update.inner_rate)
        elif config.on_records:
            computed = ModelDifference(steps=update.inner_steps, optimizer=update.optimizer, rate=update.inner_rate)
        else:
            computed = Maml(
                inner_steps=update.inner_steps, inner_rate=update.inner_rate, order=update.order,
                learnable_rates=update.learnable_rates, multi_step_rounds=update.multi_step_rounds,
            )  # fmt: skip
        return cls(
            participation=make_participation(
                participation.kind,
                clients=config.clients.count,
                cohort=participation.cohort,
                rounds=participation.rounds,
                seed=config.seed,
            ),
            update=computed,
            clipping=config.clipping,
            rounds=planned,
            release="query-gradient-sum" if isinstance(computed, Maml) else "model-difference-sum",
            unit="record" if config.local is not None and config.local.query == "server" else "client",
            observer="everyone",
            local=config.local,
        )
