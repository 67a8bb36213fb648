"""The table of answers: for each paper the claimed ε, the proven ε, the accuracy, and
the best valid repair.

Properties select these configurations, never a method's name: the paper of a method,
the claim that a series repairs, and the accounts.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from dpfedbench.papers import METHODS
from dpfedbench.results.formats import Listing, format_number
from dpfedbench.results.privacy import appearances
from dpfedbench.results.summary import each_row
from dpfedbench.results.table_columns import listing_of

TITLE = "What papers claim, and what is proven"
_NOTES = [
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
]
NO_CLAIM = (
    "There is no row, since no paper here has a method of its own in its tables that"
    " claims a finite ε. The table of privacy has the proven ε of every private"
    " configuration."
)

_SAME = ["dataset", "task", "unit", "adjacency", "observer"]
"""What a repair has in common with what it repairs."""


def read(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each paper that has a method of its own, with a claim, in a
    table: the columns of the published configuration, and prefixed `repair_` those of
    its best valid repair, which are missing where there is none. Where the claim itself
    is proven the two may be the same.

    Args:
        rows: the table of privacy, as `privacy.explain`.
    """
    rows = rows.assign(own_paper=[METHODS[name].paper for name in rows["method"]])
    cells = appearances(rows)
    series = pd.MultiIndex.from_frame(cells[["paper", "item", "series"]])
    repaired = pd.MultiIndex.from_frame(cells[["paper", "item", "repairs"]])
    cells["has_repair"] = series.isin(repaired)
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
        published = rows.loc[of_paper["has_repair"].idxmax()].copy()
        valid = rows[(rows["own_paper"] == paper) & _is_valid(rows, published)]
        best = pd.Series(dtype=object)
        if len(valid):
            best = valid.loc[valid["accuracy"].idxmax()]
        published["of_paper"] = paper
        answers.append(pd.concat([published, best.add_prefix("repair_")]))
    columns = [*rows, "of_paper", *rows.add_prefix("repair_")]
    return pd.DataFrame(answers, columns=columns).infer_objects()


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


def listing(answer: pd.DataFrame, titles: Mapping[str, str]) -> Listing:
    """Return the table for readers; a paper without a title keeps its name."""
    answer = answer.assign(of_paper=answer["of_paper"].replace(dict(titles)))
    for name, text in _TEXTS.items():
        answer[name] = [text(row) for row in each_row(answer)]
    notes = [NO_CLAIM]
    if len(answer):
        notes = _NOTES
    return listing_of(
        answer,
        "answer",
        title=TITLE,
        notes=notes,
    )


def _configuration(row: Any) -> str:
    data = f"{row.dataset}, {row.task}"
    return f"{_name(row.title, row.method, row.variant)}; {data}; of a {row.unit_label}, δ = {row.delta:g}"


def _claim_note(row: Any) -> str:
    printed = ""
    if not math.isnan(row.printed):
        printed = f"printed: {row.printed:g}"
    return ", ".join(filter(None, [printed, row.claimed_note]))


def _repair(row: Any) -> str:
    if not isinstance(row.repair_folder, str):
        return "none here"
    if row.repair_folder == row.folder:
        return "none needed: the claim is proven"
    return _name(row.repair_title, row.repair_method, row.repair_variant)


def _repair_note(row: Any) -> str:
    if not isinstance(row.repair_folder, str):
        return ""
    epsilon = format_number(row.repair_epsilon_proven_high).text
    return ", ".join(filter(None, [f"proven ε = {epsilon}", row.repair_proven_excess]))


_TEXTS = {
    "configuration": _configuration,
    "claim_note": _claim_note,
    "repair": _repair,
    "repair_note": _repair_note,
}
"""Texts of the table for readers."""


def _name(title: str, method: str, variant: str) -> str:
    """Return the method, and what a table calls the configuration where that says
    more.
    """
    if variant.casefold() in {title.casefold(), method, "published", ""}:
        return title
    return f"{title}, {variant}"
