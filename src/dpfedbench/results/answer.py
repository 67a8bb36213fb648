"""The table of answers: for each paper the claimed ε, the proven ε, the accuracy, and
the best valid repair.

Properties select these configurations, never a method's name: the paper of a method,
the claim that a series repairs, and the accounts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from dpfedbench.papers import METHODS
from dpfedbench.results.formats import (
    Formatted,
    Listing,
    format_accuracy,
    format_epsilon,
    format_number,
    format_range,
    format_text,
    status_of,
)
from dpfedbench.results.privacy import appearances
from dpfedbench.results.summary import each_row

TITLE = "What papers claim, and what is proven"
_NOTES = (
    (
        "Claimed ε: the paper's accounting, applied to the run made here. Printed: the"
        " number in the paper, at the paper's scale. Proven ε: what is proved for the"
        " sampler that ran and for what the observer sees. ∞: no finite ε."
    ),
    (
        "The row of a paper is the first configuration of its methods that has a"
        " repair; without any repair, the first configuration with a claim."
    ),
    (
        "The best valid repair is the most accurate configuration of the paper's"
        " methods that starts from random weights, has the same data and task, protects"
        " the same unit from the same observer, and has a proven ε of at most the"
        " claimed one. The account does not cover this choice. A claim is void if the"
        " paper's accounting is of another mechanism than the one that ran."
    ),
    (
        "Audited above what is proven: the lower bound of an audit exceeds the ε. With"
        " correct code this happens by chance in one audit of twenty. Refuted: the"
        " excess is too large for chance, so that nothing is proved. The table of"
        " privacy has the bounds."
    ),
)
NO_CLAIM = (
    "There is no row, since no paper here has a method of its own in its tables that"
    " claims a finite ε. The table of privacy has the proven ε of every private"
    " configuration."
)

_COLUMNS = {
    **{name: name for name in ("method", "variant", "dataset", "task", "unit")},
    "delta": "delta",
    "printed": "epsilon_printed",
    "epsilon_claimed": "epsilon_claimed",
    "epsilon_proven_low": "epsilon_proven_low",
    "epsilon_proven_high": "epsilon_proven",
    "proven_status": "proven_status",
    "accuracy": "accuracy",
    "accuracy_low": "ci_low",
    "accuracy_high": "ci_high",
}
"""The columns of rows that the CSV has, and their names there."""
_SAME = ["dataset", "task", "unit", "adjacency", "observer"]
"""What a repair has in common with what it repairs."""
_REPAIR_COLUMNS = [
    *("method", "variant", "epsilon_proven", "proven_status"),
    *("accuracy", "ci_low", "ci_high"),
]


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
    rows = rows.assign(own_paper=[METHODS[name].paper for name in rows["method"]])
    cells = appearances(rows)
    repaired = set(zip(cells["paper"], cells["item"], cells["repairs"], strict=True))
    series = zip(cells["paper"], cells["item"], cells["series"], strict=True)
    cells["has_repair"] = [cell in repaired for cell in series]
    claims = cells.join(rows[["own_paper", "repaired", "epsilon_claimed"]])
    claims = claims[
        (claims["paper"] == claims["own_paper"])
        & ~claims["repaired"]
        & np.isfinite(claims["epsilon_claimed"])
    ]
    answers = []
    for paper in cells["paper"].unique():
        of_paper = claims[claims["paper"] == paper]
        if not len(of_paper):
            continue
        # Configurations with a repair come before the others.
        published = of_paper["has_repair"].idxmax()
        valid = rows[
            (rows["own_paper"] == paper) & _is_valid(rows, rows.loc[published])
        ]
        repair = valid["accuracy"].idxmax() if len(valid) else None
        answers.append(Answer(paper, published, repair))
    return answers


def _is_valid(rows: pd.DataFrame, published: pd.Series) -> pd.Series:
    """Whether each row provably keeps the ε that another one claims, of the same thing
    measured on the same data.
    """
    # A run that starts from another model's weights has read more data than the paper's
    # method: it is no repair of it.
    return (
        (rows[_SAME] == published[_SAME]).all(axis=1)
        & (rows["start"] == "")
        & (rows["delta"] <= published["delta"])
        & (rows["proven_status"] == "proved")
        & (rows["epsilon_proven_high"] <= published["epsilon_claimed"])
    )


def tidy(rows: pd.DataFrame, answers: list[Answer]) -> pd.DataFrame:
    """Return one row for each paper; the columns of the repair are empty where there is
    none.
    """
    statuses = [status_of(row, "proven") for row in each_row(rows)]
    renamed = rows.assign(proven_status=statuses).rename(columns=_COLUMNS)
    table = renamed.reindex([chosen.published for chosen in answers])
    repairs = renamed.reindex([chosen.repair for chosen in answers])
    return pd.concat(
        [
            pd.Series([chosen.paper for chosen in answers], name="paper", dtype=object),
            table[list(_COLUMNS.values())].reset_index(drop=True),
            repairs[_REPAIR_COLUMNS].add_prefix("repair_").reset_index(drop=True),
        ],
        axis="columns",
    )


def listing(
    rows: pd.DataFrame, answers: list[Answer], titles: Mapping[str, str]
) -> Listing:
    """Return the table for readers; a paper without a title keeps its name."""
    by_index = {row.Index: row for row in each_row(rows)}
    listed = []
    for chosen in answers:
        title = titles.get(chosen.paper, chosen.paper)
        published = by_index[chosen.published]
        repair = by_index.get(chosen.repair)
        listed.append(_fields(published, title) | _repair_fields(repair, published))
    return Listing(title=TITLE, rows=listed, notes=_NOTES if answers else [NO_CLAIM])


def _fields(row: Any, title: str) -> dict[str, Formatted]:
    configuration = (
        f"{_name(row)}; {row.dataset}, {row.task}; of a {row.unit}, δ = {row.delta:g}"
    )
    printed = "" if math.isnan(row.printed) else f"printed: {row.printed:g}"
    objections = [
        "no finite ε" if math.isinf(row.epsilon_proven_low) else "",
        "refuted" if row.proven_status == "refuted" else "",
        row.proven_excess,
    ]
    return {
        "paper": format_text(title, configuration),
        "claimed ε": format_number(
            row.epsilon_claimed,
            note=_joined([printed, format_epsilon(row, "claimed").note]),
        ),
        "proven ε": format_range(
            row.epsilon_proven_low, row.epsilon_proven_high, note=_joined(objections)
        ),
        "reaches, %": format_accuracy(row),
    }


def _repair_fields(repair: Any, published: Any) -> dict[str, Formatted]:
    if repair is None:
        return {
            "repair reaches, %": format_number(math.nan, nothing="none here"),
            "best valid repair": format_text(""),
        }
    name = repair.variant if repair.method == published.method else _name(repair)
    if repair.folder == published.folder:
        name = "none needed: the claim is proven"
    epsilon = format_number(repair.epsilon_proven_high).text
    note = _joined([f"proven ε = {epsilon}", repair.proven_excess])
    return {
        "repair reaches, %": format_accuracy(repair),
        "best valid repair": format_text(name, note),
    }


def _joined(texts: Iterable[str]) -> str:
    return ", ".join(filter(None, texts))


def _name(row: Any) -> str:
    """Return the method, and what a table calls the configuration where that says
    more.
    """
    if row.variant.casefold() in {row.title.casefold(), row.method, "published", ""}:
        return str(row.title)
    return f"{row.title}, {row.variant}"
