"""The book of a run's sums: opens them, keeps thresholds and noise, and writes down what each released.

What is computed from private data leaves its owner only through a sum that this book opened, and each release is in the
ledger, read off the mechanism that ran.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from dpfedbench.errors import BenchError
from dpfedbench.kernels.adding import add_to
from dpfedbench.kernels.clipped_sum import add_rows
from dpfedbench.parts.clipping.rule import Seen
from dpfedbench.parts.sum import Sum, Together, together
from dpfedbench.processes import Processes
from dpsum.accounting.analyses import known
from dpsum.accounting.budgets import OwnBudget
from dpsum.accounting.gaussian import rest_multiplier
from dpsum.accounting.units import cannot_compose
from dpsum.ledger import Ledger, Release
from dpsum.private_sum import PlainSum, PrivateSum
from dpsum.randomness import stream


@dataclasses.dataclass(frozen=True, kw_only=True)
class Made:
    """A release that was made: by whom, by which mechanism, and what left, over the denominator (float64 [d])."""

    client: int
    step: int
    total: PrivateSum
    mean: torch.Tensor | None
    extra: PrivateSum | None = None
    extra_mean: torch.Tensor | None = None


Observer = Callable[[Release, Sequence[tuple[Made, torch.Tensor]]], None]
"""Sees what the ledger's observer sees: a line of the ledger, and for each release that it stands for what left."""


class Open:
    """A sum that is being taken; `release` ends it."""

    def __init__(self, entry: Entry, *, index: int, step: int, client: int) -> None:
        self._entry, self._at = entry, {"round": index, "step": step, "client": client}
        self._state = entry.state_of(client)
        self._raw: list[float] = []
        self._extra_made: PrivateSum | None = None
        self.total: Any = entry.new_sum(self._state, index)
        if entry.sum.private:
            self._extra = entry.extra_of(self._state)
            if self._extra is not None:
                self._extra_made = PrivateSum(
                    dimension=1, threshold=self._extra.threshold, noise_multiplier=self._extra.noise_multiplier
                )

    @property
    def dimension(self) -> int:
        """Coordinates d."""
        return self._entry.dimension

    @property
    def norms(self) -> list[float]:
        """The contributions' own norms, of a sum that claims no privacy."""
        return self.total.norms

    def add(self, contributions: torch.Tensor) -> np.ndarray:
        """Add contributions [n, d]; returns their own norms [n], which are as private as they."""
        return self._seen(add_to(self.total, contributions))

    def add_by(self, add: Callable[[float, np.ndarray, np.ndarray], None], count: int) -> np.ndarray:
        """Add contributions that a compiled loop makes; see `PrivateSum.add_by`."""
        return self._seen(self.total.add_by(add, count))

    def _seen(self, norms: np.ndarray) -> np.ndarray:
        rule = self._entry.sum.clipping
        if rule is not None and not rule.private:
            self._raw += norms.tolist()
        if rule is not None and self._extra_made is not None:
            values = np.ascontiguousarray(rule.values(self._state, norms), dtype=np.float32)
            self._extra_made.add_by(functools.partial(add_rows, values), len(values))
        return norms

    def release(self) -> torch.Tensor:
        """The (noised) sum, float64 [d]; the threshold moves by it."""
        entry, rule = self._entry, self._entry.sum.clipping
        released = torch.from_numpy(self.total.release(entry.noise_of(entry.sum.stream, self._at)))
        entry.noted_non_finite(self.total.non_finite)
        if rule is None:
            return released
        extra = None
        if self._extra is not None and self._extra_made is not None:
            extra = torch.from_numpy(self._extra_made.release(entry.noise_of(self._extra.stream, self._at)))
        rule.observe(
            self._state,
            Seen(
                released=released,
                extra=None if extra is None else float(extra[0]),
                denominator=entry.denominator,
                raw_norms=None if rule.private else self._raw,
            ),
        )
        entry.note(
            Made(
                client=self._at["client"], step=self._at["step"], total=self.total,
                mean=released / entry.denominator if entry.watched else None, extra=self._extra_made,
                extra_mean=extra / entry.denominator if extra is not None and entry.watched else None,
            )
        )  # fmt: skip
        return released


class Entry:
    """One of a run's sums: its thresholds, its noise, what may be spent, and its lines of the ledger.

    Args:
        book: which it is in.
        sum: who is in it, and how it is clipped and noised.
        sampler: how its units are drawn, as the ledger has it.
        denominator: the public number that it is divided by.
        dimension: coordinates d.
        indices: what tells the random streams of its noise apart: some of "round", "step" and "client".
        cohort: the expected number of units; the denominator by default.
        holders: how many clients each keep a threshold of their own; 0: there is one threshold.
        per_round: releases of one holder in a round.
        multiplier: of its noise, where that follows from no budget.
        first: finds the first threshold where the rule does not say it.
        plain: makes what takes the contributions where the sum is not private.
    """

    def __init__(
        self, book: Book, sum_: Sum, *, sampler: Mapping[str, Any], denominator: float, dimension: int,
        indices: Sequence[str], cohort: float | None, holders: int, per_round: int, multiplier: float | None,
        first: Callable[[], float] | None, plain: Callable[[int], Any],
    ) -> None:  # fmt: skip
        self.book, self.sum, self.sampler, self.denominator, self.dimension = (
            book,
            sum_,
            sampler,
            denominator,
            dimension,
        )
        self._indices, self._plain, self._holders, self.per_round = tuple(indices), plain, holders, per_round
        self._cohort = denominator if cohort is None else cohort
        self._lock = threading.Lock()
        self.made: list[Made] = []
        self._multiplier, self.states = multiplier, list[dict[str, Any]]()
        self.stepwise = bool(holders)
        self.shared: tuple[Together, Any] | None = None
        rule, noise = sum_.clipping, sum_.noise
        if rule is None or noise is None:
            return
        threshold = rule.threshold
        if threshold is None:
            if first is None:
                raise BenchError("clipping.threshold is null: give a first threshold")
            threshold = first()
        self.states = [rule.begin(threshold) for _ in range(holders or 1)]
        assert multiplier is not None or sum_.budget is not None

    @property
    def watched(self) -> bool:
        """Whether somebody looks at what left."""
        return self.book.observer is not None

    @property
    def budget(self) -> Any:
        """What is spent by all sums that read the same units as this one; None where its noise follows from none."""
        self.book.settle()
        return None if self.shared is None else self.shared[1]

    @property
    def timed(self) -> bool:
        """Whether it may be told how long it took: whom its account takes to be hidden, time would tell of.

        Nor where each message is made by itself: how often a rounding is drawn is a client's own.
        """
        noise = self.sum.noise
        return noise is None or (not noise.one_by_one and known(noise.mechanism, self.sampler["kind"]))

    @property
    def noise_multiplier(self) -> float:
        """z that the budget is charged for; of the next release."""
        self.book.settle()
        if self.shared is None:
            assert self._multiplier is not None
            return self._multiplier
        sums, plan = self.shared
        return sums.multiplier(plan, self.sum.name)

    def state_of(self, client: int) -> dict[str, Any]:
        """The rule's state of a holder."""
        return {} if not self.states else self.states[client if self._holders else 0]

    def extra_of(self, state: dict[str, Any]) -> Any:
        """What the rule releases beside the sum."""
        assert self.sum.clipping is not None
        return self.sum.clipping.extra(state, noise_multiplier=self.noise_multiplier, cohort=self._cohort)

    @property
    def streams(self) -> set[str]:
        """Purposes of the random streams that its noise is drawn from: the sum's, and that of a rule's own release."""
        if not self.sum.private:
            return set()
        assert self.sum.clipping is not None
        # Their names are the same whatever the noise, which is not known yet.
        extra = self.sum.clipping.extra(self.states[0], noise_multiplier=1.0, cohort=self._cohort)
        return {self.sum.stream} | (set() if extra is None else {extra.stream})

    def new_sum(self, state: dict[str, Any], index: int = 0) -> Any:
        """What takes the contributions."""
        if not self.sum.private:
            return self._plain(self.dimension)
        z, extra = self.noise_multiplier, self.extra_of(state)
        if extra is not None and extra.within:
            # Both releases of a round together cost what the budget's multiplier does (Andrew et al. 2019, Theorem 1).
            z = rest_multiplier(z, extra.noise_multiplier)
        assert self.sum.noise is not None
        return self.sum.noise.private_sum(
            PrivateSum, streams=functools.partial(self._stream, index), cohort=self._cohort, dimension=self.dimension,
            threshold=state["threshold"], noise_multiplier=z, adjacency=self.sum.adjacency,
        )  # fmt: skip

    def _stream(self, index: int, what: str, *indices: int) -> np.random.Generator:
        return stream(self.book.seed, self.sum.stream + what, index, *indices)

    def noise_of(self, purpose: str, at: Mapping[str, int]) -> Any:
        """What a sum draws its noise from."""
        if self.sum.noise is None:
            return None
        return _Draws(self.sum.noise, self.book.seed, purpose, {**at}, self._indices)

    def open(self, index: int, *, step: int = 0, client: int = 0) -> Open:
        """Take the sum of round `index` (from 0), of a local step and a client where it is a client's own."""
        return Open(self, index=index, step=step, client=client)

    def each(self, pool: concurrent.futures.Executor, take: Callable[[int], Any]) -> list[Any]:
        """What `take` gives for each holder, who takes a sum in it.

        Each process asks it for its own holders. Afterwards all know what was released, and the thresholds.
        """
        processes = self.book.processes
        own = processes.own(self._holders)
        found = dict(zip(own, pool.map(take, own), strict=True))
        states = {holder: self.states[holder] for holder in own if self.states}
        told = processes.all((found, self.made, states))
        self.made = sorted((one for _, made, _ in told for one in made), key=lambda one: (one.client, one.step))
        for theirs, _, moved in told:
            found |= theirs
            for holder, state in moved.items():
                self.states[holder] = state
        return [found[holder] for holder in range(self._holders)]

    def note(self, made: Made) -> None:
        """Keep what was released for the ledger's line; where nobody looks, one stands for all that are alike."""
        with self._lock:
            if not self._holders and not self.watched:
                self.made.clear()
            self.made.append(made)

    def noted_non_finite(self, count: int) -> None:
        """Count contributions that were not finite."""
        with self._lock:
            self.book.non_finite += count

    def write(self, index: int, step: int | None = None) -> None:
        """Write down what was released in round `index`: one line for all that are alike, one more for a rule's own.

        Where no client came nothing is released, but the ledger says with what noise it would be.
        """
        made, self.made = sorted(self.made, key=lambda one: (one.client, one.step)), []
        if not self.sum.private:
            return
        if not made:
            made = [Made(client=0, step=0, total=self.new_sum(self.state_of(0)), mean=None)]
        number = index if step is None else index * self.per_round + step
        at: dict[str, Any] = {"round": index} | ({} if step is None else {"step": step})
        self._line([(one.total, one.mean, one) for one in made], number, at, self.sum.name, self.sum.stream, True)
        if made[0].extra is not None:
            extra = self.extra_of(self.states[0])
            rows = [(one.extra, one.extra_mean, one) for one in made]
            self._line(rows, number, at, extra.name, extra.stream, extra.counted)
        if self.budget is not None and self.book.charges(self):
            self.budget.took(1)

    def _line(
        self, rows: Sequence[tuple[Any, torch.Tensor | None, Made]], number: int, at: Mapping[str, Any], name: str,
        purpose: str, counted: bool,
    ) -> None:  # fmt: skip
        rule, noise, sums = self.sum.clipping, self.sum.noise, [total for total, _, _ in rows]
        assert rule is not None and noise is not None
        without_event = [*self.book.unaccounted, *([] if rule.private else [rule.reason])]
        fields = ("threshold", "sensitivity", "noise_std")
        values = {field: [getattr(each, field) for each in sums] for field in fields}
        line = Release(
            round=number,
            name=name,
            mechanism=noise.mechanism,
            unit=self.sum.unit,
            adjacency=self.sum.adjacency,
            observer=self.sum.observer,
            noise_multiplier=sums[0].noise_multiplier,
            **{field: each if self._holders else each[0] for field, each in values.items()},
            dimension=sums[0].dimension,
            sampler=dict(self.sampler),
            denominator=self.denominator,
            noise_stream="/".join([str(self.book.seed), purpose, *(str(at.get(name, name)) for name in self._indices)]),
            counted_by_paper=counted,
            data_dependent_threshold=bool(without_event),
            reason="; ".join(without_event),
            combines=noise.combines(number),
            part=self.sum.part or None,
            adds=self._holders if self.sum.added else None,
            secure=None if sums[0].secure is None else dict(sums[0].secure),
        )
        self.book.ledger.append(line)
        if self.book.observer is not None:
            self.book.observer(line, [(one, mean) for _, mean, one in rows if mean is not None])

    def state(self) -> dict[str, Any]:
        """Everything a restart needs."""
        return {"states": self.states, "budget": None if self.budget is None else self.budget.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self.states = list(state["states"])
        if self.budget is not None:
            self.budget.restore(state["budget"])


class _Draws:
    """In place of a random generator: standard noise of one release, drawn by its noise part."""

    def __init__(self, noise: Any, seed: int, purpose: str, at: dict[str, int], indices: Sequence[str]) -> None:
        self._noise, self._seed, self._purpose, self._at, self._indices = noise, seed, purpose, at, indices

    def standard_normal(self, dimension: int) -> np.ndarray:
        """Noise of deviation 1, float64 [d]."""

        def stream_of(index: int) -> np.random.Generator:
            at = {**self._at, "round": index}
            return stream(self._seed, self._purpose, *(at[name] for name in self._indices))

        return self._noise.standard(stream_of, self._at["round"], dimension)


class Book:
    """All sums of a run.

    Args:
        seed: the run's.
        claims: the method's, for budgets of the paper's accounting.
        ledger: where releases are written down.
        observer: shown each release of a private sum.
        unaccounted: why something that was computed from private data before the first round, and that leaves with the
            releases, has no event of its own; nothing finite holds of any release then.
        processes: those that take the run together.
        sums: all of the run, also those that nobody enters: an audit puts canaries in place of some. By default those
            that are entered.

    Attributes:
        non_finite: contributions of the round that were not finite and counted as zero.
    """

    def __init__(
        self, *, seed: int, claims: Any, ledger: Ledger, observer: Observer | None = None,
        unaccounted: Sequence[str] = (), processes: Processes | None = None, sums: Sequence[Sum] = (),
    ) -> None:  # fmt: skip
        self.seed, self.claims, self.ledger, self.observer = seed, claims, ledger, observer
        self.processes = processes or Processes()
        self.unaccounted = tuple(unaccounted)
        self.entries: list[Entry] = []
        self._sums, self._settled = tuple(sums), False
        self._plans, self._own = list[tuple[Any, int]](), list[OwnBudget]()
        self.non_finite = 0

    def enter(
        self, sum_: Sum, *, sampler: Mapping[str, Any], denominator: float, dimension: int,
        indices: Sequence[str] = ("round",), cohort: float | None = None, holders: int = 0, per_round: int = 1,
        multiplier: float | None = None, first: Callable[[], float] | None = None,
        plain: Callable[[int], Any] = lambda dimension: PlainSum(dimension=dimension),
    ) -> Entry:  # fmt: skip
        """Take a sum into the book, before the first round; see `Entry`.

        Raises:
            BenchError: another sum of the run has the same stream of noise, or a sum of the run was opened already.
        """
        if self._settled:
            raise BenchError(f"{sum_.name} comes after the noise of all sums was fixed: enter it with the others")
        entry = Entry(
            self, sum_, sampler=sampler, denominator=denominator, dimension=dimension, indices=indices, cohort=cohort,
            holders=holders, per_round=per_round, multiplier=multiplier, first=first, plain=plain,
        )  # fmt: skip
        for shared in entry.streams & set[str]().union(*(other.streams for other in self.entries)):
            raise BenchError(
                f"two sums of this run draw their noise from the stream {shared!r}: name another, or where it is a "
                "clipping rule's own take another rule for one of them"
            )
        self.entries.append(entry)
        return entry

    def settle(self) -> None:
        """Fix what may be spent and the noise, once all sums are in the book: one budget for those that read the same.

        Raises:
            BenchError: no noise meets a budget, or no analysis composes sums that read the same units.
        """
        if self._settled:
            return
        self._settled = True
        entries = {entry.sum.name: entry for entry in self.entries if entry.sum.private}
        named = {sum_.name for sum_ in self._sums}
        sums = [*self._sums, *(entry.sum for name, entry in entries.items() if name not in named)]
        budget = next((sum_ for sum_ in sums if sum_.private and sum_.budget is not None), None)
        for group in together(sums):
            found = [entries[sum_.name] for sum_ in group.sums if sum_.name in entries]
            if not found:
                continue
            first, counted = found[0], not self.unaccounted
            if first.sum.budget is not None:
                for other in found[1:]:
                    if other.sampler != first.sampler:
                        names = first.sum.name, other.sum.name
                        raise BenchError(cannot_compose(*names, first.sum.unit, first.sum.part))
                rules = [sum_.clipping for sum_ in group.sums]
                counted = counted and all(rule is not None and rule.private for rule in rules)
                plan = group.plan(first.sampler, claims=self.claims, counted=counted, stepwise=first.stepwise)
                for entry in found:
                    entry.shared = group, plan
                self._plans.append((plan, first.per_round))
            elif budget is not None and budget.budget is not None and budget.unit == first.sum.unit:
                own = OwnBudget(
                    budget.budget, name=first.sum.name, sampler=first.sampler, multiplier=first.noise_multiplier,
                    claims=self.claims, counted=counted,
                )  # fmt: skip
                self._own.append(own)

    def charges(self, entry: Entry) -> bool:
        """Whether a sum is the first of those that read the same units: a round of all of them is charged for once."""
        assert entry.shared is not None
        names = {sum_.name for sum_ in entry.shared[0].sums}
        return next(known for known in self.entries if known.sum.name in names) is entry

    @property
    def timed(self) -> bool:
        """Whether it may be told how long a round took, or all of them: nothing then follows of a secret cohort."""
        return all(entry.timed for entry in self.entries)

    @property
    def budgeted(self) -> list[Entry]:
        """The sums whose noise follows from a budget."""
        return [entry for entry in self.entries if entry.budget is not None]

    @property
    def budgets(self) -> list[Any]:
        """The budgets of these sums, each once."""
        self.settle()
        return [plan for plan, _ in self._plans]

    def spent(self, rounds: int) -> dict[str, float]:
        """Epsilon after so many rounds, as claimed and as it holds, of what the budget is of; see `accounting.units`.

        Sums that read the same units are composed; of sums over disjoint parts of the records it is the largest.
        """
        self.settle()
        both = [plan.spent(rounds * per_round) for plan, per_round in self._plans]
        both += [own.spent(rounds) for own in self._own]
        names = ("epsilon_claimed", "epsilon_holds")
        return {name: float(np.max(found)) for name, found in zip(names, zip(*both, strict=True), strict=False)}

    def allows(self, rounds: int) -> bool:
        """Whether every budget has room for so many rounds in all."""
        self.settle()
        return all(plan.allows(rounds * per_round) for plan, per_round in self._plans)

    def expected(self, planned: int) -> int:
        """Rounds to come of those planned, for the time left on screen; with noise that decays there will be fewer."""
        self.settle()
        return min([planned, *(plan.lots_allowed // per_round for plan, per_round in self._plans)])

    def state(self) -> list[dict[str, Any]]:
        """Everything a restart needs."""
        return [entry.state() for entry in self.entries]

    def restore(self, state: Sequence[Mapping[str, Any]]) -> None:
        """The inverse of `state`."""
        for entry, saved in zip(self.entries, state, strict=True):
            entry.restore(saved)
