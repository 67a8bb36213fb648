"""Check that a ledger describes the mechanism that its run's configuration determines.

Otherwise an account of the ledger would be that of another mechanism. The check
compares unit, adjacency, observer, mechanism, sampler, rounds, streams of noise,
releases without an accounting event, and the noise multiplier of each round. The
multiplier is the configured one, or the one that a budget calibrates. Noise that
follows a loss may change only as its rule allows. Thresholds are compared as far as the
clipping rule determines them. The number of records of a client is not compared: no
configuration states it.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from dpfedbench.breaches import unaccounted_releases, unaccounted_units
from dpfedbench.errors import BenchError
from dpfedbench.parts.budget import OwnSum
from dpfedbench.run import Run
from dpsum.accounting.further_release import rest_multiplier
from dpsum.clipping import RuleByGroup
from dpsum.group_clipping import CoordinateGroups
from dpsum.ledger import Release
from dpsum.sums import SumSpec, composition_groups

Samplers = Mapping[str, Mapping[str, Any]]


def check_agrees(run: Run, releases: Sequence[Release], rounds: int) -> None:
    """Refuse a ledger that differs from the run's configuration.

    Args:
        run: the run with its configuration.
        releases: the ledger.
        rounds: number of rounds according to training.json.

    Raises:
        BenchError: at the first difference.
    """
    named = dict[str, list[Release]]()
    for line in releases:
        named.setdefault(line.name, []).append(line)
    private = run.private_sums
    if private:
        budgets = [sum_.budget for sum_ in private if sum_.budget is not None]
        if not any(budget.epsilon is not None and budget.stop for budget in budgets):
            _same("rounds", rounds, run.participation.rounds)
        samplers = _samplers(run, releases)
        layouts = {
            sum_.name: _layout(sum_, named.get(sum_.name, [])) for sum_ in private
        }
        first_thresholds = {
            sum_.name: float(np.atleast_1d(named[sum_.name][0].threshold)[0])
            for sum_ in private
            if sum_.name in named
        }
        for sum_ in private:
            checked = _Checked(run, sum_, samplers, rounds, layouts, first_thresholds)
            checked.check(named)
    _same("further releases, of", sorted(named), [])


def _same(what: str, stated: Any, expected: Any) -> None:
    if stated != expected:
        _refuse(what, stated, expected)


def _close(what: str, stated: Any, expected: Any) -> None:
    """Refuse numbers that differ by more than rounding."""
    if not np.allclose(stated, expected, rtol=1e-9, atol=0):
        _refuse(what, stated, np.asarray(expected).tolist())


def _refuse(what: str, stated: Any, expected: Any) -> NoReturn:
    raise BenchError(
        f"the ledger has {what} {stated}, but the run's configuration gives"
        f" {expected}: the ledger belongs to another run or was changed; train"
        " the run again"
    )


def _layout(sum_: SumSpec, lines: Sequence[Release]) -> CoordinateGroups | None:
    """Return the groups of coordinates of a sum; None without groups.

    The ledger states the boundaries of the groups, the configuration how the noise is
    split among them.
    """
    rule = sum_.private_rule
    for line in lines:
        _same(
            f"in round {line.round} groups of {sum_.name}:",
            line.groups is not None,
            rule.groups != "all",
        )
    if rule.groups == "all" or not lines:
        return None
    assert lines[0].groups is not None
    return CoordinateGroups(tuple(lines[0].groups["boundaries"]), rule.noise_by_group)


def _samplers(run: Run, releases: Sequence[Release]) -> Samplers:
    held = (
        line.sampler.get("sizes") or int(line.sampler["records"])
        for line in releases
        if "records" in line.sampler
    )
    records = next(held, 1)
    private = [sum_.name for sum_ in run.client_sums if sum_.private]
    client_samplers = run.client_update.samplers(run, records) if private else {}
    served = (run.server_sum, *run.further_sums)
    return {name: client_samplers[name] for name in private} | {
        sum_.name: run.plan.describe() for sum_ in served
    }


def _check_noise(line: Release) -> None:
    """Check that the noise deviation is z times the sensitivity.

    For independent Gaussian noise, check also that the sensitivity is C (zero-out) or 2
    C (replace-one).
    """
    where = f"in round {line.round} a"
    if line.mechanism == "gaussian":
        reach = {"zero-out": 1.0, "replace-one": 2.0}[line.adjacency]
        _close(
            f"{where} sensitivity of {line.name} of",
            line.sensitivity,
            reach * np.asarray(line.threshold),
        )
    _close(
        f"{where} deviation of the noise of {line.name} of",
        line.noise_std,
        line.noise_multiplier * np.asarray(line.sensitivity),
    )


def _thresholds(line: Release) -> np.ndarray:
    """Return the thresholds of a line: one, or one for each holder or group."""
    if line.groups is not None:
        return np.array(line.groups["thresholds"])
    return np.atleast_1d(line.threshold)


class _Checked:
    """Check of one private sum of a run, and of its rule's extra release."""

    def __init__(
        self,
        run: Run,
        sum_: SumSpec,
        samplers: Samplers,
        rounds: int,
        layouts: Mapping[str, CoordinateGroups | None],
        first_thresholds: Mapping[str, float],
    ) -> None:
        self.run = run
        self.sum = sum_
        self.rule = sum_.private_rule
        self.noise = sum_.private_noise
        self.sampler = samplers[sum_.name]
        self._layouts = layouts
        self.layout = layouts[sum_.name]
        self._first_thresholds = first_thresholds
        self.lines = rounds * self.sampler["rounds"] // max(run.participation.rounds, 1)
        self.multiplier = self._multiplier(samplers)

    def _ratio(self, sum_: SumSpec) -> float:
        """Return the ratio of a sum's configured multiplier to the proven one."""
        spec = dataclasses.replace(sum_, groups=self._layouts[sum_.name])
        threshold = self._first_thresholds.get(sum_.name)
        if threshold is not None:
            spec = spec.with_first_threshold(threshold)
        return spec.claimed_ratio

    def _multiplier(self, samplers: Samplers) -> float:
        """Return the noise multiplier of the first round.

        It is the multiplier before a rule's extra release takes its share.
        """
        within_task = self.sum.within_task
        if isinstance(within_task, OwnSum):
            own_samplers = {
                sum_.name: samplers[sum_.name]
                for sum_ in self.run.all_sums
                if sum_.within_task is not None
            }
            return within_task.noise_multiplier(
                own_samplers, self.run.claims
            ) / self._ratio(self.sum)
        if self.noise.multiplier is not None:
            return self.noise.multiplier / self._ratio(self.sum)
        group = next(
            group
            for group in composition_groups(self.run.all_sums)
            if self.sum in group.sums
        )
        plan = group.plan(
            self.sampler,
            claims=self.run.counted_claims,
            counted=False,
            ratios=[self._ratio(sum_) for sum_ in group.sums],
        )
        return plan.multipliers[group.sums.index(self.sum)]

    def check(self, named: dict[str, list[Release]]) -> None:
        """Check the lines of the sum, and remove them from `named`."""
        rule = self.rule
        name = self.sum.name
        lines = named.pop(name, [])
        self._check_lines(name, self.sum.stream, lines, counted=True)
        if not lines:
            return
        first = _thresholds(lines[0])
        if rule.threshold is not None:
            _same(
                f"a first threshold of {name} of", set(first.tolist()), {rule.threshold}
            )
        extra_lines = list[Release]()
        by_rule: Any = rule
        if self.layout is not None:
            by_rule = RuleByGroup(rule, self.layout)
            state = by_rule.begin(first.tolist())
        else:
            state = rule.begin(float(first[0]))
        candidates: tuple[float, ...] = (self.multiplier,)
        extra = by_rule.extra(
            state, noise_multiplier=self.multiplier, cohort=self.sampler["cohort"]
        )
        if extra is not None:
            extra_lines = named.pop(extra.name, [])
            self._check_lines(
                extra.name, extra.stream, extra_lines, counted=extra.counted
            )
        for number, line in enumerate(lines):
            if not rule.moves:
                _same(
                    f"thresholds of {name} of",
                    set(_thresholds(line).tolist()),
                    set(first.tolist()),
                )
            stated = {self._stated(by_rule, state, z): z for z in candidates}
            multipliers = (
                line.noise_multiplier,
                *(
                    extra_line.noise_multiplier
                    for extra_line in extra_lines[number : number + 1]
                ),
            )
            if multipliers not in stated:
                _same(
                    f"in round {line.round} multipliers of {name} of",
                    multipliers,
                    " or ".join(map(str, stated)),
                )
            candidates = self.noise.successors(stated[multipliers])

    def _stated(self, rule: Any, state: Any, z: float) -> tuple[float, ...]:
        """Return the multipliers of a round that costs z.

        The first is the sum's, the second that of the rule's extra release, if there is
        one.
        """
        extra = rule.extra(state, noise_multiplier=z, cohort=self.sampler["cohort"])
        if extra is None:
            return (z,)
        return (
            rest_multiplier(z, extra.noise_multiplier) if extra.within else z
        ), extra.noise_multiplier

    def _check_groups(self, line: Release) -> None:
        """Check the noise of each group, and the multiplier that the paper counts."""
        where = f"in round {line.round} a"
        ratio = self._ratio(self.sum)
        claimed = None if ratio == 1.0 else line.noise_multiplier * ratio
        if not math.isclose(line.claimed_multiplier or 0.0, claimed or 0.0):
            _same(f"{where} claimed multiplier of", line.claimed_multiplier, claimed)
        if self.layout is None or line.groups is None:
            return
        _same(
            f"{where} number of groups of",
            len(line.groups["thresholds"]),
            self.layout.count,
        )
        if line.name != self.sum.name:
            return
        _same(
            f"{where} set of boundaries of",
            line.groups["boundaries"],
            list(self.layout.boundaries),
        )
        expected = self.layout.noise_stds(
            line.groups["thresholds"], line.noise_multiplier
        )
        _close(
            f"{where} deviation of the noise in each group of",
            line.groups["noise_stds"],
            expected,
        )

    def _check_sampler(self, line: Release) -> None:
        """Check the sampler, and that the cohorts of a served sum are the run's draw.

        Lines of earlier versions do not name their draw.
        """
        where = f"in round {line.round} a"
        numbers = dict(line.sampler)
        draw = numbers.pop("draw", None)
        _same(f"{where} sampler of {line.name} of", numbers, dict(self.sampler))
        if draw is not None and self.sum.taken_by == "server":
            _same(f"{where} draw of {line.name} of", draw, self.run.plan.draw)

    def _check_thresholds_may_differ(self, line: Release) -> None:
        """Check that added sums of a rule that moves C are marked.

        Lines of earlier versions have no mark. Where the thresholds of such a line
        differ, its account needs none.
        """
        thresholds = set(_thresholds(line).tolist())
        if line.thresholds_may_differ is None and len(thresholds) > 1:
            return
        _same(
            f"in round {line.round} a thresholds_may_differ of {line.name} of",
            line.thresholds_may_differ,
            (self.sum.added and self.rule.moves) or None,
        )

    def _check_lines(
        self, name: str, stream: str, lines: Sequence[Release], *, counted: bool
    ) -> None:
        run = self.run
        without_event = [
            *unaccounted_releases(run),
            *unaccounted_units(run).get(self.sum.unit, ()),
        ]
        if not self.rule.private:
            without_event.append(self.rule.reason)
        _same(f"rounds of {name}", len(lines), self.lines)
        expected = {
            "unit": self.sum.unit,
            "adjacency": self.sum.adjacency,
            "observer": self.sum.observer,
            "mechanism": self.noise.mechanism,
            "counted_by_paper": counted,
            "part": self.sum.part or None,
            "follows_loss": self.noise.follows_loss or None,
        }
        for line in lines:
            for field, value in expected.items():
                _same(
                    f"in round {line.round} a {field} of {name} of",
                    getattr(line, field),
                    value,
                )
            self._check_sampler(line)
            self._check_thresholds_may_differ(line)
            _check_noise(line)
            self._check_groups(line)
            secure = self.noise.secure(
                dimension=line.dimension,
                cohort=self.sampler["cohort"],
                threshold=line.threshold,
                noise_multiplier=line.noise_multiplier,
            )
            _same(
                f"in round {line.round} whole numbers of {name} of",
                line.secure,
                secure,
            )
            drawn_by = [str(run.stream_seed), stream]
            _same(
                f"in round {line.round} a stream of",
                line.noise_stream.split("/")[:2],
                drawn_by,
            )
            stated_reason = line.reason if line.data_dependent_threshold else ""
            stated = [reason for reason in without_event if reason in stated_reason]
            _same(
                f"in round {line.round} as what {name} does not account for",
                stated,
                without_event,
            )
