"""The account of a run: from its ledger to epsilon under each profile.

- `claimed`: the accounting of the run's paper (`claims`). For a sampler that the paper
  does not account for, it is the proven epsilon.
- `proven`: the epsilon that the sampler and the observer justify (`analyses`).
- `replace_one`: the same under replace-one adjacency, where a unit's contribution
  becomes any other, so that the sum moves by up to 2C.
- `image_level`: the proven epsilon for one image, which many simulated clients may use
  (`image_level`).
- `tuning`: the proven epsilon for a declared search for hyper-parameters that includes
  this run (`tuning`).

Where a profile does not apply to a run, the account has a reason instead of a number.
All profiles but `replace_one` are for zero-out adjacency, with the sensitivity in the
ledger. Brackets are proven: the low end is below, the high end above the exact epsilon.
Noise that followed a validation loss is covered by a proof in `filters`; else the
account is that of the schedule that was run, and says so.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dploss.gaussian import Bracket, ends, gaussian_epsilon, joint_multiplier
from dploss.renyi import PROVEN_ORDERS, epsilon_of
from dpsum.accounting import analyses
from dpsum.accounting.accountant import Accountant, Events, check_sensitivity
from dpsum.accounting.analyses.poisson import PoissonAccountant, composed_ends
from dpsum.accounting.claims import Claims
from dpsum.accounting.context import AccountContext
from dpsum.accounting.filters import Filter
from dpsum.accounting.profiles import AS_RUN, STATUSES, Entry, Profiles
from dpsum.accounting.units import (
    by_draw,
    by_part,
    by_unit,
    cannot_compose,
    tells_rounds,
)
from dpsum.errors import DpsumError
from dpsum.ledger import Release, read_ledger
from dpsum.sampling import UNNAMED

PROFILES = ("claimed", "proven", "replace_one", "image_level", "tuning")
"""Profiles of an account, in order; each has a number or a reason."""

_NOTHING_PRIVATE = "no release claims privacy"
_UNEVEN = (
    "; clients' thresholds may differ, and with them how much the noise of others hides:"
    " this is of the worst client under the thresholds that were run, and does not cover"
    " the choice of them; whatever they are, it is never above what is proven against"
    " the server"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Account:
    """The account of a run, or of its releases that protect one unit from one observer.

    Attributes:
        delta: delta at which epsilon is stated.
        unit: the unit that the releases protect; None where no release claims privacy.
        rounds: number of rounds that were run.
        noise_multiplier: the least multiplier of the releases that the paper counts.
        sampler: how the cohort was drawn.
        profiles: entries by the names in `PROFILES`.
        reasons: why each of the other profiles has no number.
        groups: proven epsilon for several units at once, by their number.
        notices: warnings for the reader.
        also: account of another unit or observer.
    """

    delta: float
    unit: str | None = None
    rounds: int = 0
    noise_multiplier: float | None = None
    sampler: Mapping[str, Any] | None = None
    profiles: Mapping[str, Entry] = dataclasses.field(default_factory=dict)
    groups: Mapping[str, Entry] = dataclasses.field(default_factory=dict)
    reasons: Mapping[str, str]
    notices: tuple[str, ...] = ()
    also: tuple[Account, ...] = ()

    def __str__(self) -> str:
        """Return one line for each profile: epsilon and adjacency, or the reason."""
        lines = [_NOTHING_PRIVATE]
        if self.unit:
            lines = [
                f"a {self.unit}, after {self.rounds} rounds, at delta {self.delta:g}"
            ]
            for name in PROFILES:
                lines.append(f"{name:>12}: {self._profile_text(name)}")
        for account in self.also:
            lines.append(str(account))
        return "\n".join(lines)

    def _profile_text(self, name: str) -> str:
        """Return a profile's epsilon and status, or the reason why it has none."""
        entry = self.profiles.get(name)
        if entry is None:
            return self.reasons.get(name, "not asked")
        epsilon = f"{entry.epsilon_high:.4g} under {entry.adjacency} adjacency"
        return f"epsilon {epsilon} ({entry.status}); {entry.explanation}"

    def to_json(self) -> dict[str, Any]:
        """Return the account in the form of privacy.json."""
        if self.unit is None:
            return {
                "delta": self.delta,
                "rounds": 0,
                "unit": None,
                "profiles": {},
                "reasons": dict(self.reasons),
                "reason": _NOTHING_PRIVATE,
            }
        values = dict(vars(self))
        values["profiles"] = _json_of(self.profiles)
        values["groups"] = _json_of(self.groups)
        values["sampler"] = dict(self.sampler or {})
        values["notices"] = list(self.notices)
        values["also"] = [account.to_json() for account in self.also]
        for name in ("also", "groups"):
            if not values[name]:
                del values[name]
        return values

    @classmethod
    def from_json(
        cls, values: Mapping[str, Any], where: str = "the account"
    ) -> Account:
        """Return the account that `to_json` converted; infinity may be text.

        Args:
            values: the account, as from `to_json` or a JSON file.
            where: name of the source, for messages.

        Raises:
            DpsumError: the values are not an account.
        """
        try:
            known = dict(values)
            known.pop("reason", None)
            known.setdefault("groups", {})
            for key in ("profiles", "groups"):
                entries = known[key].items()
                known[key] = {name: _entry(entry) for name, entry in entries}
            also = known.get("also", ())
            known["also"] = tuple(cls.from_json(account, where) for account in also)
            known["notices"] = tuple(known.get("notices", ()))
            return cls(**known)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DpsumError(
                f"{where} is not an account ({error}): delete it and run the workflow"
                " again"
            ) from error


def _json_of(entries: Mapping[str, Entry]) -> dict[str, dict[str, Any]]:
    """Return the fields of each entry that are not None."""
    return {
        name: {
            field: value for field, value in vars(entry).items() if value is not None
        }
        for name, entry in entries.items()
    }


def _entry(values: Mapping[str, Any]) -> Entry:
    fields = dict(values)
    for name in ("epsilon_low", "epsilon_high"):
        fields[name] = float(fields[name])
    return Entry(**fields)


def account(
    releases: Sequence[Release] | Path | str,
    *,
    delta: float,
    claims: Claims | None = None,
    own_delta: float | None = None,
    context: AccountContext | None = None,
) -> Account:
    """Return the account of a run's releases, with all profiles.

    Noise multipliers may differ between rounds.

    Args:
        releases: the run's ledger, or its path; empty for a run without private
            releases.
        delta: delta at which epsilon is stated.
        claims: the accounting of the method's paper, by kind of sampler; None: the
            paper claims no epsilon.
        own_delta: delta of sums that clients take over their own examples, where the
            server takes a sum too.
        context: further inputs about the run.

    Raises:
        DpsumError: the ledger is inconsistent, its mechanism or sampler has no
            analysis, or delta is out of bounds.
    """
    if not 0 < delta < 1:
        raise DpsumError(f"delta is {delta}: it must lie between 0 and 1")
    if isinstance(releases, (str, Path)):
        releases = read_ledger(releases)
    claims = claims or {}
    if not releases:
        reasons = dict.fromkeys(PROFILES, _NOTHING_PRIVATE)
        return Account(delta=delta, reasons=reasons)
    context = context or AccountContext()
    _check_sensitivities(releases, "the ledger's")
    _check_sensitivities(context.before, "the earlier ledger's")
    units = by_unit(releases)
    events: list[Release] = []
    for lines in units.values():
        _check_composes(lines)
        events += _of_one_observer(lines)
    client_releases = [event for event in events if _accountant_of(event).within_task]
    served = [event for event in events if not _accountant_of(event).within_task]
    if context.before:
        _check_rests_on([*context.before, *releases])
    # Only the server's noise may follow a loss.
    of_clients = dataclasses.replace(
        context, budget=None, adaptive=None, decay_step=None
    )
    if not served:
        return _account_of(client_releases, delta, claims, of_clients)
    without_groups = dataclasses.replace(context, groups=())
    first = _served(served, delta, claims, without_groups)
    if not client_releases:
        return first
    if len(units) == 1:
        # A unit is in one of the sums. The worse of both counts, so both use one delta.
        return _either(first, _account_of(client_releases, delta, claims, of_clients))
    second = _account_of(client_releases, own_delta or delta, claims, of_clients)
    return dataclasses.replace(first, also=(second,))


def _check_sensitivities(releases: Sequence[Release], ledger: str) -> None:
    """Refuse lines whose sensitivity does not fit their threshold and adjacency."""
    for number, event in enumerate(releases):
        check_sensitivity(event, f"{ledger} release {number}")


def _of_one_observer(lines: Sequence[Release]) -> Sequence[Release]:
    """Return the releases with one observer: the server, if the observers differ.

    The server also sees what everyone sees.
    """
    observers = {event.observer for event in lines}
    if len(observers) == 1:
        return lines
    return [dataclasses.replace(event, observer="server") for event in lines]


def _check_rests_on(releases: Sequence[Release]) -> None:
    """Refuse within-task sums, and two units, in a run that uses another's releases."""
    units = {event.unit for event in releases}
    accountants = [_accountant_of(event) for event in releases]
    has_own_sums = any(accountant.within_task for accountant in accountants)
    if len(units) > 1 or has_own_sums:
        raise DpsumError(
            "this run uses another run's releases: no analysis covers clients' own"
            " sums, or two units"
        )


def _accountant_of(event: Release) -> Accountant:
    return analyses.find(event.mechanism, event.sampler["kind"])


def _check_composes(lines: Sequence[Release]) -> None:
    """Refuse within-task sums that no analysis composes with the others.

    They may read what another sum reads, or reveal rounds that the account needs
    secret.
    """
    own_sums = {}
    for event in lines:
        if _accountant_of(event).within_task:
            own_sums[event.name] = event
    if not own_sums:
        return
    for part, events in by_part(lines).items():
        names = list(dict.fromkeys(event.name for event in events))
        if len(names) < 2:
            continue
        if not own_sums.keys().isdisjoint(names):
            raise DpsumError(cannot_compose(names[0], names[1], lines[0].unit, part))
    first_own_sum = next(iter(own_sums.values()))
    for event in lines:
        accountant = _accountant_of(event)
        if not accountant.within_task and not accountant.known:
            raise DpsumError(tells_rounds(first_own_sum, event.sampler["kind"]))


def _account_of(
    releases: Sequence[Release], delta: float, claims: Claims, context: AccountContext
) -> Account:
    reader = Profiles(releases, delta, claims, context)
    profiles, reasons = reader.read()
    sampler = releases[0].sampler
    unit = releases[0].unit
    units = sampler.get("records", sampler["clients"])
    notices = _notices_of_groups(releases)
    if delta * units >= 1:
        notices.append(
            f"delta {delta:g} is not below 1/{units}, one over the number of {unit}s"
        )
    return Account(
        delta=delta,
        unit=unit,
        rounds=len(reader.events.multipliers),
        noise_multiplier=min(
            ends(schedule)[0] for schedule, _ in reader.events.claimed
        ),
        sampler=dataclasses.replace(sampler, draw=None),
        profiles=profiles,
        groups=reader.groups(profiles),
        reasons=reasons,
        notices=tuple(notices),
    )


def _notices_of_groups(releases: Sequence[Release]) -> list[str]:
    """Return a notice where noise by groups is less than the paper's multiplier."""
    for event in releases:
        if event.claimed_multiplier is not None and event.groups is not None:
            return [
                f"{event.name} has noise by group: what is claimed counts a noise"
                f" multiplier of {event.claimed_multiplier:.4g}, but"
                f" {len(event.groups['thresholds'])} groups together have"
                f" {event.noise_multiplier:.4g}"
            ]
    return []


def _served(
    releases: Sequence[Release], delta: float, claims: Claims, context: AccountContext
) -> Account:
    """Return the account of sums over clients or records, for each observer.

    For records it is that of the worst part.
    """
    first = _worst_part(releases, delta, claims, context)
    clients = releases[0].adds
    also = list[Account]()
    for who, noises in further_observers(releases).items():
        before = []
        for event in context.before:
            # The same holds for earlier releases, if as many clients made them.
            if event.adds == clients:
                event = seen_by(event, noises, who)
            before.append(event)
        # The budget was kept for the server's view; no filter is known for others'.
        of_observer = dataclasses.replace(
            context,
            before=tuple(before),
            before_context=None,
            budget=None,
            decay_step=None,
        )
        # Another of two clients sees the release of the first alone.
        may_be_uneven = noises > 1 and any(
            event.thresholds_may_differ or _is_uneven(event)
            for event in (*releases, *context.before)
        )
        if may_be_uneven:
            of_observer = dataclasses.replace(of_observer, adaptive=False)
        releases_seen = [seen_by(event, noises, who) for event in releases]
        account = _worst_part(releases_seen, delta, claims, of_observer)
        if may_be_uneven:
            account = _of_uneven(account, _low_of_uneven(releases, noises, who, delta))
        also.append(account)
    return dataclasses.replace(first, also=tuple(also))


def _low_of_uneven(
    releases: Sequence[Release], clients: int, observer: str, delta: float
) -> float:
    """Return a low end of epsilon where clients' thresholds differ.

    It is that of the records of one client in all rounds: of the client whose releases
    have the largest sum of z^-2. 0 where some clients made no release in a round, so
    that the ledger does not tell whose the others are.

    Arguments as in `seen_at_most`.
    """
    holders = releases[0].adds or 1
    for event in releases:
        if not isinstance(event.sensitivity, list) or len(event.sensitivity) < holders:
            return 0.0
    by_holder = [
        [seen_at_most(event, clients, observer, holder) for event in releases]
        for holder in range(holders)
    ]

    def cost(lines: Sequence[Release]) -> float:
        return math.fsum(line.noise_multiplier**-2 for line in lines)

    worst = max(by_holder, key=cost)
    lows = []
    for events in by_part(worst).values():
        for reader in _readers(_draws_of(events), delta, {}, AccountContext()):
            if reader.missing:
                return math.inf
            lows.append(reader.accountant.bracket(reader.events, delta)[0])
    return max(lows)


def _of_uneven(account: Account, low: float) -> Account:
    """Return an account of added releases whose clients' thresholds may differ.

    Thresholds follow from earlier releases, and the account does not cover the choice
    of them.

    Args:
        account: account of the worst client of each round.
        low: low end of epsilon under zero-out.
    """
    profiles = {}
    for name, entry in account.profiles.items():
        status = max(entry.status, "as run", key=STATUSES.index)
        explanation = entry.explanation + _UNEVEN
        entry = dataclasses.replace(entry, status=status, explanation=explanation)
        if name != "claimed":
            least = min(entry.epsilon_low, low)
            entry = dataclasses.replace(entry, epsilon_low=least)
        profiles[name] = entry
    return dataclasses.replace(account, profiles=profiles)


def further_observers(releases: Sequence[Release]) -> dict[str, int]:
    """Return further observers of added releases, with the number of hiding noises.

    It is the number of clients whose noise hides a record: a client knows its own
    noise, everyone else knows none.
    """
    clients = releases[0].adds or 1
    if clients > 1:
        return {"another client": clients - 1, "everyone": clients}
    return {}


def _worst_part(
    releases: Sequence[Release], delta: float, claims: Claims, context: AccountContext
) -> Account:
    parts = by_part(releases)
    worst, *further_accounts = [
        _of_draws(events, delta, claims, context) for events in parts.values()
    ]
    names = " and of ".join(f"the {name}" for name in parts)
    for account_of_part in further_accounts:
        worst = _either(worst, account_of_part, f"the releases of {names}")
    if context.before:
        return _after(worst, releases, delta, claims, context)
    return worst


def _of_draws(
    releases: Sequence[Release], delta: float, claims: Claims, context: AccountContext
) -> Account:
    """Return the account of sums over the same units, of one draw or of several."""
    _check_noise_composes(releases)
    draws = _draws_of(releases)
    accounts = [_account_of(lines, delta, claims, context) for lines in draws]
    if len(draws) == 1:
        return accounts[0]
    names = " and of ".join(lines[0].name for lines in draws)
    readers = _readers(draws, delta, claims, context)
    low, high = _both(readers, delta, what=f"cohorts of {names} that are drawn apart")
    proofs = [account_of_draw.profiles["proven"] for account_of_draw in accounts]
    worst = max(proofs, key=lambda entry: STATUSES.index(entry.status))
    statuses = [worst.status, *(reader.proven_status for reader in readers)]
    status = max(statuses, key=STATUSES.index)
    explanation = (
        f"the cohorts of {names} are drawn independently of each other; of"
        f" {draws[0][0].name} alone: {proofs[0].explanation}"
    )
    if status == "void":
        low = math.inf
        high = math.inf
        explanation = worst.explanation
    elif context.adaptive:
        status = "as run"
    proven = dataclasses.replace(
        proofs[0],
        epsilon_low=low,
        epsilon_high=high,
        status=status,
        explanation=explanation,
    )
    not_composed = "not accounted for where sums have cohorts of their own draws"
    return _with_proven_alone(accounts[0], proven, not_composed)


def _with_proven_alone(account: Account, proven: Entry, not_composed: str) -> Account:
    """Return an account that has one number, and why it has no others."""
    reasons = {name: account.reasons.get(name, not_composed) for name in PROFILES}
    del reasons["proven"]
    return dataclasses.replace(
        account, profiles={"proven": proven}, groups={}, reasons=reasons
    )


def _check_noise_composes(releases: Sequence[Release]) -> None:
    """Refuse several sums over the same units whose noise is not independent Gaussian.

    Plans refuse them too (`sums.composition_groups`), where the sums share a
    composition.
    """
    names = list(dict.fromkeys(event.name for event in releases))
    mechanisms = {event.mechanism for event in releases}
    if len(names) > 1 and mechanisms != {"gaussian"}:
        first = releases[0]
        why = f"have {' and '.join(sorted(mechanisms))} noise"
        raise DpsumError(
            cannot_compose(names[0], names[1], first.unit, first.part or "", why)
        )


def _draws_of(releases: Sequence[Release]) -> list[list[Release]]:
    """Return lines of the same units, grouped by the draw of their cohorts.

    All are one group where it does not matter whether they are one draw.
    """
    if not _draws_do_not_matter(releases):
        return by_draw(releases)
    merged = []
    for event in releases:
        sampler = dataclasses.replace(event.sampler, draw=None)
        merged.append(dataclasses.replace(event, sampler=sampler))
    return [merged]


def _draws_do_not_matter(releases: Sequence[Release]) -> bool:
    """Return whether one draw and several cost the same.

    That is so where the observer may know the cohorts and no sum changes its noise: a
    unit is in as many releases of each sum, whatever the orders of the units.
    """
    multipliers: dict[str, set[float]] = {}
    for event in releases:
        if not _accountant_of(event).known or event.mechanism != "gaussian":
            return False
        multipliers.setdefault(event.name, set()).add(event.noise_multiplier)
    return all(len(values) == 1 for values in multipliers.values())


def _readers(
    draws: Sequence[Sequence[Release]],
    delta: float,
    claims: Claims,
    context: AccountContext,
) -> list[Profiles]:
    """Return a reader of each draw of one run's releases.

    A budget, or a rule of decay, is of all releases of a run together, and so proves
    nothing of one draw of several.
    """
    if len(draws) > 1:
        context = dataclasses.replace(context, budget=None, decay_step=None)
    return [Profiles(lines, delta, claims, context) for lines in draws]


def _after(
    last: Account,
    releases: Sequence[Release],
    delta: float,
    claims: Claims,
    context: AccountContext,
) -> Account:
    """Return the account of releases after an earlier run on the same records.

    Args:
        last: the account of the releases alone.
        releases: the releases.
        delta, claims: as in `account`.
        context: as in `account`; it has the earlier run.
    """
    before = context.before
    lows = []
    highs = []
    _check_drawn_apart(before, releases)
    alone = last.profiles["proven"]
    readers = _readers(_draws_of(releases), delta, claims, context)
    statuses = [alone.status]
    statuses += [reader.proven_status for reader in readers]
    earlier_statuses = []
    for part in dict.fromkeys(event.part for event in before):
        before_on_part = [event for event in before if event.part == part]
        earlier = _readers(
            _draws_of(before_on_part),
            delta,
            context.before_claims,
            context.before_context or AccountContext(),
        )
        low, high = _both([*earlier, *readers], delta)
        earlier_statuses += [reader.proven_status for reader in earlier]
        lows.append(low)
        highs.append(high)
    low = max(lows)
    high = max(highs)
    status = max((*statuses, *earlier_statuses), key=STATUSES.index)
    uncovered = next(
        (event.reason for event in before if event.data_dependent_threshold), ""
    )
    if uncovered or status == "void":
        low = math.inf
        high = math.inf
    if math.isinf(high):
        status = "void"
    explanation = (
        "together with the run that this one rests on; this one alone:"
        f" {alone.explanation}, at most {alone.epsilon_high:.4g}"
    )
    if "as run" in earlier_statuses:
        explanation += f"; of the run that this one rests on{AS_RUN}"
    if uncovered:
        explanation = uncovered
    proven = dataclasses.replace(
        alone,
        epsilon_low=low,
        epsilon_high=high,
        status=status,
        explanation=explanation,
    )
    not_composed = "not accounted for together with the run that this one rests on"
    return _with_proven_alone(last, proven, not_composed)


def _check_drawn_apart(before: Sequence[Release], releases: Sequence[Release]) -> None:
    """Refuse two runs whose secret cohorts are of one random stream."""
    draws = []
    for lines in (before, releases):
        names = {
            event.sampler.draw for event in lines if not _accountant_of(event).known
        }
        draws.append({name.partition("/")[0] for name in names if name})
    if draws[0] & draws[1] - {UNNAMED}:
        raise DpsumError(
            "this run draws its cohorts from the random stream of the run that it rests"
            " on, so that their releases are not independent: give it a stream of its"
            " own (streams: own)"
        )


def _both(
    readers: Sequence[Profiles],
    delta: float,
    what: str = "a run that rests on another's releases",
) -> Bracket:
    """Return proven ends of epsilon of several runs' releases on the same units.

    The runs draw independently. `what` names them in a message. The low end is of the
    noise that was run. The high end covers noise that follows a loss as far as its run
    alone is covered: by the noise that falls at every chance, or by the budgets of the
    filters, added up (module `filters`). Noise without such a proof counts as it was
    run.

    Raises:
        DpsumError: the noise is not independent Gaussian from round to round, or an
            accountant has no Renyi divergences.
    """
    accountants = [reader.accountant for reader in readers]
    pairs = [" noise and ".join(accountant.pair) for accountant in accountants]
    names = " and of ".join(pairs)
    refusal = DpsumError(f"{what}: no analysis of {names} together")
    for accountant in accountants:
        mechanism, _ = accountant.pair
        if mechanism != "gaussian" or accountant.adjacency != "zero-out":
            raise refusal
    as_run = [(reader.accountant, reader.events) for reader in readers]
    low, high = _both_of_fixed_noise(as_run, delta, refusal)
    if not any(reader.is_covered for reader in readers):
        return low, high
    highs = []
    if all(reader.filter is None or reader.floor is not None for reader in readers):
        least = [(reader.accountant, reader.least_events) for reader in readers]
        highs.append(_both_of_fixed_noise(least, delta, refusal)[1])
    filter_of_both = _filter_of_both(readers, refusal)
    if filter_of_both is not None:
        highs.append(filter_of_both.epsilon(delta))
    return low, max(low, min(highs))


def _filter_of_both(readers: Sequence[Profiles], refusal: DpsumError) -> Filter | None:
    """Return the filter of two runs; None if neither keeps one.

    A run without a filter counts by the Renyi divergences of its least noise.

    Raises:
        DpsumError: `refusal`, where the run without a filter is not Poisson-sampled, so
            that its divergences at the filter's orders are not known.
    """
    filters = [reader.filter for reader in readers if reader.filter is not None]
    if not filters:
        return None
    filter_of_both = functools.reduce(Filter.together, filters)
    for reader in readers:
        if reader.filter is None:
            if not isinstance(reader.accountant, PoissonAccountant):
                raise refusal
            orders = filter_of_both.orders
            divergences = reader.accountant.renyi(reader.least_events, orders)
            filter_of_both = filter_of_both.beside(divergences)
    return filter_of_both


def _both_of_fixed_noise(
    stages: Sequence[tuple[Accountant, Events]], delta: float, refusal: DpsumError
) -> Bracket:
    """Return proven ends of epsilon of two runs whose noise is fixed beforehand.

    Sampled rounds of both are composed like those of one run. Known blocks of both are
    one Gaussian for each unit. For other pairs, Renyi divergences add up, and the low
    end is that of one run: fewer releases reveal no more.

    Args:
        stages: accountant and releases of each run.
        delta: delta at which epsilon is stated.
        refusal: raised where an accountant has no Renyi divergences.
    """
    accountants = [accountant for accountant, _ in stages]
    if all(isinstance(accountant, PoissonAccountant) for accountant in accountants):
        sampled = tuple((events.schedule, events.rate) for _, events in stages)
        return composed_ends(sampled, delta)
    lows = []
    known = []
    is_exact = True
    for accountant, events in stages:
        low, high = accountant.bracket(events, delta)
        lows.append(low)
        # With several z, the worst unit of one run may not be the worst of the other.
        if low != high or len(events.schedule) > 1:
            is_exact = False
        z = accountant.gaussian(events)
        if z is not None:
            known.append(z)
    least = max(lows)
    if len(known) == len(stages):
        high = gaussian_epsilon(joint_multiplier(known), delta)
        if is_exact:
            return high, high
        return least, high
    try:
        divergences = sum(
            accountant.renyi(events, PROVEN_ORDERS) for accountant, events in stages
        )
    except DpsumError:
        raise refusal from None
    total = np.asarray(divergences)
    high = epsilon_of(total, PROVEN_ORDERS, delta, tight=True)
    return least, high


def seen_by(event: Release, clients: int, observer: str) -> Release:
    """Return the sum of several clients' releases as one release.

    A record moves it as it moves its own client's release, and the noise of all these
    clients hides it. Where clients have thresholds of their own, the record is one of
    the client with the largest, which the noise hides least:

    - Everyone sees the sum of all releases, whose noise has variance S = sum of s_i^2.
      A record of client h moves it by its sensitivity D_h: z = S^1/2 / D_h.
    - Another client i subtracts its own release: z = (S - s_i^2)^1/2 / D_h, i != h.
      Since s_i = z D_i for all, it is least where h and i have the two largest
      sensitivities: z (1 + R / D_h^2)^1/2, where R is the sum of the other squares.
      With two clients that is the release of client h alone.

    The worst client of a round need not be that of another, so that this is an upper
    bound for all rounds together; `seen_at_most` has the lower one.

    Args:
        event: release of one client, or of all with their thresholds.
        clients: number of clients whose noise hides a record.
        observer: who sees the sum.
    """
    if not _is_uneven(event):
        return _with_more_noise(event, clients**0.5, observer)
    squares = np.sort(np.square(event.sensitivity))[::-1]
    if clients < (event.adds or 1) and len(squares) > 1:
        # The client that looks has the second largest.
        squares = np.delete(squares, 1)
    more = math.sqrt(float(squares.sum() / squares[0]))
    return _with_more_noise(event, more, observer)


def seen_at_most(event: Release, clients: int, observer: str, holder: int) -> Release:
    """Return a sum of several clients' releases as it hides records of one client.

    Args:
        event: release of all clients with their thresholds.
        clients, observer: as in `seen_by`.
        holder: the client that holds the record.
    """
    squares = np.square(event.sensitivity)
    hiding = squares.sum()
    if clients < (event.adds or 1):
        hiding = hiding - np.delete(squares, holder).max()
    return _with_more_noise(event, math.sqrt(float(hiding / squares[holder])), observer)


def _is_uneven(event: Release) -> bool:
    """Return whether clients have thresholds of their own, or not all have a release.

    A round to which some clients released nothing has the noise of the others alone.
    """
    if not isinstance(event.sensitivity, list):
        return False
    is_partial = event.adds is not None and len(event.sensitivity) < event.adds
    return is_partial or len(set(event.sensitivity)) > 1


def _with_more_noise(event: Release, more: float, observer: str) -> Release:
    """Return a release for another observer, with so many times the noise."""
    return dataclasses.replace(
        event,
        observer=observer,
        noise_multiplier=event.noise_multiplier * more,
        noise_std=np.multiply(event.noise_std, more).tolist(),
    )


def _either(
    first: Account,
    second: Account,
    of: str = "the support set's releases and the query set's",
) -> Account:
    """Return the worse of two accounts, where each record is in the releases of one."""
    profiles = {}
    reasons = dict(first.reasons) | dict(second.reasons)
    for name in PROFILES:
        if name not in first.profiles or name not in second.profiles:
            continue
        entries = first.profiles[name], second.profiles[name]
        less, more = sorted(entries, key=lambda entry: entry.epsilon_high)
        decisive = more
        if STATUSES.index(less.status) > STATUSES.index(more.status):
            decisive = less
        profiles[name] = dataclasses.replace(
            more,
            epsilon_low=max(less.epsilon_low, more.epsilon_low),
            status=decisive.status,
            explanation=f"the worse of {of}; {decisive.explanation}",
        )
        reasons.pop(name, None)
    return dataclasses.replace(first, profiles=profiles, reasons=reasons)
