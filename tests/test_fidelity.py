"""docs/fidelity.md agrees with its data, the published numbers, our pages and the plan
of the `paper` preset.
"""

import dataclasses

import pytest

from dpfedbench.experiments.plan import Plan
from tools import fidelity
from tools.fidelity import Setting


@pytest.fixture(scope="module")
def paper_plan() -> Plan:
    return fidelity.read_paper_plan()


def test_fidelity_page_is_that_of_its_data(paper_plan: Plan) -> None:
    """A changed preset changes the page: it has the settings that the papers state."""
    assert fidelity.find_problems(paper_plan) == []
    text = fidelity.PAGE.read_text(encoding="utf-8")
    assert text == fidelity.make_page(paper_plan), (
        "docs/fidelity.md is old: run `python tools/fidelity.py`"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"status": "reproduced"}, "does not reproduce 93.9"),
        ({"ours": "92.4 (91.3 to 92.7)"}, "results.md does not have '92.4"),
        ({"measurement": "M999"}, "docs/measurements.md has no row M999"),
    ],
)
def test_fidelity_number_that_we_did_not_measure_is_found(
    paper_plan: Plan, changes: dict[str, str], message: str
) -> None:
    """DP-AGR's cell of Table 2 has 93.9 as published, and 92.0 on our page."""
    (result,) = (
        result
        for result in fidelity.read_results("dp-fedmeta")
        if result.claim == "Omniglot, 5-way 1-shot: DP-AGR"
    )
    problems = fidelity.find_problems_of_result(
        dataclasses.replace(result, **changes),
        "dp-fedmeta",
        paper_plan,
        fidelity.read_published(),
        fidelity.read_runs(),
        {"M1", "M2", "R4"},
    )
    assert any(message in problem for problem in problems)


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
    ("changes", "verdict"),
    [
        ({}, "equal"),
        ({"value": "1601"}, "differs"),
        ({"value": ">= 1600"}, "equal"),
        ({"value": ">= 1601"}, "differs"),
        ({"key": "series", "value": "[dp-agr]"}, "equal"),
        ({"key": "series", "value": "[dp-agr, maml]"}, "differs"),
    ],
)
def test_fidelity_setting_is_compared_with_the_plan(
    paper_plan: Plan, changes: dict[str, str], verdict: str
) -> None:
    compared = fidelity.compare(dataclasses.replace(SETTING, **changes), paper_plan)
    assert compared.verdict == verdict
