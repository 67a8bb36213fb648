"""Inputs of an account beside the ledger."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from dpsum.accounting.image_level import ImageUse
    from dpsum.accounting.tuning import Search
    from dpsum.ledger import Release


class BudgetLimits(Protocol):
    """Limits of a run; a configuration's section `budget` is one.

    `profile` is "claimed" or "proven"; `epsilon` None is no limit; `stop` says
    whether training stops at it.
    """

    @property
    def epsilon(self) -> float | None: ...
    @property
    def delta(self) -> float: ...
    @property
    def profile(self) -> str: ...
    @property
    def stop(self) -> bool: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class AccountContext:
    """Inputs of an account beside the ledger.

    Attributes:
        images: which clients use which image; None where that is unknown or says
            nothing, for the reason `no_images`.
        search: the declared search for hyper-parameters; None: none was declared.
        own_streams: whether the run drew its cohorts and its noise from streams that no
            other run of the search draws from; else nothing is known of several runs
            together.
        chosen: whether checkpoints were chosen by validation clients.
        budget: what the run was allowed; noise that follows a validation loss is
            accounted for by it.
        adaptive: whether the noise was free to follow such a loss; None: told by
            whether it moved.
        fall: (beta, lots): the noise may be multiplied by beta, at most once in so many
            lots; None: no such rule.
        before: releases of another run that this one rests on, and that read the same
            records.
        groups: numbers of records of one client that are to be protected together.
    """

    images: ImageUse | None = None
    no_images: str = "the run's partition was not given"
    search: Search | None = None
    own_streams: bool = False
    chosen: bool = False
    budget: BudgetLimits | None = None
    adaptive: bool | None = None
    fall: tuple[float, int] | None = None
    groups: tuple[int, ...] = ()
    before: tuple[Release, ...] = ()
