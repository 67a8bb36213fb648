"""The statement of an account for people: one paragraph for each unit and observer.

Its parts are those that the guidelines ask for: Ponomareva et al., How to DP-fy ML
(2023), on reporting privacy guarantees, and NIST SP 800-226, Guidelines for Evaluating
Differential Privacy Guarantees (2025). They are the guarantee, the unit and the
neighbouring data sets, the observer, delta, the sampler and the accountant, the claim,
tuning, and the uses of the data that nothing here covers.

Ends of epsilon are rounded outwards, so that the printed interval is proven too.
"""

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context

import dpsum
from dpsum.accounting import analyses
from dpsum.accounting.account import Account
from dpsum.accounting.profiles import Entry

_NEIGHBOURS = {
    "zero-out": "the contribution of one {unit} is replaced by zero, and the number of"
    " {unit}s is public",
    "replace-one": "the contribution of one {unit} is replaced by any other, and the"
    " number of {unit}s is public",
    "add-or-remove": "one {unit} is added or removed",
}

_OBSERVERS = {
    "everyone": "anyone who sees every noisy sum, and so every model that was made from"
    " them; the party that clips, adds up and adds the noise is trusted",
    "server": "the server, which sees each noisy sum that it receives; it does not see"
    " the contributions or the noise",
    "another client": "another client, which sees the total of all clients' noisy sums"
    " and knows its own noise",
}

_STATUSES = {
    "proved": "The bound is proven for the mechanism that the ledger names.",
    "as run": "The bound is proven for the noise that was used. It does not cover how"
    " this noise was chosen.",
    "void": "This is not a guarantee of the mechanism that ran.",
}

_NOT_COVERED = (
    "data that left by another way than the ledger's releases (metrics, logs, times,"
    " checkpoints of other trainings), further trainings on the same data, the effects"
    " of rounding in floating-point arithmetic, and noise that somebody can draw again"
    " from a known seed"
)


def statement(account: Account, **remarks: str | None) -> str:
    """Return the guarantee of an account in plain English.

    It has one paragraph a unit and observer. Arguments as in `statement_parts`.
    """
    paragraphs = [
        " ".join(statement_parts(part, **remarks).values())
        for part in all_accounts(account)
    ]
    return "\n\n".join(paragraphs)


def all_accounts(account: Account) -> list[Account]:
    """Return an account and those of its other units and observers."""
    accounts = [account]
    for further in account.also:
        accounts += all_accounts(further)
    return accounts


def statement_parts(
    account: Account,
    *,
    tuning: str | None = None,
    delta_reason: str | None = None,
    audit: str | None = None,
) -> dict[str, str]:
    """Return the parts of the statement of one unit and observer, by their headings.

    Args:
        account: the account; `also` is not read.
        tuning: what was tuned on which data, as a sentence; None: the account's own
            words.
        delta_reason: why this delta was chosen, as a sentence.
        audit: what an audit showed, as a sentence.
    """
    if account.unit is None:
        text = "No release claims privacy, so there is no guarantee to state."
        return {"Guarantee": text}
    proven = account.profiles.get("proven")
    parts = {"Guarantee": _guarantee(account, proven)}
    if proven is not None:
        parts["Unit and neighbours"] = _neighbours(account, proven)
        parts["Observer"] = _observer(account, proven)
    parts["Delta"] = _delta(account, delta_reason)
    parts["Sampler and accountant"] = _accounting(account, proven)
    parts["Claim"] = _claim(account)
    if audit is not None:
        parts["Audit"] = _sentence(audit)
    parts["Tuning"] = _tuning(account, tuning)
    parts["Not covered"] = f"Not covered are {_NOT_COVERED}."
    if account.notices:
        notices = " ".join(_sentence(notice) for notice in account.notices)
        parts["Notices"] = notices
    return parts


def rounded_outwards(value: float, *, up: bool) -> str:
    """Return a number of epsilon in four digits, never inside the proven interval.

    Args:
        value: an end of epsilon, at least 0.
        up: whether the value is a high end.
    """
    if math.isinf(value):
        return "infinite"
    outwards = ROUND_CEILING if up else ROUND_FLOOR
    four_digits = Context(prec=4, rounding=outwards)
    rounded = four_digits.create_decimal(str(value))
    return f"{float(rounded):.4g}"


def _guarantee(account: Account, proven: Entry | None) -> str:
    if proven is None:
        reason = account.reasons.get("proven", "no analysis covers the releases")
        return f"No epsilon is proven for a {account.unit}: {reason}."
    if math.isinf(proven.epsilon_high):
        return (
            f"No finite epsilon is proven for a {proven.unit} at delta"
            f" {proven.delta:g}: {proven.explanation}."
        )
    high = rounded_outwards(proven.epsilon_high, up=True)
    subject = f"{account.rounds:,} rounds of releases"
    if proven.status == "proved":
        text = (
            f"The {subject} are (epsilon, delta)-differentially private for one"
            f" {proven.unit}, with epsilon"
        )
    else:
        text = f"For one {proven.unit}, the account of {subject} has an epsilon of"
    text += f" at most {high} at delta {proven.delta:g}"
    if proven.epsilon_low < proven.epsilon_high:
        low = rounded_outwards(proven.epsilon_low, up=False)
        text += f"; the exact epsilon is at least {low}"
    text = f"{text}. {_STATUSES[proven.status]}"
    if proven.audit:
        text += f" An audit objects: {proven.audit}."
    return text


def _neighbours(account: Account, proven: Entry) -> str:
    unit = proven.unit
    change = _NEIGHBOURS.get(proven.adjacency, "one {unit} changes").format(unit=unit)
    text = (
        f"The unit of privacy is the {unit}: two data sets are neighbours if {change}"
        f" ({proven.adjacency} adjacency)."
    )
    if math.isinf(proven.epsilon_high):
        return text
    replaced = account.profiles.get("replace_one")
    if replaced is not None and proven.adjacency != "replace-one":
        high = rounded_outwards(replaced.epsilon_high, up=True)
        text += (
            f" If the {unit} is replaced by any other (replace-one adjacency), epsilon"
            f" is at most {high}."
        )
    text += f" A person with several {unit}s has less protection."
    for size, entry in account.groups.items():
        high = rounded_outwards(entry.epsilon_high, up=True)
        text += f" For {size} {unit}s at once, epsilon is at most {high}."
    return text


def _observer(account: Account, proven: Entry) -> str:
    observer = _OBSERVERS.get(proven.observer, proven.observer)
    text = f"The observer is {observer}."
    secret_samplers = {
        kind
        for mechanism, kind in analyses.pairs()
        if not analyses.known(mechanism, kind)
    }
    if (account.sampler or {}).get("kind") in secret_samplers:
        text += " Nobody but the party that draws the cohorts may know them."
    return text


def _delta(account: Account, reason: str | None) -> str:
    text = (
        f"Delta is {account.delta:g}, the probability mass that the bound by epsilon"
        " may miss"
    )
    sampler = account.sampler or {}
    count = sampler.get("records", sampler.get("clients"))
    if count:
        unit = account.unit
        text += (
            f"; with {count:,} {unit}s it is {account.delta * count:.3g} times one over"
            " their number"
        )
    if reason is None:
        return f"{text}. No reason for this choice was given."
    return f"{text}. {_sentence(reason)}"


def _accounting(account: Account, proven: Entry | None) -> str:
    text = ""
    if account.sampler:
        numbers = [
            f"{key} {value}"
            for key, value in account.sampler.items()
            if key not in ("kind", "draw") and value is not None
        ]
        text = f"The sampler is {account.sampler['kind']} ({', '.join(numbers)})"
        if account.noise_multiplier is not None:
            text += f", with a noise multiplier of {account.noise_multiplier:.4g}"
        text += ". "
    if proven is not None and not math.isinf(proven.epsilon_high):
        text += (
            f"The accountant, of dpsum {dpsum.__version__}, assumes:"
            f" {proven.explanation}."
        )
    return text.strip()


def _claim(account: Account) -> str:
    claimed = account.profiles.get("claimed")
    if claimed is None:
        reason = account.reasons.get("claimed", "none was given")
        return f"There is no other claim: {reason}."
    text = (
        f"Claimed is epsilon {claimed.epsilon_high:.4g} under"
        f" {claimed.adjacency} adjacency ({claimed.explanation})."
    )
    if claimed.status == "void":
        return f"{text} The claim is not one of the mechanism that ran."
    return text


def _tuning(account: Account, tuning: str | None) -> str:
    if tuning is not None:
        return _sentence(tuning)
    entry = account.profiles.get("tuning")
    if entry is not None:
        high = rounded_outwards(entry.epsilon_high, up=True)
        return (
            f"With the search for hyper-parameters, epsilon is at most {high}:"
            f" {entry.explanation}."
        )
    reason = account.reasons.get("tuning", "no search was declared")
    return f"The guarantee is of this training alone, not of tuning ({reason})."


def _sentence(text: str) -> str:
    """Return text with a capital letter and a full stop."""
    text = text.strip()
    if not text.endswith((".", "!", "?")):
        text += "."
    return text[:1].upper() + text[1:]
