"""What a method is made of: one part of each kind, put together for one run."""

from __future__ import annotations

import dataclasses

from dpfedbench.config import RunConfig
from dpfedbench.errors import BenchError
from dpfedbench.federation.maml import Maml
from dpfedbench.federation.participation import Participation, make_participation
from dpfedbench.privacy.clipping import ClippingRule, make_rule


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
