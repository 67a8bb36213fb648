"""Inputs of an account besides the ledger."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpsum.accounting.claims import Claims
    from dpsum.accounting.image_level import ImageUse
    from dpsum.accounting.tuning import Search
    from dpsum.budget import Budget
    from dpsum.ledger import Release


@dataclasses.dataclass(frozen=True, kw_only=True)
class AccountContext:
    """Inputs of an account besides the ledger.

    Attributes:
        images: which clients use which image; None where that is unknown or does not
            apply.
        no_images: why `images` is None.
        search: the declared search for hyper-parameters; None: none was declared.
        own_streams: whether the run drew its cohorts and its noise from streams that no
            other run of the search uses. If not, no epsilon of several runs together is
            proven.
        chosen: whether checkpoints were chosen by validation clients.
        budget: budget of the run; it determines the account of noise that follows a
            validation loss.
        adaptive: whether the noise could follow such a loss; None: it did if it
            changed. Noise may follow a loss wherever the ledger says so.
        decay_step: (beta, lots): the noise may be multiplied by beta at most once in this
            number of lots; None: no such rule.
        before: releases of an earlier run that this run uses, over the same records.
        before_claims: the accounting of the earlier run's paper, as in `account`.
        before_context: inputs of an account of the earlier run besides its ledger; they
            cover noise that follows a loss. None: its ledger alone is known.
        groups: numbers of records of one client that are protected together.
    """

    images: ImageUse | None = None
    no_images: str = "the run's partition was not given"
    search: Search | None = None
    own_streams: bool = False
    chosen: bool = False
    budget: Budget | None = None
    adaptive: bool | None = None
    decay_step: tuple[float, int] | None = None
    groups: tuple[int, ...] = ()
    before: tuple[Release, ...] = ()
    before_claims: Claims = dataclasses.field(default_factory=dict)
    before_context: AccountContext | None = None
