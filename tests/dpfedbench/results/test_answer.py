"""Which configuration answers for a paper, and which repair is the best valid one."""

import math

import numpy as np
import pandas as pd
import pytest

from dpfedbench.results import answer
from dpfedbench.results.formats import with_epsilon_texts
from dpfedbench.results.table_columns import csv_columns


def row(variant, accuracy, proven, claimed=math.nan, repairs="", **others):
    """Return a row of the table of privacy: of DP-AGR on letters by default."""
    values = {
        "method": "dp-agr",
        "paper": "dp-fedmeta",
        "dataset": "glyphs",
        "task": "5-way 1-shot",
        "tested": "5-way 1-shot",
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


def listing(rows):
    return answer.listing(read(rows), {})


def tidy(rows):
    return csv_columns(read(rows), "answer")


def test_answer_takes_the_most_accurate_repair_within_the_claim():
    """Its upper end counts."""
    low = row("low", 70, (1.4, 1.5))
    high = row("high", 80, (3.3, 3.5))
    beyond = row("beyond", 84, (3.4, 3.51))
    rows = [PUBLISHED, low, high, beyond]
    assert answers(rows) == [("dp-fedmeta", "published", "high")]
    (record,) = tidy(rows).to_dict("records")
    expected = {
        "epsilon_claimed": 3.5,
        "epsilon_proven_low": 4.8,
        "epsilon_proven": 4.9,
        "repair_variant": "high",
        "repair_epsilon_proven": 3.5,
        "repair_accuracy": 80,
    }
    assert {name: record[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("other", "is_taken"),
    [
        ({}, True),
        ({"delta": 1e-7}, True),
        ({"method": "dp-agr-ftrl", "paper": "correlated-noise"}, True),
        ({"epsilon_proven_high": math.inf}, False),
        ({"dataset": "digits"}, False),
        ({"task": "5-way 5-shot"}, False),
        ({"unit": "record"}, False),
        ({"adjacency": "replace-one"}, False),
        ({"observer": "server"}, False),
        ({"delta": 1e-5}, False),
        ({"proven_status": "as run"}, False),
        ({"proven_status": "void"}, False),
        ({"method": "dp-maml"}, False),
        ({"start": "from maml on glyph-symbols"}, False),
    ],
)
def test_answer_takes_no_repair_of_something_else_or_without_proof(other, is_taken):
    rows = [PUBLISHED, row("other", 99, (1.0, 1.0), **other)]
    repair = "other" if is_taken else None
    assert answers(rows) == [("dp-fedmeta", "published", repair)]


def test_answer_of_a_proven_claim_needs_no_repair():
    valid = row("published", 85, (3.0, 3.4), claimed=3.5)
    rows = [valid, row("worse", 70, (1.0, 1.0))]
    assert answers(rows) == [("dp-fedmeta", "published", "published")]


def test_answer_prefers_the_configuration_that_has_a_repair():
    """Neither what comes first, nor a repair, nor another paper's method; papers
    without a finite claim have no row.
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
    assert answers([row("published", 85, (math.inf, math.inf), claimed=math.inf)]) == []
