"""The mechanism: one object that couples participation, clipping, noise and the ledger;
and the sum of one round, while it is taken (`Accumulator`) and when it is finished.

The account therefore describes the mechanism that ran. The docstring of `dpsum` has an
example.

Guarantee, where each unit makes at most one contribution a round: the mechanism clips
each contribution to C in one L2 norm over all coordinates, and adds noise before anyone
receives the sum. It writes the release to the ledger, with the values that it used,
before it returns the release. `accounting.account` computes the proven epsilon under
the ledger's participation.
"""

import copy
import dataclasses
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dpsum import randomness
from dpsum.accounting.analyses import find
from dpsum.accounting.further_release import rest_multiplier
from dpsum.clipping import Extra, RuleByGroup, Seen, State
from dpsum.composition import Composition
from dpsum.errors import DpsumError, NoAccountWarning
from dpsum.group_clipping import CoordinateGroups, GroupedSum
from dpsum.ledger import Ledger, Release
from dpsum.participation import DrawnBy, UnitDraw
from dpsum.private_sum import PlainSum, PrivateSum
from dpsum.randomness import Seed, fresh
from dpsum.sums import SumSpec


@dataclasses.dataclass(frozen=True)
class Arithmetic:
    """Functions that add contributions and compute norms, for one array library.

    Attributes:
        add: adds contributions [n, d] to a `PrivateSum` or a `PlainSum`, and returns
            their norms [n].
        norm: returns the L2 norm of a vector [d].
        plain_sum: returns the object that adds up contributions [d] without clipping
            and noise, given d; a `PlainSum` or a class like it.
    """

    add: Callable[[Any, Any], np.ndarray] = lambda total, contributions: total.add(
        contributions
    )
    norm: Callable[[np.ndarray], float] = lambda values: float(np.linalg.norm(values))
    plain_sum: Callable[[int], Any] = lambda dimension: PlainSum(dimension=dimension)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinishedSum:
    """A finished sum of a round, whose line is not in the ledger yet.

    Attributes:
        holder: the client that took the sum, where each client takes one; else 0.
        step: the holder's local step.
        sum: the sum. It has the threshold and the noise multiplier of this release.
        mean: the released sum divided by the denominator, float64 [d]; None without an
            observer.
        extra_sum: the sum behind the clipping rule's own release; None without one.
        extra_mean: the rule's own release divided by the denominator.
    """

    holder: int
    step: int
    sum: PrivateSum
    mean: np.ndarray | None
    extra_sum: PrivateSum | None = None
    extra_mean: np.ndarray | None = None


Outcome = tuple[FinishedSum, np.ndarray]
"""A finished sum and its released mean, float64 [d]; of the sum itself, or of the
clipping rule's own release.
"""

Observer = Callable[[Release, Sequence[Outcome]], None]
"""Callback that sees what the ledger's observer sees: one line of the ledger, and the
outcome of each sum that the line stands for.
"""


@dataclasses.dataclass(eq=False, kw_only=True)
class Accumulator:
    """The sum of one round, until `Mechanism.release` closes it.

    Attributes:
        spec: specification of the sum: units, clipping and noise.
        arithmetic: functions that add contributions.
        rule: the clipping rule (a `RuleByGroup` where groups of coordinates are
            clipped); None where the sum is not clipped.
        dimension: number of coordinates d.
        round, step, holder: position of this sum among those of its mechanism.
        sum: the object that adds up the contributions, for instance a `PrivateSum`.
        state: state of the clipping rule before this round.
        extra: specification of the rule's own release; None without one.
        extra_sum: the sum behind the rule's own release; None without one.
        raw_norms: norms before clipping, for a rule that is not private; else empty.
    """

    spec: SumSpec
    arithmetic: Arithmetic
    rule: Any
    dimension: int
    round: int
    step: int
    holder: int
    sum: Any
    state: State
    extra: Extra | None = None
    extra_sum: PrivateSum | None = None
    raw_norms: list[Any] = dataclasses.field(default_factory=list)

    @property
    def norms(self) -> list[float]:
        """Norms of the contributions to a `PlainSum`, which claims no privacy."""
        return list(self.sum.norms)

    @property
    def as_rows(self) -> bool:
        """Whether contributions must be added as rows.

        That is so where they are clipped by groups or transformed before clipping.
        """
        has_groups = getattr(self.sum, "groups", None) is not None
        return self.transforms or has_groups

    @property
    def transforms(self) -> bool:
        """Whether each contribution is transformed before it is clipped."""
        transform = self.spec.transform
        return transform is not None and not transform.trivial

    def transformed(self, contributions: Any) -> Any:
        """Return the contributions [n, d] after the transform, ready to be clipped."""
        transform = self.spec.transform
        if transform is None:
            return contributions
        return transform.rows(contributions)

    @property
    def deviation(self) -> Any:
        """Standard deviation of the noise on each coordinate of the release.

        A number; an array [d] where groups of coordinates are clipped; 0 without noise.
        """
        noise = self.spec.noise
        if noise is None:
            return 0.0
        weights = noise.combines(self.round)
        if self.sum.groups is not None:
            return self.sum.deviations
        noise_std = float(self.sum.noise_std)
        if weights is None:
            return noise_std
        return noise_std * float(np.linalg.norm(weights))

    def add(self, contributions: Any) -> np.ndarray:
        """Add contributions [n, d].

        Returns:
            Norms before clipping, [n]. They are as sensitive as the contributions.

        Raises:
            DpsumError: the contributions are not an array of numbers of shape [n, d].
        """
        return self._seen(
            self.arithmetic.add(self.sum, self.transformed(contributions))
        )

    def add_by(
        self,
        add: Callable[[float, np.ndarray, np.ndarray], None],
        count: int,
        *,
        transformed: bool = False,
    ) -> np.ndarray:
        """Add contributions that a compiled loop computes; see `PrivateSum.add_by`.

        Args:
            add: adds the clipped contributions to a total and writes their norms.
            count: number of contributions.
            transformed: whether `add` transforms each contribution before clipping.
        """
        if self.as_rows and not transformed:
            raise RuntimeError(
                "contributions to this sum are transformed before they are clipped, or"
                " clipped by groups: add them as rows"
            )
        return self._seen(self.sum.add_by(add, count))

    def _seen(self, norms: np.ndarray) -> np.ndarray:
        rule = self.rule
        if rule is not None and not rule.private:
            self.raw_norms += norms.tolist()
        if rule is not None and self.extra_sum is not None:
            # A copy: a rule must not keep raw norms for its next threshold.
            state = copy.deepcopy(self.state)
            values = rule.values(state, norms)
            self.arithmetic.add(self.extra_sum, values)
        return norms


class ReleaseLog(Protocol):
    """Anything to which a mechanism may append its releases, such as a `Ledger`."""

    def append(self, release: Release, /) -> None:
        """Append a release."""


class Mechanism:
    """A private sum over rounds, with its thresholds, noise, budget and ledger.

    Args:
        spec: specification of the sum, with a number as its noise multiplier
            (`calibrated`). A sum without noise claims no privacy.
        participation: draws the units of each round, describes the sampler for the
            ledger, and defines the denominator of the sum; or a `Sampling`, where the
            caller draws the units and the denominator is its `cohort`.
        dimension: number of coordinates d.
        ledger: path of a new file, or a `Ledger` that several mechanisms share.
        seed: None: noise is drawn from the operating system's entropy, and the ledger
            says so. A number: noise is drawn from streams that the seed names, so that
            a run can be repeated. Privacy is then simulated, since anyone who knows the
            seed can compute the noise.
        composition: the `Composition` that the sums of a run share, and whose
            `calibrate` returned the specification; None: the sum is the only one.
        holders: number of clients that each take a sum and keep their own threshold; 0:
            one sum a round.
        arithmetic: see `Arithmetic`.

    Attributes:
        on_release: called with the `Accumulator` and the released sum; for an audit.
        observer: called with each line of the ledger and its releases (`Observer`); for
            an audit.
        non_finite: number of contributions that were not finite and counted as zero,
            since the attribute was last set to 0.

    Warns:
        NoAccountWarning: no accountant covers this noise with this participation, so
            that the releases will have no epsilon.

    Raises:
        DpsumError: the ledger exists already, there is no first threshold or no noise
            multiplier, the composition has calibrated the sum not at all or for another
            participation, or the ledger has noise of the same streams.
    """

    on_release: Callable[[Accumulator, np.ndarray], None] | None = None
    observer: Observer | None = None

    def __init__(
        self,
        spec: SumSpec,
        *,
        participation: DrawnBy,
        dimension: int,
        ledger: ReleaseLog | Path | str,
        seed: Seed = None,
        composition: Composition | None = None,
        holders: int = 0,
        arithmetic: Arithmetic | None = None,
    ) -> None:
        _check_calibrated(spec)
        if composition is None:
            composition = Composition()
            composition.calibrate([spec], participation)
        draw = UnitDraw.of(participation, spec.name)
        composition.claim(spec, draw)
        self.spec = spec
        self.composition = composition
        self.dimension = dimension
        self.holders = holders
        self.arithmetic = arithmetic or Arithmetic()
        self.sampler = draw.sampler
        self.per_round = draw.steps
        self._cohort = draw.cohort
        self.denominator = (
            self._cohort if spec.denominator is None else spec.denominator
        )
        self.seed = fresh(seed)
        self._drawn_by = "the operating system" if seed is None else str(seed)
        stream_indices = spec.stream_indices
        if stream_indices is None:
            stream_indices = ("round", "step", "client") if holders else ("round",)
        self._stream_indices = stream_indices
        self.groups = spec.groups if spec.private else None
        self._rule: Any = spec.clipping
        if self.groups is not None:
            _check_groups(spec, self.groups, dimension=dimension, holders=holders)
            self._rule = RuleByGroup(spec.private_rule, self.groups)
        self.states = self._first_states()
        self.non_finite = 0
        self.finished = list[FinishedSum]()
        self._lock = threading.Lock()
        self._last_written = -1
        self._drawn = set[tuple[int, ...]]()
        self._unwritten: int | None = None
        self.ledger = _open_ledger(ledger)
        if seed is not None and isinstance(self.ledger, Ledger):
            for purpose in sorted(spec.stream_purposes):
                self.ledger.claim(f"{seed}/{purpose}")
        if spec.private:
            self._warn_without_account()

    def _first_states(self) -> list[State]:
        """Return the clipping rule's state of each holder before the first round."""
        if not self.spec.private:
            return []
        threshold = self.spec.private_rule.threshold
        if threshold is None:
            raise DpsumError(
                "clipping.threshold is null: give a first threshold"
                " (`SumSpec.with_first_threshold`)"
            )
        return [self._rule.begin(threshold) for _ in range(self.holders or 1)]

    def _warn_without_account(self) -> None:
        """Warn before the first round if the releases will have no epsilon."""
        try:
            find(self.spec.private_noise.mechanism, self.sampler["kind"])
        except DpsumError as error:
            warnings.warn(f"{self.spec.name}: {error}", NoAccountWarning, stacklevel=3)

    @property
    def noise_multiplier(self) -> float:
        """z of the next release; see `Composition.noise_multiplier`."""
        return self.composition.noise_multiplier(self.spec.name)

    def begin_round(self, index: int, *, step: int = 0, holder: int = 0) -> Accumulator:
        """Return the accumulator of a round, to which contributions are added.

        Args:
            index: number of the round, from 0.
            step: the holder's local step, where each holder takes its own sum.
            holder: number of the holder.

        Raises:
            DpsumError: another round's release is not in the ledger yet.
        """
        if self._unwritten not in (None, index):
            raise DpsumError(
                f"{self.spec.name} was released in round {self._unwritten}, but the"
                " ledger has no line of it: use release(), or call write() before"
                " the next round begins"
            )
        state = self._state_of(holder)
        extra = None
        extra_sum = None
        if self.spec.private:
            extra = self._extra_of(state)
        if extra is not None:
            extra_sum = self._new_extra_sum(extra, state)
        return Accumulator(
            spec=self.spec,
            arithmetic=self.arithmetic,
            rule=self._rule,
            dimension=self.dimension,
            round=index,
            step=step,
            holder=holder,
            sum=self._new_sum(state, extra, index),
            state=state,
            extra=extra,
            extra_sum=extra_sum,
        )

    def release(self, total: Accumulator) -> np.ndarray:
        """Close the sum of a round and return the noised sum, float64 [d].

        The release is in the ledger when this returns. Mechanisms with several sums a
        round use `finish` and `write` instead.

        Raises:
            RuntimeError: the sum was released before; a second release would be a
                second mechanism.
            DpsumError: another sum of this round was released, so that both would have
                the same noise; the budget has no room for the round; or the mechanism
                has holders.
        """
        if self.holders:
            raise DpsumError(
                f"{self.spec.name} has one sum for each holder: call finish() for all"
                " sums of a round, then write()"
            )
        self._check_unreleased(total)
        if not self.composition.allows(total.round + 1):
            raise DpsumError(
                f"round {total.round} of {self.spec.name} is beyond the budget or the"
                " planned rounds: stop here, or call `allows` before each round"
            )
        released = self.finish(total)
        self.write(total.round)
        return released

    def finish(self, total: Accumulator) -> np.ndarray:
        """Close a sum and return the noised sum, but do not append to the ledger.

        Call `write` once after the last `finish` of a round, or of a local step. The
        caller asks `allows` before each round.

        Raises:
            RuntimeError: the sum was finished before.
            DpsumError: another sum with the same noise was finished before.
        """
        self._claim_noise(total)
        rule = self._rule
        extra = None
        released: np.ndarray = total.sum.release(
            self.draw_noise(self.spec.stream, total)
        )
        with self._lock:
            self.non_finite += total.sum.non_finite
        if rule is None:
            return released
        if total.extra is not None and total.extra_sum is not None:
            extra = total.extra_sum.release(self.draw_noise(total.extra.stream, total))
        rule.observe(
            total.state,
            Seen(
                released=released,
                norm=self.arithmetic.norm,
                extra=extra if extra is None or self.groups else float(extra[0]),
                denominator=self.denominator,
                raw_norms=None if rule.private else total.raw_norms,
            ),
        )
        mean = None
        extra_mean = None
        if self.observer is not None:
            mean = released / self.denominator
            if extra is not None:
                extra_mean = extra / self.denominator
        finished = FinishedSum(
            holder=total.holder,
            step=total.step,
            sum=total.sum,
            mean=mean,
            extra_sum=total.extra_sum,
            extra_mean=extra_mean,
        )
        with self._lock:
            self._unwritten = total.round
            # Without an observer, the last sum of a single holder is enough: all have
            # the same line in the ledger.
            if not self.holders and self.observer is None:
                self.finished.clear()
            self.finished.append(finished)
        if self.on_release is not None:
            self.on_release(total, released)
        return released

    def _claim_noise(self, total: Accumulator) -> None:
        """Reserve the noise of a sum, which no other sum may have.

        Raises:
            DpsumError: a sum with the same noise was finished before.
        """
        if not self.spec.private:
            return
        noise = self._indices_of(total, total.round)
        with self._lock:
            self._check_unreleased(total)
            if noise in self._drawn and not total.sum.released:
                raise DpsumError(_describe_repeated_release(total))
            self._drawn.add(noise)

    def _check_unreleased(self, total: Accumulator) -> None:
        """Refuse a sum of a round, or of a step, whose line was written."""
        last = self._last_written
        if isinstance(self.ledger, Ledger):
            last = max(last, self.ledger.last_round(self.spec.name))
        if self._number_of(total.round, total.step) <= last:
            raise DpsumError(_describe_repeated_release(total))

    def _indices_of(self, total: Accumulator, index: int) -> tuple[int, ...]:
        """Return the indices of a sum's stream of noise, in a round `index`."""
        names = {"round": index, "step": total.step, "client": total.holder}
        return tuple(names[name] for name in self._stream_indices)

    def _number_of(self, index: int, step: int) -> int:
        """Return the `round` of a line in the ledger; each local step has a line."""
        if self.per_round == 1:
            return index
        return index * self.per_round + step

    def allows(self, rounds: int) -> bool:
        """Return whether the budget has room for this total number of rounds."""
        return self.composition.allows(rounds)

    def epsilon_spent(self, rounds: int) -> dict[str, float]:
        """Return epsilon after a number of rounds; see `Composition.epsilon_spent`."""
        return self.composition.epsilon_spent(rounds)

    # Parts of a round

    def _state_of(self, holder: int) -> State:
        """Return the clipping rule's state of a holder."""
        if not self.states:
            return {}
        if not self.holders:
            return self.states[0]
        return self.states[holder]

    def _extra_of(self, state: State) -> Any:
        """Return the clipping rule's own release; None if it makes none."""
        return self._rule.extra(
            state, noise_multiplier=self.noise_multiplier, cohort=self._cohort
        )

    def _new_extra_sum(self, extra: Extra, state: State) -> PrivateSum:
        """Return the private sum behind the clipping rule's own release.

        It has one coordinate, or one for each group, and the adjacency of the sum.
        """
        adjacency = self.spec.adjacency
        if self.groups is None:
            return PrivateSum(
                dimension=1,
                threshold=extra.threshold,
                noise_multiplier=extra.noise_multiplier,
                adjacency=adjacency,
            )
        extras = self._rule.extras(
            state, noise_multiplier=self.noise_multiplier, cohort=self._cohort
        )
        return GroupedSum(
            groups=CoordinateGroups(
                tuple(range(len(extras) + 1)), "equal-shares", self.groups.names
            ),
            thresholds=[of_group.threshold for of_group in extras],
            noise_multiplier=extra.noise_multiplier,
            adjacency=adjacency,
        )

    def _new_sum(self, state: State, extra: Any, index: int = 0) -> Any:
        """Return the object that adds up the contributions of a round.

        Args:
            state: state of the clipping rule.
            extra: specification of the rule's own release; None without one.
            index: number of the round.
        """
        if not self.spec.private:
            return self.arithmetic.plain_sum(self.dimension)
        z = self.noise_multiplier
        if extra is not None and extra.within:
            # Both releases of a round together cost as much as one with the budget's
            # multiplier (Andrew et al. 2019, Theorem 1).
            if self.groups is not None and not extra.noise_multiplier > z:
                least = z * self.groups.count**0.5 / 2
                raise DpsumError(
                    f"the noised counts of {self.groups.count} groups cost more than"
                    f" the whole budget of {self.spec.name}: raise"
                    f" clipping.count_noise above {least:.4g}, or take fewer groups"
                )
            z = rest_multiplier(z, extra.noise_multiplier)
        if self.groups is not None:
            return GroupedSum(
                groups=self.groups,
                thresholds=state["threshold"],
                noise_multiplier=z,
                adjacency=self.spec.adjacency,
            )
        return self.spec.private_noise.private_sum(
            cohort=self._cohort,
            dimension=self.dimension,
            threshold=state["threshold"],
            noise_multiplier=z,
            adjacency=self.spec.adjacency,
            streams=lambda suffix, *indices: randomness.stream(
                self.seed, self.spec.stream + suffix, index, *indices
            ),
        )

    def draw_noise(self, purpose: str, total: Accumulator) -> np.ndarray | None:
        """Draw noise of deviation 1 on each coordinate of a release, float64 [d].

        None where the sum has no noise, or where the units add the noise.
        """
        noise = self.spec.noise
        if noise is None:
            return None
        if noise.one_by_one and purpose == self.spec.stream:
            return None
        dimension = total.dimension
        if purpose != self.spec.stream:
            assert total.extra_sum is not None
            dimension = total.extra_sum.dimension

        def stream_of(index: int) -> np.random.Generator:
            return randomness.stream(
                self.seed, purpose, *self._indices_of(total, index)
            )

        return noise.standard(stream_of, total.round, dimension)

    # The ledger

    def write(self, index: int, step: int | None = None) -> None:
        """Append the releases of a round to the ledger.

        The sum has one line for all holders, and a rule's own release one more. Where
        no unit took part, nothing is released, and the line has the noise that the
        release would have had.

        Args:
            index: number of the round.
            step: local step of the holders, where each step has its own line.

        Raises:
            DpsumError: the line was written before, or the finished sums are of another
                round.
        """
        number = self._number_of(index, step or 0)
        self._check_line(index, number)
        self._unwritten = None
        self._drawn.clear()
        self._last_written = number
        finished = sorted(
            self.finished, key=lambda release: (release.holder, release.step)
        )
        self.finished = []
        if not self.spec.private:
            return
        sums = [release.sum for release in finished]
        if not sums:
            state = self._state_of(0)
            sums = [self._new_sum(state, self._extra_of(state))]
        names = {"round": str(index)}
        if step is not None:
            names["step"] = str(step)
        # The names of holders' streams differ in the client alone.
        stream_name = "/".join(names.get(name, name) for name in self._stream_indices)
        line = self._line(sums, number, stream_name, self.spec.name, self.spec.stream)
        self._append(line, [(release, release.mean) for release in finished])
        if finished and finished[0].extra_sum is not None:
            extra = self._extra_of(self.states[0])
            line = self._line(
                [release.extra_sum for release in finished],
                number,
                stream_name,
                extra.name,
                extra.stream,
                counted_by_paper=extra.counted,
            )
            self._append(line, [(release, release.extra_mean) for release in finished])
        self.composition.charge(self.spec.name)

    def _check_line(self, index: int, number: int) -> None:
        """Refuse to write a line again, or to write that of another round."""
        if not self.spec.private:
            return
        name = self.spec.name
        if self._unwritten not in (None, index):
            raise DpsumError(
                f"{name} was released in round {self._unwritten}: write that round, not"
                f" {index}"
            )
        if number <= self._last_written:
            raise DpsumError(
                f"the ledger has the line of round {index} of {name} already: call"
                " write() once after the last finish() of a round"
            )

    def _append(self, line: Release, outcomes: Sequence[Any]) -> None:
        """Append a line to the ledger, and show it to the observer."""
        self.ledger.append(line)
        if self.observer is not None:
            self.observer(line, outcomes)

    def _line(
        self,
        sums: Sequence[Any],
        number: int,
        stream_name: str,
        name: str,
        purpose: str,
        *,
        counted_by_paper: bool = True,
    ) -> Release:
        """Return the ledger's line of a release.

        Args:
            sums: the sum of each holder.
            number: number of the release of one holder.
            stream_name: name of the release among its streams of noise.
            name: name of the release.
            purpose: purpose of its streams of noise.
            counted_by_paper: whether the method's paper counts it.
        """
        spec = self.spec
        first = sums[0]
        without_event = list(self.composition.unaccounted_of(spec.unit))
        if not spec.private_rule.private:
            without_event.append(spec.private_rule.reason)
        claimed_multiplier = None
        if spec.claimed_ratio != 1.0:
            claimed_multiplier = first.noise_multiplier * spec.claimed_ratio
        by_holder: dict[str, Any] = {
            field: [getattr(taken, field) for taken in sums]
            for field in ("threshold", "sensitivity", "noise_std")
        }
        if not self.holders:
            by_holder = {field: values[0] for field, values in by_holder.items()}
        return Release(
            round=number,
            name=name,
            mechanism=spec.private_noise.mechanism,
            unit=spec.unit,
            adjacency=spec.adjacency,
            observer=spec.observer,
            noise_multiplier=first.noise_multiplier,
            **by_holder,
            dimension=first.dimension,
            sampler=self.sampler,
            denominator=self.denominator,
            noise_stream=f"{self._drawn_by}/{purpose}/{stream_name}",
            counted_by_paper=counted_by_paper,
            data_dependent_threshold=bool(without_event),
            reason="; ".join(without_event),
            combines=spec.private_noise.combines(number),
            part=spec.part or None,
            adds=self.holders if spec.added else None,
            secure=None if first.secure is None else dict(first.secure),
            groups=_groups_line(first),
            claimed_multiplier=claimed_multiplier,
            follows_loss=spec.private_noise.follows_loss or None,
            thresholds_may_differ=(spec.added and spec.private_rule.moves) or None,
        )

    # Restart from a checkpoint

    def state(self) -> dict[str, Any]:
        """Return everything that a restart needs.

        Without a configured seed, this includes the secret seed of the noise: keep it
        secret.
        """
        plan = self.composition.plan_of(self.spec.name)
        if self._drawn_by == str(self.seed):
            drawn = {}
        else:
            drawn = {"seed": self.seed}
        return {
            "states": self.states,
            "budget": None if plan is None else plan.state(),
        } | drawn

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned.

        Rounds whose lines the ledger has are not released again: first take its lines
        back with `Ledger.go_on_after`, or remove them from a list.
        """
        self.states = list(state["states"])
        plan = self.composition.plan_of(self.spec.name)
        name = self.spec.name
        if isinstance(self.ledger, Ledger):
            self._last_written = self.ledger.last_round(name)
        elif isinstance(self.ledger, list):
            rounds = [line.round for line in self.ledger if line.name == name]
            self._last_written = max(rounds, default=-1)
        self.seed = state.get("seed", self.seed)
        if plan is not None:
            plan.restore(state["budget"])


def _describe_repeated_release(total: Accumulator) -> str:
    """Return the message about a second sum with the noise of a released one."""
    return (
        f"round {total.round} of {total.spec.name} was released before, and a second"
        " release would repeat its noise: begin the next round"
    )


def _check_calibrated(spec: SumSpec) -> None:
    """Refuse a sum whose noise multiplier is not a number."""
    if spec.noise is not None and spec.noise.multiplier is None:
        raise DpsumError(
            f"{spec.name} has no noise multiplier: give one, or give the sum a budget"
            " with an epsilon and create its mechanism from what calibrated(sums,"
            " participation) returns"
        )


def _check_groups(
    spec: SumSpec, groups: CoordinateGroups, *, dimension: int, holders: int
) -> None:
    """Refuse groups that do not fit the sum, or that no analysis covers."""
    mechanism = spec.private_noise.mechanism
    if mechanism != "gaussian":
        raise DpsumError(
            f"{spec.name} is clipped by groups of coordinates, but {mechanism} noise"
            " has no analysis by groups: take independent Gaussian noise, or one group"
        )
    if holders:
        raise DpsumError(
            f"{spec.name} is a sum of each holder's own, which cannot be clipped by"
            " groups of coordinates: take one group"
        )
    if groups.dimension != dimension:
        raise DpsumError(
            f"the groups cover {groups.dimension} coordinates of {dimension}: each"
            " coordinate must be in exactly one group"
        )


def _groups_line(total: PrivateSum) -> dict[str, Any] | None:
    """Return the ledger's field `groups` of a sum; None if it has no groups."""
    if not isinstance(total, GroupedSum):
        return None
    line: dict[str, Any] = {
        "boundaries": list(total.groups.boundaries),
        "thresholds": list(total.thresholds),
        "noise_stds": list(total.noise_stds),
    }
    if total.groups.names:
        line["names"] = list(total.groups.names)
    return line


def _open_ledger(ledger: ReleaseLog | Path | str) -> ReleaseLog:
    """Return a ledger; a path names a new file."""
    if not isinstance(ledger, (str, Path)):
        return ledger
    if Path(ledger).exists():
        raise DpsumError(
            f"{ledger} exists already: name a new file, or pass a Ledger to continue"
            " one or to share it between mechanisms"
        )
    return Ledger(Path(ledger))
