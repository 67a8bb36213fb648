"""The table of answers: for each paper the claimed ε, the proven ε, the accuracy, and
the best valid repair.

Properties select these configurations, never a method's name: the paper of a method,
the claim that a series repairs, and the accounts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pandas as pd

from dpfedbench.papers import METHODS
from dpfedbench.results.formats import (
    NOTHING,
    Formatted,
    Listing,
    format_accuracy,
    format_epsilon,
    format_number,
    format_range,
    format_text,
    status_of,
)
from dpfedbench.results.summary import each_row, row_interval

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

_COLUMNS = {
    "method": "method",
    "variant": "variant",
    "dataset": "dataset",
    "task": "task",
    "unit": "unit",
    "delta": "delta",
    "epsilon_printed": "printed",
    "epsilon_claimed": "epsilon_claimed",
    "epsilon_holds_low": "epsilon_proven_low",
    "epsilon_holds": "epsilon_proven_high",
    "holds_status": "holds_status",
    "accuracy": "accuracy",
    "ci_low": "accuracy_low",
    "ci_high": "accuracy_high",
}
_REPAIR_COLUMNS = (
    *("method", "variant", "epsilon_holds", "holds_status"),
    *("accuracy", "ci_low", "ci_high"),
)


class Answer(NamedTuple):
    """A paper's published configuration and its best valid repair: indices of rows of
    the table of privacy. Where the claim itself is proven the two may be the same.
    """

    paper: str
    published: int
    repair: int | None


def choose(rows: pd.DataFrame) -> list[Answer]:
    """Return one answer for each paper that has a method of its own, with a claim, in a
    table.

    Args:
        rows: the table of privacy, as `privacy.read`.
    """
    appearances = [
        (cell, row) for row in each_row(rows) for cell in dict.fromkeys(row.shown_in)
    ]
    repaired = {
        (paper, item, repairs)
        for (paper, item, _, repairs), _ in appearances
        if repairs
    }
    answers = []
    for paper in dict.fromkeys(cell[0] for cell, _ in appearances):
        claims = [
            ((paper, item, series) in repaired, row)
            for (of_paper, item, series, _), row in appearances
            if of_paper == paper == METHODS[row.method].paper
            and not row.repaired
            and math.isfinite(row.epsilon_claimed)
        ]
        if not claims:
            continue
        # Configurations with a repair come before the others.
        published = max(claims, key=lambda claim: claim[0])[1]
        valid = [
            row
            for row in each_row(rows)
            if METHODS[row.method].paper == paper and _is_valid(row, published)
        ]
        repair = max(valid, key=lambda row: row.accuracy, default=None)
        answers.append(
            Answer(paper, published.Index, None if repair is None else repair.Index)
        )
    return answers


def _is_valid(row: Any, published: Any) -> bool:
    """Whether a configuration provably keeps the ε that another claims, of the same
    thing measured on the same data.
    """
    same = ("dataset", "task", "unit", "adjacency", "observer")
    if any(getattr(row, name) != getattr(published, name) for name in same):
        return False
    # A run that starts from another model's weights has read more data than the paper's
    # method: it is no repair of it.
    if row.start or row.delta > published.delta:
        return False
    return bool(
        row.proven_status == "proved"
        and row.epsilon_proven_high <= published.epsilon_claimed
    )


def tidy(rows: pd.DataFrame, answers: list[Answer]) -> pd.DataFrame:
    """Return one row for each paper; the columns of the repair are empty where there is
    none.
    """
    names = ["paper", *_COLUMNS, *(f"repair_{name}" for name in _REPAIR_COLUMNS)]
    records = []
    for answer in answers:
        record = {"paper": answer.paper, **_record(rows, answer.published)}
        if answer.repair is not None:
            repair = _record(rows, answer.repair)
            record |= {f"repair_{name}": repair[name] for name in _REPAIR_COLUMNS}
        records.append(record)
    return pd.DataFrame(records, columns=names)


def _record(rows: pd.DataFrame, index: int) -> dict[str, Any]:
    row = _row(rows, index)
    values = {**row._asdict(), "holds_status": status_of(row, "proven")}
    return {name: values[column] for name, column in _COLUMNS.items()}


def _row(rows: pd.DataFrame, index: int) -> Any:
    return next(each_row(rows.loc[[index]]))


def listing(
    rows: pd.DataFrame, answers: list[Answer], titles: Mapping[str, str]
) -> Listing:
    """Return the table for readers; a paper without a title keeps its name."""
    listed = []
    for answer in answers:
        published = _row(rows, answer.published)
        fields = _fields(published, titles.get(answer.paper, answer.paper))
        if answer.repair is None:
            fields |= {
                "repair reaches, %": Formatted(text="none here"),
                "best valid repair": Formatted(text=NOTHING),
            }
        else:
            fields |= _repair_fields(_row(rows, answer.repair), published)
        listed.append(fields)
    return Listing(title=TITLE, rows=listed, notes=_NOTES if answers else [NO_CLAIM])


def _fields(row: Any, title: str) -> dict[str, Formatted]:
    configuration = (
        f"{_name(row)}; {row.dataset}, {row.task}; of a {row.unit}, δ = {row.delta:g}"
    )
    printed = "" if math.isnan(row.printed) else f"printed: {row.printed:g}"
    return {
        "paper": format_text(title, _unbroken(configuration)),
        "ε claimed": format_number(
            row.epsilon_claimed,
            note=_joined([printed, format_epsilon(row, "claimed").note]),
        ),
        "ε that holds": format_range(
            row.epsilon_proven_low,
            row.epsilon_proven_high,
            note=_joined(_objections(row)),
        ),
        "reaches, %": format_accuracy(row_interval(row)),
    }


def _objections(row: Any) -> Iterator[str]:
    if math.isinf(row.epsilon_proven_low):
        yield "no finite ε"
    if row.proven_status == "refuted":
        yield "refuted"
    yield row.proven_excess


def _repair_fields(repair: Any, published: Any) -> dict[str, Formatted]:
    name = repair.variant if repair.method == published.method else _name(repair)
    if repair.folder == published.folder:
        name = "none needed: the claim holds"
    epsilon = format_number(repair.epsilon_proven_high).text
    note = _joined([f"ε = {epsilon} holds", repair.proven_excess])
    return {
        "repair reaches, %": format_accuracy(row_interval(repair)),
        "best valid repair": format_text(_unbroken(name), _unbroken(note)),
    }


def _joined(texts: Any) -> str:
    return ", ".join(filter(None, texts))


def _name(row: Any) -> str:
    """Return the method, and what a table calls the configuration where that says
    more.
    """
    if row.variant.casefold() in {row.title.casefold(), row.method, "published", ""}:
        return str(row.title)
    return f"{row.title}, {row.variant}"


def _unbroken(text: str) -> str:
    """Keep an equation on one line."""
    return text.replace(" = ", "\u00a0=\u00a0")
