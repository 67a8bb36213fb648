"""What a method is made of: one part of each kind, put together for one run.

Nothing heavy is imported here: the workflow reads the methods each time it is called.
"""

from __future__ import annotations

import dataclasses

from dpfedbench.config import RunConfig
from dpfedbench.errors import BenchError
from dpfedbench.federation.participation import Participation, make_participation
from dpfedbench.privacy.clipping import ClippingRule, make_rule


@dataclasses.dataclass(frozen=True, kw_only=True)
class Maml:
    """The MAML client update (computed in `federation.maml`).

    Attributes:
        inner_steps: gradient steps on the support set, >= 1.
        inner_rate: their learning rate (eta_1), > 0.
        order: 2 to differentiate through the steps, 1 to treat the adapted weights as constants (first-order MAML).
    """

    inner_steps: int
    inner_rate: float
    order: int

    def __post_init__(self) -> None:
        if self.inner_steps < 1 or not self.inner_rate > 0 or self.order not in (1, 2):
            raise BenchError(
                f"MAML needs inner_steps >= 1, inner_rate > 0 and order 1 or 2, not "
                f"{self.inner_steps}, {self.inner_rate} and {self.order}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Composition:
    """The parts of a method.

    Attributes:
        participation: which clients take part in which round.
        update: what each of them computes.
        clipping: how the threshold moves; None where no privacy is claimed.
        rounds: rounds planned.
        release: the name of what a round hands out.
        unit, observer: whom the private sum protects, and from whom.
    """

    participation: Participation
    update: Maml
    clipping: ClippingRule | None
    rounds: int
    release: str = "query-gradient-sum"
    unit: str = "client"
    observer: str = "everyone"

    @classmethod
    def of(cls, config: RunConfig, *, rounds: int | None = None) -> Composition:
        """The parts that the configuration names.

        Args:
            config: the run.
            rounds: in place of the configured number.
        """
        if config.client_update.kind != "maml":
            raise BenchError(f"client_update.kind is {config.client_update.kind}: the kind there is, is maml")
        return cls(
            participation=make_participation(
                config.participation.kind,
                clients=config.clients.count,
                cohort=config.participation.cohort,
                rounds=config.participation.rounds,
                seed=config.seed,
            ),
            update=Maml(
                inner_steps=config.client_update.inner_steps,
                inner_rate=config.client_update.inner_rate,
                order=config.client_update.order,
            ),
            clipping=None if config.clipping is None else make_rule(config.clipping),
            rounds=config.participation.rounds if rounds is None else rounds,
        )
