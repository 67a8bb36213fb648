"""The page's first table: for each paper the claimed ε, the ε that holds, the accuracy,
and the best valid repair.

Properties select these configurations, never a method's name: the paper of a method,
the claim that a series repairs, and the accounts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from dpfedbench.papers import METHODS
from dpfedbench.reporting import values
from dpfedbench.reporting.privacy import Row
from dpfedbench.reporting.values import Listing, Shown

TITLE = "What papers claim, and what holds"
_NOTES = (
    (
        "ε claimed: the paper's accounting, applied to the run made here. Printed: the"
        " number in the paper, at the paper's scale. ε that holds: proved for the"
        " sampler that ran and for what the observer sees. ∞: no finite ε holds."
    ),
    (
        "The row of a paper is the first configuration of its methods that has a"
        " repair; without any repair, the first configuration with a claim."
    ),
    (
        "The best valid repair is the most accurate configuration of the paper's"
        " methods that starts from random weights, has the same data and task, protects"
        " the same unit from the same observer, and has a proved ε of at most the"
        " claimed one. The account does not cover this choice. A claim is void if the"
        " paper's accounting is of another mechanism than the one that ran."
    ),
    (
        "Audited above what holds: the lower bound of an audit exceeds the ε. With"
        " correct code this happens by chance in one audit of twenty. Refuted: the"
        " excess is too large for chance, so that nothing is proved. The table of"
        " privacy has the bounds."
    ),
)
NO_CLAIM = (
    "There is no row, since no paper here has a method of its own in its tables that"
    " claims a finite ε. The table of privacy has the ε that holds for every private"
    " configuration."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """A paper's published configuration, and the best valid one within the ε that it
    claims; None where there is none.

    Where the claim itself holds the two may be the same.
    """

    paper: str
    published: Row
    repair: Row | None


def read(rows: Sequence[Row]) -> list[Answer]:
    """From the table of privacy one answer for each paper that has a method of its own,
    with a claim, in a table.
    """
    places = [(place, row) for row in rows for place in row.entry.tables]
    mended = {
        (place.paper, place.item, place.repairs) for place, _ in places if place.repairs
    }
    answers = []
    for paper in dict.fromkeys(place.paper for place, _ in places):
        claims = [
            ((paper, place.item, place.series) in mended, row)
            for place, row in places
            if place.paper == paper == METHODS[row.entry.method].paper
            and not row.entry.repaired
            and math.isfinite(row.claimed.epsilon_high)
        ]
        if claims:
            # Those that a repair mends come before the others; of equal ones the first.
            _, published = max(claims, key=lambda claim: claim[0])
            valid = [
                row
                for row in rows
                if METHODS[row.entry.method].paper == paper
                and _is_valid(row, published)
            ]
            repair = max(valid, key=lambda row: row.accuracy, default=None)
            answers.append(Answer(paper=paper, published=published, repair=repair))
    return answers


def _is_valid(row: Row, published: Row) -> bool:
    """Whether a configuration keeps, provably, the ε that another claims, of the same
    thing measured on the same.
    """
    measured, claimed = (
        (
            each.entry.dataset,
            each.entry.task,
            each.holds.unit,
            each.holds.adjacency,
            each.holds.observer,
        )
        for each in (row, published)
    )
    proved = (
        row.holds.status == "proved"
        and row.holds.epsilon_high <= published.claimed.epsilon_high
    )
    # A run that starts from another model's weights has read more data than the paper's
    # method: it is no repair of it.
    return (
        measured == claimed
        and row.holds.delta <= published.holds.delta
        and proved
        and not row.entry.start
    )


_FACTS: dict[str, Callable[[Row], object]] = {
    "method": lambda row: row.entry.method,
    "variant": lambda row: row.entry.variant,
    "dataset": lambda row: row.entry.dataset,
    "task": lambda row: row.entry.task,
    "unit": lambda row: row.holds.unit,
    "delta": lambda row: row.holds.delta,
    "epsilon_printed": lambda row: row.printed,
    "epsilon_claimed": lambda row: row.claimed.epsilon_high,
    "epsilon_holds_low": lambda row: row.holds.epsilon_low,
    "epsilon_holds": lambda row: row.holds.epsilon_high,
    "holds_status": lambda row: row.holds.stands,
    "accuracy": lambda row: row.accuracy,
    "ci_low": lambda row: row.cell.accuracy.low,
    "ci_high": lambda row: row.cell.accuracy.high,
}
_OF_REPAIR = (
    "method",
    "variant",
    "epsilon_holds",
    "holds_status",
    "accuracy",
    "ci_low",
    "ci_high",
)


def tidy(answers: Sequence[Answer]) -> pd.DataFrame:
    """One row for each paper; the columns of the repair are empty where there is
    none.
    """
    records = [
        {
            "paper": answer.paper,
            **{name: of(answer.published) for name, of in _FACTS.items()},
        }
        | {
            f"repair_{name}": (
                None if answer.repair is None else _FACTS[name](answer.repair)
            )
            for name in _OF_REPAIR
        }
        for answer in answers
    ]
    return pd.DataFrame(
        records, columns=["paper", *_FACTS, *(f"repair_{name}" for name in _OF_REPAIR)]
    )


def listing(answers: Sequence[Answer], titles: Mapping[str, str]) -> Listing:
    """The table for people; a paper without a title keeps its name."""
    rows = [
        _fields(answer, titles.get(answer.paper, answer.paper)) for answer in answers
    ]
    return Listing(title=TITLE, rows=rows, notes=_NOTES if answers else [NO_CLAIM])


def _fields(answer: Answer, title: str) -> dict[str, Shown]:
    row, repair = answer.published, answer.repair
    entry, holds = row.entry, row.holds
    printed = "" if row.printed is None else f"printed: {row.printed:g}"
    against = [
        "no finite ε" * math.isinf(holds.epsilon_low),
        "refuted" * (holds.status == "refuted"),
        holds.audit,
    ]
    reaches, name = Shown(text="none here"), Shown(text=values.NOTHING)
    if repair is not None:
        reaches = values.accuracy(repair.cell.accuracy)
        other = (
            repair.entry.variant
            if repair.entry.method == entry.method
            else _name(repair)
        )
        said = _joined(
            f"ε = {values.number(repair.holds.epsilon_high).text} holds",
            repair.holds.audit,
        )
        name = values.words(
            "none needed: the claim holds" if repair.entry == entry else _whole(other),
            _whole(said),
        )
    of_what = (
        f"{_name(row)}; {entry.dataset}, {entry.task}; of a {holds.unit}, δ ="
        f" {holds.delta:g}"
    )
    return {
        "paper": values.words(title, _whole(of_what)),
        "ε claimed": values.number(
            row.claimed.epsilon_high,
            note=_joined(printed, values.epsilon(row.claimed).note),
        ),
        "ε that holds": values.between(
            holds.epsilon_low, holds.epsilon_high, note=_joined(*against)
        ),
        "reaches, %": values.accuracy(row.cell.accuracy),
        "repair reaches, %": reaches,
        "best valid repair": name,
    }


def _joined(*texts: str | None) -> str:
    return ", ".join(filter(None, texts))


def _name(row: Row) -> str:
    """The method, and what a table calls the configuration where that says more."""
    plain = {row.entry.title.casefold(), row.entry.method, "published", ""}
    variant = row.entry.variant
    return (
        row.entry.title
        if variant.casefold() in plain
        else f"{row.entry.title}, {variant}"
    )


def _whole(text: str) -> str:
    """No line ends within an equation."""
    return text.replace(" = ", "\u00a0=\u00a0")
