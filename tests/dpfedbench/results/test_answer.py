"""What the page opens with: which configuration answers for a paper, and which repair
is the best that is valid.
"""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpfedbench.results import answer
from dpfedbench.results.formats import Listing, with_epsilon_texts
from dpfedbench.results.table_columns import csv_columns


def row(
    name: str,
    accuracy: float,
    holds: tuple[float, float],
    claimed: float = math.nan,
    **given: Any,
) -> dict[str, Any]:
    """Return a row of the table of privacy: a configuration of DP-AGR on letters in its
    paper's table, unless other values are given.
    """
    values: dict[str, Any] = {
        "method": "dp-agr",
        "paper": "dp-fedmeta",
        "dataset": "glyphs",
        "task": "5-way 1-shot",
        "unit": "client",
        "adjacency": "zero-out",
        "observer": "everyone",
        "delta": 1e-6,
        "proven_status": "proved",
        "proven_excess": "",
        "claimed_status": "proved",
        "claimed_excess": "",
        "printed": math.nan,
        "start": "",
        "repairs": "",
    } | given
    repairs = values.pop("repairs")
    return values | {
        "title": values["method"].upper(),
        "variant": name,
        "shown_in": ((values["paper"], "table1", "table", name, repairs),),
        "repaired": bool(repairs),
        "folder": f"{values['method']}/{name}",
        "epsilon_claimed_low": claimed,
        "epsilon_claimed": claimed,
        "epsilon_proven_low": holds[0],
        "epsilon_proven_high": holds[1],
        "accuracy": accuracy,
        "accuracy_low": accuracy - 1,
        "accuracy_high": accuracy + 1,
        "seeds": 3,
        "interval_over": "seeds",
    }


Rows = list[dict[str, Any]]


def read(rows: Rows) -> pd.DataFrame:
    return answer.read(with_epsilon_texts(pd.DataFrame(rows)))


def answers(rows: Rows) -> list[tuple[str, str, str | None]]:
    """Return for each paper the names of the published row and of its repair."""
    names = read(rows)[["of_paper", "variant", "repair_variant"]]
    return [tuple(values) for values in names.replace({np.nan: None}).to_numpy()]


def listing(rows: Rows, titles: dict[str, str] | None = None) -> Listing:
    return answer.listing(read(rows), titles or {})


def tidy(rows: Rows) -> pd.DataFrame:
    return csv_columns(read(rows), "answer")


PUBLISHED = row("published", 85, (4.8, 4.9), claimed=3.5, printed=1.5)


def best(*others: dict[str, Any]) -> str | None:
    ((_, published, repair),) = answers([PUBLISHED, *others])
    assert published == "published"
    return repair


def test_answer_takes_the_most_accurate_repair_whose_upper_end_is_within_the_claim() -> (
    None
):
    assert (
        best(
            row("low", 70, (1.4, 1.5)),
            row("high", 80, (3.3, 3.5)),
            row("beyond", 84, (3.4, 3.51)),
        )
        == "high"
    )


def test_answer_takes_no_repair_with_infinite_epsilon() -> None:
    assert best(row("raw norms", 99, (3.0, math.inf))) is None
    infinite = row("published", 85, (math.inf, math.inf), claimed=math.inf)
    assert answers([infinite, row("raw norms", 99, (math.inf, math.inf))]) == []


@pytest.mark.parametrize(
    "other",
    [
        {"dataset": "digits"},
        {"task": "5-way 5-shot"},
        {"unit": "record"},
        {"adjacency": "replace-one"},
        {"observer": "server"},
        {"delta": 1e-5},
        {"proven_status": "as run"},
        {"proven_status": "void"},
        {"method": "dp-maml"},
        {"start": "from maml on glyph-symbols"},
    ],
)
def test_answer_takes_no_repair_of_something_else_or_without_proof(
    other: dict[str, Any],
) -> None:
    assert best(row("other", 99, (1.0, 1.0), **other)) is None


def test_answer_takes_repairs_at_a_smaller_delta_and_of_the_papers_other_methods() -> (
    None
):
    assert best(row("smaller", 60, (1.0, 1.0), delta=1e-7)) == "smaller"
    assert (
        best(
            row(
                "correlated",
                60,
                (1.0, 1.0),
                method="dp-agr-ftrl",
                paper="correlated-noise",
            )
        )
        == "correlated"
    )


def test_answer_of_a_proven_claim_needs_no_repair() -> None:
    valid = row("published", 85, (3.0, 3.4), claimed=3.5)
    rows = [valid, row("worse", 70, (1.0, 1.0))]
    assert answers(rows) == [("dp-fedmeta", "published", "published")]
    (shown,) = listing(rows).rows
    assert shown["best valid repair"].text == "none needed: the claim is proven"


def test_answer_prefers_the_configuration_that_has_a_repair() -> None:
    """Neither what comes first, nor a repair, nor another paper's method; papers
    without a claim have no row.
    """
    first = row("first", 90, (1.0, 1.0), claimed=1.0)
    repair = row("repair", 80, (3.0, 3.0), claimed=3.0, repairs="published")
    foreign = row("foreign", 50, (9.0, 9.0), claimed=9.5, method="dp-reptile")
    unclaimed = row("unclaimed", 50, (9.0, 9.0), method="dp-maml", paper="dp-maml")
    ((paper, published, _),) = answers([foreign, first, repair, PUBLISHED, unclaimed])
    assert (paper, published) == ("dp-fedmeta", "published")
    ((_, alone, _),) = answers([foreign, first, unclaimed])
    assert alone == "first"


def test_answer_without_claims_says_why_it_is_empty() -> None:
    unclaimed = [row("unclaimed", 50, (9.0, 9.0), method="dp-maml", paper="dp-maml")]
    text = listing(unclaimed).markdown("snakemake x")
    assert answers(unclaimed) == [] and "|" not in text
    assert (
        text == f"# {answer.TITLE}\n\n- {answer.NO_CLAIM}\n- Made by `snakemake x`.\n"
    )
    assert answer.NO_CLAIM not in listing([PUBLISHED]).markdown("snakemake x")
    assert list(tidy(unclaimed)) == list(tidy([PUBLISHED]))


def test_answer_row_has_claim_range_accuracy_and_repair() -> None:
    rows = [PUBLISHED, row("low", 70, (1.4, 1.5))]
    (shown,) = listing(rows, {"dp-fedmeta": "DP-FedMeta"}).rows
    assert {name: value.line for name, value in shown.items()} == {
        "paper": "DP-FedMeta (DP-AGR; glyphs, 5-way 1-shot; of a client, δ = 1e-06)",
        "claimed ε": "3.5 (printed: 1.5)",
        "proven ε": "4.8 to 4.9",
        "reaches, %": "85.0 (84.0 to 86.0)",
        "repair reaches, %": "70.0 (69.0 to 71.0)",
        "best valid repair": "DP-AGR, low (proven ε = 1.5)",
    }
    (record,) = tidy(rows).to_dict("records")
    assert (
        record["epsilon_claimed"],
        record["epsilon_proven_low"],
        record["epsilon_proven"],
    ) == (3.5, 4.8, 4.9)
    assert (
        record["repair_variant"],
        record["repair_epsilon_proven"],
        record["repair_accuracy"],
    ) == ("low", 1.5, 70)
    (nothing,) = listing([PUBLISHED]).rows
    assert (
        nothing["best valid repair"].text == "none here"
        and nothing["paper"].text == "dp-fedmeta"
    )
