"""docs/fidelity.md agrees with its data, the published numbers, our pages and the plan
of the `paper` preset.
"""

import dataclasses
import re

import pytest

from dpfedbench.experiments.plan import Plan
from tools import fidelity
from tools.fidelity import Result, Setting


@pytest.fixture(scope="module")
def paper_plan() -> Plan:
    return fidelity.read_paper_plan()


def problems_of(result: Result, paper_plan: Plan) -> list[str]:
    return list(
        fidelity.find_problems_of_result(
            result,
            "dp-fedmeta",
            paper_plan,
            fidelity.read_published(),
            fidelity.read_runs(),
            {"M1", "M2", "R4"},
        )
    )


def of_table_2(**changes: str) -> Result:
    """Return DP-AGR's cell of Table 2, with 93.9 as published and 92.0 on our page."""
    (row,) = (
        result
        for result in fidelity.read_results("dp-fedmeta")
        if result.claim == "Omniglot, 5-way 1-shot: DP-AGR"
    )
    return dataclasses.replace(row, **changes)


def test_fidelity_page_is_that_of_its_data(paper_plan: Plan) -> None:
    assert fidelity.find_problems(paper_plan) == []
    text = fidelity.PAGE.read_text(encoding="utf-8")
    assert text == fidelity.make_page(paper_plan), (
        "docs/fidelity.md is old: run `python tools/fidelity.py`"
    )


def test_fidelity_results_have_every_published_accuracy() -> None:
    """DP-FedMeta: six tasks, five columns. DP-MAML: six tasks, two columns.

    Adap DP-FL: ten numbers, one of them in two readings. DP-FNAS: eight searches and six
    variances.
    """

    def count(paper: str, pattern: str) -> int:
        rows = fidelity.read_results(paper)
        return sum(bool(re.match(pattern, row.published_row)) for row in rows)

    assert count("dp-fedmeta", "table2; ") == 30
    assert count("dp-maml", r"table3; [^;]+; [^;]+; [\w-]+$") == 12
    assert count("adap-dp-fl", "accuracy-[ab]; ") == 11
    assert count("dp-fnas", r"table1; .*cells; [^;]+$") == 8
    assert count("dp-fnas", r"table2; .*variance [\d.]+$") == 6


@pytest.mark.parametrize(
    ("ours", "published", "expected"),
    [
        ("90.4 (86.9 to 93.9)", "93.9", True),
        ("90.4 (86.9 to 93.8)", "93.9", False),
        ("1.517", "1.5", True),
        ("1.551", "1.5", False),
        ("88.7 % (85 to 93)", "88", True),
        ("92.0 (91.3 to 92.7)", "", False),
    ],
)
def test_is_reproduced_within_the_interval_or_by_rounding(
    ours: str, published: str, expected: bool
) -> None:
    assert fidelity.is_reproduced(ours, published) is expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"status": "reproduced"}, "does not reproduce 93.9"),
        ({"ours": "92.4 (91.3 to 92.7)"}, "results.md does not have '92.4"),
        ({"run": "maml-16k"}, "runs.csv has no runs maml-16k of this paper"),
        ({"measurement": "M999"}, "docs/measurements.md has no row M999"),
        ({"explanation": "Fewer clients."}, "names no measurement and no page"),
        ({"published_row": "table2; omniglot"}, "published.csv has no row"),
        ({"item": "table9"}, "the paper preset has no item table9"),
        ({"status": "not run"}, "its explanation has no cost"),
    ],
)
def test_fidelity_row_with_a_fault_is_found(
    paper_plan: Plan, changes: dict[str, str], message: str
) -> None:
    assert problems_of(of_table_2(), paper_plan) == []
    problems = problems_of(of_table_2(**changes), paper_plan)
    assert any(message in problem for problem in problems), problems


SETTING = Setting(
    paper="dp-fedmeta",
    location="Section 5",
    setting="user sample size L",
    text="1,600",
    cells="table2 series=dp-agr dataset=omniglot shots=1",
    key="participation.cohort",
    value="1600",
    reason="",
)


@pytest.mark.parametrize(
    ("changes", "ours", "verdict"),
    [
        ({}, "1,600", "equal"),
        ({"value": "1601"}, "1,600", "differs"),
        ({"value": ">= 1600"}, "1,600", "equal"),
        ({"value": ">= 1601"}, "1,600", "differs"),
        ({"value": ""}, "1,600", "open in the text"),
        ({"cells": "table2 series=fedavg"}, "", "not in the plan"),
        ({"key": "series", "value": "[dp-agr]"}, "dp-agr", "equal"),
        ({"key": "series", "value": "[dp-agr, maml]"}, "dp-agr", "differs"),
    ],
)
def test_fidelity_setting_is_compared_with_the_plan(
    paper_plan: Plan, changes: dict[str, str], ours: str, verdict: str
) -> None:
    compared = fidelity.compare(dataclasses.replace(SETTING, **changes), paper_plan)
    assert compared.ours == ours
    assert compared.verdict == verdict
