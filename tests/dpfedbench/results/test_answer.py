"""Which configuration answers for a paper, which repair is the best valid one, and the
ranking at a given ε, by rows that were written by hand.
"""

import math

import numpy as np
import pandas as pd
import pytest

from dpfedbench.results import answer
from dpfedbench.results.configurations import rank, with_groups
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
        "client_origin": "synthetic",
        "unit_label": "client (synthetic)",
        "adjacency": "zero-out",
        "observer": "everyone",
        "delta": 1e-6,
        **dict.fromkeys(("proven_status", "claimed_status"), "proved"),
        **dict.fromkeys(("proven_excess", "claimed_excess", "start"), ""),
        "printed": math.nan,
        "variant": variant,
        "repaired": bool(repairs),
        "epsilon_claimed_low": claimed,
        "epsilon_claimed": claimed,
        "epsilon_proven_low": proven[0],
        "epsilon_proven_high": proven[1],
        "accuracy": accuracy,
        "accuracy_low": accuracy - 1,
        "accuracy_high": accuracy + 1,
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


def answers(*rows):
    """Return for each paper the names of the published row and of its repair."""
    names = read(rows)[["of_paper", "variant", "repair_variant"]]
    return [tuple(values) for values in names.replace({np.nan: None}).to_numpy()]


def test_answer_takes_the_most_accurate_repair_within_the_claim():
    """Its upper end counts."""
    low = row("low", 70, (1.4, 1.5))
    high = row("high", 80, (3.3, 3.5))
    beyond = row("beyond", 84, (3.4, 3.51))
    rows = [PUBLISHED, low, high, beyond]
    assert answers(*rows) == [("dp-fedmeta", "published", "high")]
    names = ["epsilon_claimed", "epsilon_proven_low", "epsilon_proven"]
    names += ["repair_epsilon_proven", "repair_accuracy"]
    table = csv_columns(read(rows), "answer")
    assert table[names].values.tolist() == [[3.5, 4.8, 4.9, 3.5, 80]]


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
        ({"method": "dp-maml"}, False),
        ({"start": "from maml on glyph-symbols"}, False),
    ],
)
def test_answer_takes_no_repair_of_something_else_or_without_proof(other, is_taken):
    repair = "other" if is_taken else None
    rows = PUBLISHED, row("other", 99, (1.0, 1.0), **other)
    assert answers(*rows) == [("dp-fedmeta", "published", repair)]


def test_answer_of_a_proven_claim_needs_no_repair():
    valid = row("published", 85, (3.0, 3.4), claimed=3.5)
    worse = row("worse", 70, (1.0, 1.0))
    assert answers(valid, worse) == [("dp-fedmeta", "published", "published")]


def test_answer_prefers_the_configuration_that_has_a_repair():
    """Neither what comes first, nor a repair, nor another paper's method; papers
    without a finite claim have no row.
    """
    first = row("first", 90, (1.0, 1.0), claimed=1.0)
    repair = row("repair", 80, (3.0, 3.0), claimed=3.0, repairs="published")
    foreign = row("foreign", 50, (9.0, 9.0), claimed=9.5, method="dp-reptile")
    unclaimed = row("unclaimed", 50, (9.0, 9.0), method="dp-maml", paper="dp-maml")
    ((paper, published, _),) = answers(foreign, first, repair, PUBLISHED, unclaimed)
    assert (paper, published) == ("dp-fedmeta", "published")
    ((_, alone, _),) = answers(foreign, first, unclaimed)
    assert alone == "first"
    infinite = row("published", 85, (math.inf, math.inf), claimed=math.inf)
    assert answers(unclaimed) == answers(infinite) == []


# The ranking of configurations


def ranked(*rows, epsilon=2.0):
    question = {"dataset": "glyphs", "task": "5-way 1-shot", "unit": "client"}
    ranking = rank(with_groups(pd.DataFrame(rows)), **question, epsilon=epsilon)
    return ranking["variant"].to_list()


def test_rank_puts_the_most_accurate_within_epsilon_first():
    worse = row("worse", 60, (0.5, 1.0))
    better = row("better", 70, (1.0, 2.0))
    beyond = row("beyond", 90, (1.0, 2.01))
    assert ranked(worse, better, beyond) == ["better", "worse"]
    assert ranked(worse, better, beyond, epsilon=8.0) == ["beyond", "better", "worse"]


def test_rank_leaves_out_what_is_not_proven_or_of_something_else():
    unsuitable = [
        {"proven_status": "void"},
        {"proven_status": "refuted"},
        {"epsilon_proven_high": math.inf},
        {"unit": "record"},
        {"dataset": "digits"},
        {"tested": "5-way 5-shot"},
    ]
    rows = [row("other", 99, (1.0, 1.0), **fields) for fields in unsuitable]
    assert ranked(row("good", 50, (0.5, 1.0)), *rows) == ["good"]
