"""The account of a run: from its ledger to epsilon under each profile.

- `claimed`: the accounting that the run's paper did (`claims`); what is proven, for a
  sampler that the paper does not account for.
- `proven`: what the sampler and the observer justify (`analyses`).
- `replace_one`: the same where a unit's contribution becomes any other and not zero, so
  that the sum moves by up to 2C.
- `image_level`: what is proven for one image, which many simulated clients may use
  (`image_level`).
- `tuning`: what is proven for a declared search for hyper-parameters, this run among them
  (`tuning`).

Where a profile says nothing of a run, the account has a reason in place of a number.
All but `replace_one` are for zero-out adjacency, with the sensitivity that the ledger
states. Brackets are proved: the low end is below, the high end above the exact epsilon.
Noise that followed a validation loss is covered by a proof of `filters`, or the account
is of the schedule that was run, and says so.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpsum.accounting import analyses
from dpsum.accounting.accountant import Accountant
from dpsum.accounting.analyses.poisson import PoissonAccountant, composed_ends
from dpsum.accounting.claims import Claims
from dpsum.accounting.context import AccountContext
from dpsum.accounting.gaussian import Bracket, ends, gaussian_epsilon, joint_multiplier
from dpsum.accounting.profiles import Entry, Profiles
from dpsum.accounting.renyi import HOLDING_ORDERS, epsilon_of
from dpsum.accounting.units import by_part, by_unit, cannot_compose, tells_rounds
from dpsum.errors import DpsumError
from dpsum.ledger import Release, read_ledger

PROFILES = ("claimed", "proven", "replace_one", "image_level", "tuning")
"""What an account is read under, in this order; each has a number or a reason."""

_NOTHING_PRIVATE = "no release claims privacy"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Account:
    """The account of a run, or of its releases that protect one unit from one observer.

    Attributes:
        delta: at which epsilon is given.
        unit: whom the releases protect; None where none claims privacy.
        rounds: that were run.
        noise_multiplier: the least of the releases that the paper counts.
        sampler: how the cohort was drawn.
        profiles: by the names of `PROFILES`; `reasons` say why each of the others has
            no number.
        groups: what is proven for several units at once, by their number.
        notices: what a reader must be told.
        also: the same of another unit or observer.
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
        """A line for each profile: its epsilon and status, or why it has none."""
        lines = [
            (
                f"a {self.unit}, after {self.rounds} rounds, at delta {self.delta:g}"
                if self.unit
                else _NOTHING_PRIVATE
            )
        ]
        for name in PROFILES if self.unit else ():
            if (entry := self.profiles.get(name)) is not None:
                lines.append(
                    f"{name:>12}: epsilon {entry.epsilon_high:.4g} ({entry.status});"
                    f" {entry.explanation}"
                )
            else:
                lines.append(f"{name:>12}: {self.reasons.get(name, 'not asked')}")
        return "\n".join([*lines, *map(str, self.also)])

    def to_json(self) -> dict[str, Any]:
        """Return the account as privacy.json holds it."""
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
        for key in ("profiles", "groups"):
            values[key] = {
                name: {
                    key: value
                    for key, value in dataclasses.asdict(entry).items()
                    if value is not None
                }
                for name, entry in values[key].items()
            }
        values |= {
            "sampler": dict(self.sampler or {}),
            "notices": list(self.notices),
            "also": [account.to_json() for account in self.also],
        }
        return {
            name: value
            for name, value in values.items()
            if value or name not in ("also", "groups")
        }

    @classmethod
    def from_json(
        cls, values: Mapping[str, Any], where: str = "the account"
    ) -> Account:
        """The inverse of `to_json`, also of what a file has, where infinity is text;
        DpsumError if it is neither.
        """
        try:
            known = {key: value for key, value in values.items() if key != "reason"}
            known.setdefault("groups", {})
            for key in ("profiles", "groups"):
                known[key] = {name: _entry(entry) for name, entry in known[key].items()}
            known["also"] = tuple(
                cls.from_json(account, where) for account in known.get("also", ())
            )
            known["notices"] = tuple(known.get("notices", ()))
            return cls(**known)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DpsumError(
                f"{where} is not an account ({error}): delete it and run the workflow"
                " again"
            ) from error


def _entry(values: Mapping[str, Any]) -> Entry:
    ends = {name: float(values[name]) for name in ("epsilon_low", "epsilon_high")}
    return Entry(**{**values, **ends})


def account(
    releases: Sequence[Release] | Path | str,
    *,
    delta: float,
    claims: Claims | None = None,
    own_delta: float | None = None,
    given: AccountContext | None = None,
) -> Account:
    """All profiles of a run's releases, whose multipliers may differ between rounds.

    Args:
        releases: the run's ledger, or its path; empty for a run that released nothing
            under privacy.
        delta: at which epsilon is given.
        claims: the accounting of the method's paper, by kind of sampler; None: it
            claims no epsilon.
        own_delta: delta of sums that clients take over their own examples, where the
            server takes one too.
        given: what else is known of the run.

    Raises:
        DpsumError: an inconsistent ledger, one of a mechanism or sampler without an
            analysis, or delta out of bounds.
    """
    if not 0 < delta < 1:
        raise DpsumError(f"delta is {delta}: it must lie between 0 and 1")
    if isinstance(releases, (str, Path)):
        releases = read_ledger(releases)
    claims = claims or {}
    if not releases:
        return Account(delta=delta, reasons=dict.fromkeys(PROFILES, _NOTHING_PRIVATE))
    units = by_unit(releases)
    for unit, lines in units.items():
        _check_composes(lines)
        if len({event.observer for event in lines}) > 1:
            # The server sees what everyone sees, too.
            units[unit] = [
                dataclasses.replace(event, observer="server") for event in lines
            ]
    events = [event for lines in units.values() for event in lines]
    client_releases = [event for event in events if _accountant_of(event).within_task]
    served = [event for event in events if not _accountant_of(event).within_task]
    context = given or AccountContext()
    if context.before:
        together = [*context.before, *releases]
        several_units = len({event.unit for event in together}) > 1
        if several_units or any(_accountant_of(e).within_task for e in together):
            raise DpsumError(
                "a run that rests on another's releases: no analysis of clients' own"
                " sums, or of two units"
            )
    # Only the server's noise may follow a loss.
    of_clients = dataclasses.replace(context, budget=None, adaptive=None, fall=None)
    if not served:
        return _account_of(client_releases, delta, claims, of_clients)
    first = _served(served, delta, claims, dataclasses.replace(context, groups=()))
    if not client_releases:
        return first
    if len(units) == 1:
        # A unit is in either sum. The worse of both counts, so both are at one delta.
        return _either(first, _account_of(client_releases, delta, claims, of_clients))
    second = _account_of(client_releases, own_delta or delta, claims, of_clients)
    return dataclasses.replace(first, also=(second,))


def _accountant_of(event: Release) -> Accountant:
    return analyses.find(event.mechanism, event.sampler["kind"])


def _check_composes(lines: Sequence[Release]) -> None:
    """Refuse clients' own sums that read what another sum reads, or that tell rounds
    which the account needs secret.
    """
    own_sums = {e.name: e for e in lines if _accountant_of(e).within_task}
    if not own_sums:
        return
    for part, events in by_part(lines).items():
        names = list(dict.fromkeys(event.name for event in events))
        if len(names) > 1 and not own_sums.keys().isdisjoint(names):
            raise DpsumError(cannot_compose(names[0], names[1], lines[0].unit, part))
    first_own_sum = next(iter(own_sums.values()))
    for event in lines:
        accountant = _accountant_of(event)
        if not accountant.within_task and not accountant.known:
            raise DpsumError(tells_rounds(first_own_sum, event.sampler["kind"]))


def _account_of(
    releases: Sequence[Release], delta: float, claims: Claims, given: AccountContext
) -> Account:
    reader = Profiles(releases, delta, claims, given)
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
        sampler=sampler,
        profiles=profiles,
        groups=reader.groups(profiles),
        reasons=reasons,
        notices=tuple(notices),
    )


def _notices_of_groups(releases: Sequence[Release]) -> list[str]:
    """Say where the noise by groups is less than the multiplier that a paper counts."""
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
    releases: Sequence[Release], delta: float, claims: Claims, given: AccountContext
) -> Account:
    """The account of sums over clients, or over records (of the worst part), for each
    observer.
    """
    first = _worst_part(releases, delta, claims, given)
    clients = releases[0].adds
    also = list[Account]()
    for who, noises in others(releases).items():
        # What came before was seen in the same way, where it came of as many clients.
        before = tuple(
            seen_by(event, noises, who) if event.adds == clients else event
            for event in given.before
        )
        known = dataclasses.replace(given, before=before)
        also.append(
            _worst_part(
                [seen_by(event, noises, who) for event in releases],
                delta,
                claims,
                known,
            )
        )
    return dataclasses.replace(first, also=tuple(also))


def others(releases: Sequence[Release]) -> dict[str, int]:
    """Return who else sees the added releases, with the number of clients whose noise
    hides a record: a client knows its own noise.
    """
    clients = releases[0].adds or 1
    if clients > 1:
        return {"another client": clients - 1, "everyone": clients}
    return {}


def _worst_part(
    releases: Sequence[Release], delta: float, claims: Claims, given: AccountContext
) -> Account:
    parts = by_part(releases)
    accounts = [_account_of(events, delta, claims, given) for events in parts.values()]
    if given.before:
        return _after(accounts[0], releases, given.before, delta)
    names = " and of ".join(f"the {name}" for name in parts)
    return functools.reduce(
        lambda one, other: _either(one, other, f"the releases of {names}"), accounts
    )


def _after(
    last: Account, releases: Sequence[Release], before: Sequence[Release], delta: float
) -> Account:
    """The account of releases together with those of another run on the same records,
    which came before.
    """
    brackets = []
    for part in dict.fromkeys(event.part for event in before):
        stages = ([event for event in before if event.part == part], releases)
        brackets.append(_both(stages, delta))
    low, high = (max(ends) for ends in zip(*brackets, strict=True))
    alone = last.profiles["proven"]
    uncovered = next((e.reason for e in before if e.data_dependent_threshold), "")
    if uncovered or alone.status == "void":
        low = high = math.inf
    proven = dataclasses.replace(
        alone,
        epsilon_low=low,
        epsilon_high=high,
        status="void" if math.isinf(high) else alone.status,
        explanation=uncovered
        or f"together with the run that this one rests on; this one alone: {alone.explanation}, at most {alone.epsilon_high:.4g}",
    )
    not_composed = "not accounted for together with the run that this one rests on"
    return dataclasses.replace(
        last,
        profiles={"proven": proven},
        groups={},
        reasons={
            name: last.reasons.get(name, not_composed)
            for name in PROFILES
            if name != "proven"
        },
    )


def _both(ledgers: Sequence[Sequence[Release]], delta: float) -> Bracket:
    """Proved ends of epsilon of two runs' releases on the same units, whose draws are
    apart from one another.

    Sampled rounds of both are composed as those of one run, known blocks of both are
    one Gaussian for each unit. Of other pairs Renyi divergences add up, and the low end
    is that of one run: to see less tells no more.

    Raises:
        DpsumError: noise that is not independent Gaussian from round to round, or no
            divergences of one of them.
    """
    accountants = [analyses.of(lines) for lines in ledgers]
    names = " and of ".join(
        " noise and ".join(accountant.pair) for accountant in accountants
    )
    refusal = DpsumError(
        f"a run that rests on another's releases: no analysis of {names} together"
    )
    for accountant in accountants:
        if (accountant.pair[0], accountant.adjacency) != ("gaussian", "zero-out"):
            raise refusal
    stages = [
        (accountant, accountant.read(lines))
        for accountant, lines in zip(accountants, ledgers, strict=True)
    ]
    if all(isinstance(accountant, PoissonAccountant) for accountant in accountants):
        return composed_ends(
            tuple((events.schedule, events.rate) for _, events in stages), delta
        )
    brackets = [accountant.bracket(events, delta) for accountant, events in stages]
    least = max(low for low, _ in brackets)
    multipliers = [accountant.gaussian(events) for accountant, events in stages]
    known = [z for z in multipliers if z is not None]
    if len(known) == len(multipliers):
        high = gaussian_epsilon(joint_multiplier(known), delta)
        # Of rounds of several z the unit that is worst off in one run need not be that
        # of the other.
        exact = all(low == most for low, most in brackets) and all(
            len(events.schedule) == 1 for _, events in stages
        )
        return high if exact else least, high
    try:
        divergences = sum(
            accountant.renyi(events, HOLDING_ORDERS) for accountant, events in stages
        )
    except DpsumError:
        raise refusal from None
    return least, epsilon_of(np.asarray(divergences), HOLDING_ORDERS, delta, tight=True)


def seen_by(event: Release, clients: int, observer: str) -> Release:
    """The sum of so many clients' releases as one: one record moves it as before, and
    all their noise is in it.
    """
    more = clients**0.5
    if isinstance(event.noise_std, list):
        std = [deviation * more for deviation in event.noise_std]
    else:
        std = event.noise_std * more
    z = event.noise_multiplier * more
    return dataclasses.replace(
        event, observer=observer, noise_multiplier=z, noise_std=std
    )


def _either(
    first: Account,
    second: Account,
    of: str = "the support set's releases and the query set's",
) -> Account:
    """One account of records of which each is in the first account's releases or in the
    second's: the worse of both.
    """
    profiles = {}
    reasons = dict(first.reasons) | dict(second.reasons)
    for name in PROFILES:
        if name not in first.profiles or name not in second.profiles:
            continue
        less, more = sorted(
            (first.profiles[name], second.profiles[name]),
            key=lambda entry: entry.epsilon_high,
        )
        void = [entry for entry in (less, more) if entry.status == "void"]
        decisive = void[0] if void else more
        profiles[name] = dataclasses.replace(
            more,
            epsilon_low=max(less.epsilon_low, more.epsilon_low),
            status=decisive.status,
            explanation=f"the worse of {of}; {decisive.explanation}",
        )
    return dataclasses.replace(
        first,
        profiles=profiles,
        reasons={name: why for name, why in reasons.items() if name not in profiles},
    )
