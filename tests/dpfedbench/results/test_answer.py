"""What the page opens with: which configuration answers for a paper, and which repair
is the best that is valid.
"""

import math

import numpy as np
import pandas as pd
import pytest

from dpfedbench.results import answer
from dpfedbench.results.formats import with_epsilon_texts
from dpfedbench.results.table_columns import csv_columns


def row(variant, accuracy, proven, claimed=math.nan, repairs="", **others):
    """Return a row of the table of privacy: a configuration of DP-AGR on letters in its
    paper's table, unless other values are given.
    """
    values = {
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
        "variant": variant,
        "repaired": bool(repairs),
        "epsilon_claimed_low": claimed,
        "epsilon_claimed": claimed,
        "epsilon_proven_low": proven[0],
        "epsilon_proven_high": proven[1],
        "accuracy": accuracy,
        "accuracy_low": accuracy - 1,
        "accuracy_high": accuracy + 1,
        "seeds": 3,
        "interval_over": "seeds",
        **others,
    }
    return values | {
        "title": values["method"].upper(),
        "shown_in": ((values["paper"], "table1", "table", variant, repairs),),
        "folder": f"{values['method']}/{variant}",
    }


PUBLISHED = row("published", 85, (4.8, 4.9), claimed=3.5, printed=1.5)


def read(rows):
    return answer.read(with_epsilon_texts(pd.DataFrame(rows)))


def answers(rows):
    """Return for each paper the names of the published row and of its repair."""
    names = read(rows)[["of_paper", "variant", "repair_variant"]]
    return [tuple(values) for values in names.replace({np.nan: None}).to_numpy()]


def listing(rows, titles=None):
    return answer.listing(read(rows), titles or {})


def tidy(rows):
    return csv_columns(read(rows), "answer")


def best(*others):
    ((_, published, repair),) = answers([PUBLISHED, *others])
    assert published == "published"
    return repair


def test_answer_takes_the_most_accurate_repair_within_the_claim():
    """Its upper end counts."""
    low = row("low", 70, (1.4, 1.5))
    high = row("high", 80, (3.3, 3.5))
    assert best(low, high, row("beyond", 84, (3.4, 3.51))) == "high"


def test_answer_takes_no_repair_with_infinite_epsilon():
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
def test_answer_takes_no_repair_of_something_else_or_without_proof(other):
    assert best(row("other", 99, (1.0, 1.0), **other)) is None


@pytest.mark.parametrize(
    "other",
    [{"delta": 1e-7}, {"method": "dp-agr-ftrl", "paper": "correlated-noise"}],
)
def test_answer_takes_repairs_at_a_smaller_delta_and_of_other_methods(other):
    assert best(row("other", 60, (1.0, 1.0), **other)) == "other"


def test_answer_of_a_proven_claim_needs_no_repair():
    valid = row("published", 85, (3.0, 3.4), claimed=3.5)
    rows = [valid, row("worse", 70, (1.0, 1.0))]
    assert answers(rows) == [("dp-fedmeta", "published", "published")]
    (shown,) = listing(rows).rows
    assert shown["best valid repair"].text == "none needed: the claim is proven"


def test_answer_prefers_the_configuration_that_has_a_repair():
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
    assert answers([unclaimed]) == []
    assert answer.NO_CLAIM in listing([unclaimed]).markdown("snakemake x")


def test_answer_row_has_claim_range_accuracy_and_repair():
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
    expected = {
        "epsilon_claimed": 3.5,
        "epsilon_proven_low": 4.8,
        "epsilon_proven": 4.9,
        "repair_variant": "low",
        "repair_epsilon_proven": 1.5,
        "repair_accuracy": 70,
    }
    assert {name: record[name] for name in expected} == expected
    (alone,) = listing([PUBLISHED]).rows
    assert alone["best valid repair"].text == "none here"
