"""Watch of a jax_privacy loop: its batches, clipped sums and noise as ledger lines.

A loop of jax_privacy has three parts: a batch selection, a clipped function, and a
gradient privatizer. `watch` wraps all three, and the loop uses the wrapped ones:

    watched = watch(selection, clipped, privatizer, "jax.jsonl", examples=60_000, stddev=1.0)
    for indices in watched.batches(rng):
        total = watched.clipped(parameters, data[indices])
        noisy, state = watched.privatizer.update(total, state)

Each update of the privatizer becomes a line:

- The sampler is the selection that ran: Poisson samples, fixed batches with or without
  replacement, or balls in bins over one cycle. Cyclic or truncated Poisson samples,
  several cycles of balls in bins, and b-min-separation have no analysis of their lines,
  and no epsilon is reported; `dp_event.from_event` reads the event of a cyclic plan.
- The sensitivity is that of the clipped function. The line has a reason, and nothing
  finite is proven, where the privatizer's input is not the clipped sum of the last
  batch, where the sum is of another number of examples than were drawn (padding that is
  not marked, say), or longer than so many clipped examples can be.
- The noise is the privatizer's output less its input (`watch.NoiseSeen`). Noise that is
  correlated over rounds is not that of `gaussian_privatizer` and has a reason, and so
  has a noise state that was used before.

Under `jax.jit` values cannot be seen: call the clipped function and the privatizer
outside it. The functions that they call may be compiled.

`dpwatch check` watches the same three parts of an unedited script (`check.jax_hooks`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import dp_accounting
import jax
import numpy as np
import optax
from jax_privacy import batch_selection

from dpsum.accounting.claims import Claim
from dpsum.errors import DpsumError
from dpsum.parameters import check_range
from dpwatch import accountants  # noqa: F401  # registers "fixed-draws"
from dpwatch.adapters.dp_event import ADJACENCIES
from dpwatch.adapters.watch import Watch

_TOLERANCE = 1e-4
"""Relative error of a norm in single precision that is no fault."""


@dataclasses.dataclass(frozen=True)
class StatedClaim:
    """An epsilon that a script or a plan gets from an accountant of dp_accounting.

    Attributes:
        accountant: the accountant.
        epsilon: function of delta that returns its epsilon.
        source: whose epsilon it is, for the explanation.
    """

    accountant: Any
    epsilon: Callable[[float], float]
    source: str = "of the script"

    @property
    def adjacency(self) -> str:
        """Adjacency of the accountant."""
        return ADJACENCIES[self.accountant.neighboring_relation]


def claim_of_event(event: Any, accountant: Callable[[], Any] | None) -> StatedClaim:
    """Return the claim of an execution plan; arguments as of `JaxPrivacyWatch`."""
    new_accountant = accountant or (
        lambda: dp_accounting.pld.PLDAccountant(
            dp_accounting.NeighboringRelation.REPLACE_SPECIAL
        )
    )

    def epsilon(delta: float) -> float:
        return float(new_accountant().compose(event).get_epsilon(delta))

    return StatedClaim(new_accountant(), epsilon, "for the plan's event")


def describe_selection(
    selection: batch_selection.BatchSelectionStrategy, examples: int
) -> dict[str, Any]:
    """Return the ledger's sampler of a batch selection.

    A selection without an analysis has a kind that no accountant is for.

    Args:
        selection: the batch selection.
        examples: number of examples.
    """
    units = {"clients": 1, "records": examples}
    if isinstance(selection, batch_selection.BallsInBinsSampling):
        kind = "balls-and-bins"
        if selection.cycle_length != selection.iterations:
            kind = "balls-in-bins of several cycles"
        rounds = selection.iterations
        share = 1 / selection.cycle_length
        units = {"clients": examples}
    elif isinstance(selection, batch_selection.FixedBatchSampling):
        kind = "fixed-size"
        rounds = selection.iterations
        share = selection.batch_size / examples
        if selection.replace:
            kind = "fixed-draws"
            units = {"clients": examples}
    elif isinstance(selection, batch_selection.CyclicPoissonSampling):
        kind = "poisson-lots"
        if selection.truncated_batch_size is not None:
            kind = "truncated-poisson"
        elif selection.cycle_length != 1:
            kind = "cyclic-poisson"
        rounds = selection.iterations
        share = selection.sampling_prob
    else:
        kind = type(selection).__name__
        rounds = getattr(selection, "iterations", 1)
        share = 1.0
    cohort = share * examples
    if math.isclose(cohort, round(cohort), rel_tol=1e-12):
        cohort = round(cohort)
    return {
        "kind": kind,
        **units,
        "cohort": cohort,
        "rounds": rounds,
        "rate": cohort / examples,
    }


class JaxPrivacyWatch(Watch):
    """Watch of a loop from its first batch (`watch`).

    Args:
        selection: the batch selection.
        clipped: function of `clipping.clipped_grad` or `clipped_fun`.
        privatizer: `noise_addition.gaussian_privatizer`; None: the caller records its
            releases (`record_release`).
        ledger: path of the ledger; the file must not exist.
        examples: number of examples.
        stddev: deviation of the noise that the privatizer was given.
        batch_argnum: position of a batch among the clipped function's arguments.
        event: event tree of the training, as an execution plan has it.
        accountant: function that returns a new accountant of dp_accounting for the
            event; None: `PLDAccountant` under REPLACE_SPECIAL, the default of plans.

    Attributes:
        clipped: the clipped function; to be called in place of the original.
        privatizer: the privatizer; to be used in place of the original.
        stated_claim: the claim of the plan's event, or of the script.

    Raises:
        DpsumError: an argument is out of bounds, or the ledger exists.
    """

    unit: ClassVar[str] = "record"

    def __init__(
        self,
        selection: batch_selection.BatchSelectionStrategy,
        clipped: Any,
        privatizer: optax.GradientTransformation | None,
        ledger: Path | str,
        *,
        examples: int,
        stddev: float,
        batch_argnum: int = 1,
        event: Any = None,
        accountant: Callable[[], Any] | None = None,
    ) -> None:
        if isinstance(examples, bool) or not isinstance(examples, int) or examples < 1:
            raise DpsumError(
                f"examples is {examples!r}: give a whole number of at least 1"
            )
        check_range("stddev", stddev)
        super().__init__(ledger, "kept")
        self.selection = selection
        self.examples = examples
        self.stddev = float(stddev)
        self.bound = float(clipped.sensitivity())
        self.stated_claim: StatedClaim | None = None
        if event is not None:
            self.take_claim(claim_of_event(event, accountant))
        self.follows_number = ""
        if isinstance(selection, batch_selection.FixedBatchSampling):
            self.follows_number = "the batch has a fixed number of records"
        self._batch_argnum = batch_argnum
        self._clipped = clipped
        self._drawn: np.ndarray | None = None
        self._total: list[Any] = []
        self._count = 0
        self._noise_states: set[bytes] = set()
        if privatizer is not None:
            self._update = privatizer.update
            self.privatizer = privatizer._replace(update=self._watched)

    def batches(self, rng: Any = None) -> Iterator[np.ndarray]:
        """Yield the selection's batches, int [n] each, and remember each."""
        for indices in self.selection.batch_iterator(self.examples, rng):
            self.record_batch(indices)
            yield indices

    def record_batch(self, indices: np.ndarray) -> None:
        """Remember the batch that was drawn, int [n]."""
        self._drawn = np.asarray(indices)

    def clipped(self, *args: Any, **kwargs: Any) -> Any:
        """Call the clipped function; arguments and result are its own."""
        result = self._clipped(*args, **kwargs)
        self.record_sum(result, args, kwargs)
        return result

    def record_sum(
        self, result: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """Remember a result of the clipped function, and its number of examples.

        Args:
            result: what the function returned.
            args, kwargs: its arguments.
        """
        value = result[0] if self._clipped.has_aux else result
        self._total = jax.tree.leaves(value)
        padding = kwargs.get("is_padding_example")
        if padding is None:
            batch = jax.tree.leaves(args[self._batch_argnum])
            self._count = int(batch[0].shape[0])
        else:
            self._count = int(np.sum(~np.asarray(padding)))

    def forget_sum(self) -> None:
        """Forget the last clipped sum: it is of another function than the watched one."""
        self._total = []

    def _watched(self, updates: Any, state: Any, params: Any = None) -> Any:
        """Update the privatizer, and write the line of its release."""
        noisy, new_state = self._update(updates, state, params)
        if is_compiled(updates):
            raise DpsumError(
                "the privatizer is called under jax.jit, where its noise cannot be"
                " seen: call it outside"
            )
        self.record_release(updates, state, noisy)
        return noisy, new_state

    def record_release(self, updates: Any, state: Any, noisy: Any) -> None:
        """Write the line of a release.

        Args:
            updates: the privatizer's input.
            state: the noise state that it was given.
            noisy: its output.
        """
        leaves = jax.tree.leaves(updates)
        values = [np.asarray(leaf, dtype=np.float64) for leaf in leaves]
        sums = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(noisy)]
        noise = [after - value for after, value in zip(sums, values, strict=True)]
        reasons = self._reasons(leaves, values)
        digest = _digest(state)
        if digest in self._noise_states:
            reasons.append("its noise state was used before, so that its noise was too")
        self._noise_states.add(digest)
        self.write(
            name="clipped-sum",
            threshold=self.bound,
            sensitivity=self.bound,
            deviation=self.stddev,
            sampler=describe_selection(self.selection, self.examples),
            denominator=1.0,
            reasons=reasons,
            draws=[noise],
            values=[np.asarray(leaf) for leaf in leaves],
        )
        self.round += 1
        self._drawn = None
        self._total = []

    def _reasons(self, leaves: list[Any], values: list[np.ndarray]) -> list[str]:
        """Return why the release is not the clipped sum of the batch that was drawn."""
        if self._drawn is None:
            return ["no batch was drawn for it: a batch a second time, or another one"]
        reasons = []
        drawn = self._drawn[self._drawn >= 0]
        is_sum = len(leaves) == len(self._total) and all(
            leaf is total for leaf, total in zip(leaves, self._total, strict=True)
        )
        if not is_sum:
            reasons.append("the privatizer's input is not the clipped sum of the batch")
        if self._count != len(drawn):
            reasons.append(
                f"the clipped sum is of {self._count} examples, but {len(drawn)} were"
                " drawn"
            )
        norm = math.sqrt(sum(float(np.sum(value**2)) for value in values))
        if not norm <= len(drawn) * self.bound * (1 + _TOLERANCE) + 1e-12:
            reasons.append("the sum is longer than its clipped examples can make it")
        return reasons

    def take_claim(self, claim: StatedClaim) -> None:
        """Take a claim of the plan or of the script; the last one counts."""
        self.stated_claim = claim
        self.claimed_adjacency = claim.adjacency

    def claim(self) -> Claim | None:
        """Return dp_accounting's epsilon of the event, or else the script's own."""
        stated = self.stated_claim
        if stated is None:
            return None
        return Claim(
            epsilon=lambda schedule, sampler, delta: stated.epsilon(delta),
            explanation=(
                f"{type(stated.accountant).__name__} of dp_accounting {stated.source},"
                f" under {stated.adjacency} adjacency"
            ),
        )


def is_compiled(tree: Any) -> bool:
    """Return whether a pytree has values of `jax.jit`, which cannot be seen."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))


def _digest(state: Any) -> bytes:
    """Return a digest of a noise state, equal for equal states."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(state):
        if jax.dtypes.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        digest.update(np.asarray(leaf).tobytes())
    return digest.digest()


watch = JaxPrivacyWatch
"""The watch of a loop, by its usual name."""
