"""docs/fidelity.md agrees with its data, the published numbers, our measurements and
the plan of the `paper` preset, and its statuses follow the rules on top of the page.
"""

import dataclasses
import re

import pytest

from dpfedbench.experiments.plan import Plan
from tests.calls import ROOT
from tests.pages import DOCS, read_page
from tools import fidelity
from tools.fidelity import Measurement, Result, Setting, Sources


@pytest.fixture(scope="module")
def paper_plan() -> Plan:
    return fidelity.read_paper_plan()


@pytest.fixture(scope="module")
def sources(paper_plan: Plan) -> Sources:
    return fidelity.read_sources(paper_plan)


def read_result(paper: str, claim: str) -> Result:
    """Return the one result of a paper with a claim."""
    (result,) = (
        result for result in fidelity.read_results(paper) if result.claim == claim
    )
    return result


def find_problems(result: Result, paper: str, sources: Sources) -> str:
    """Return the problems of a result as one text."""
    return "\n".join(fidelity.find_problems_of_result(result, paper, sources))


def test_fidelity_page_is_that_of_its_data(paper_plan: Plan) -> None:
    """A changed preset changes the page: it has the settings that the papers state."""
    assert fidelity.find_problems(paper_plan) == []
    text = fidelity.PAGE.read_text(encoding="utf-8")
    assert text == fidelity.make_page(paper_plan), (
        "docs/fidelity.md is old: run `python tools/fidelity.py`"
    )


PLANTED = {
    "another rate is no reproduction": (
        "adap-dp-fl",
        "Fashion-MNIST: σ at ε = 2, from 4",
        {"status": "reproduced", "cost": ""},
        "its runs have other settings: learning rate, Fashion-MNIST: 0.003 (0.001)",
    ),
    "a fitted value is no reproduction": (
        "dp-fedmeta",
        "ε of a record, GBML",
        {"status": "reproduced", "cost": ""},
        "its runs were fitted: z0, or z, by the printed ε",
    ),
    "a number outside the interval is no reproduction": (
        "dp-fedmeta",
        "Omniglot, 5-way 1-shot: DP-AGR",
        {"status": "reproduced", "cost": ""},
        "does not reproduce 93.9",
    ),
    "a rate that differs is not equal settings": (
        "adap-dp-fl",
        "MNIST: adaptive clipping is above C = 1 at σ = 1.1",
        {"run": "fashion-validation", "status": "effect not found", "cost": ""},
        "its runs have other settings",
    ),
    "a row explains itself by no second run": (
        "dp-fedmeta",
        "Mini-ImageNet, 5-way 1-shot: DP-AGR",
        {"status": "differs, partly explained", "cost": ""},
        "it is explained without a second measurement",
    ),
    "a row explains itself by its own number": (
        "dp-fedmeta",
        "Mini-ImageNet, 5-way 1-shot: DP-AGR",
        {
            "status": "differs, partly explained",
            "cost": "",
            "cause": "4,000 of 400,000 clients",
            "from_": "26.8 (25.9 to 27.8) [M121]",
            "to": "26.8 (25.9 to 27.8) [M121]",
        },
        "`from` and `to` are one measurement",
    ),
    "a run of another data set explains nothing": (
        "dp-fedmeta",
        "Mini-ImageNet, 5-way 1-shot: DP-AGR",
        {
            "status": "differs, partly explained",
            "cost": "",
            "cause": "number of clients",
            "from_": "26.8 (25.9 to 27.8) [M121]",
            "to": "92.0 (91.3 to 92.7) [M2]",
        },
        "M2 is not of mini-imagenet",
    ),
    "a cause that moves nothing explains nothing": (
        "dp-fedmeta",
        "Omniglot, 5-way 5-shot: random initialisation",
        {
            "status": "differs, partly explained",
            "cost": "",
            "cause": "four steps of the test in place of five",
            "from_": "70.4 (60.0 to 80.9) [M103]",
            "to": "63.8 (51.4 to 76.3) [M103]",
        },
        "overlap: the cause moves nothing",
    ),
    "a cause that moves the number away explains nothing": (
        "dp-fedmeta",
        "Omniglot, 5-way 1-shot: DP-AGRLR",
        {
            "status": "differs, partly explained",
            "cost": "",
            "cause": "z of a record 1 in place of 1.634",
            "from_": "38.8 (37.9 to 39.7) [M101]",
            "to": "36.7 (35.8 to 37.5) [M101]",
        },
        "the cause does not move our number towards 72.4",
    ),
    "a cause that moves the number past the printed one explains nothing": (
        "dp-fedmeta",
        "Omniglot, 5-way 1-shot: GBML",
        {
            "status": "differs, partly explained",
            "cost": "",
            "cause": "five steps of gradient descent",
            "from_": "59.8 (59.0 to 60.6) [M100]",
            "to": "31.6 (30.8 to 32.4) [M100]",
        },
        "the cause moves our number past 44.6",
    ),
    "what our run has explains nothing": (
        "adap-dp-fl",
        "Fashion-MNIST, ε = 2: σ = 2, C = 1",
        {
            "status": "differs, partly explained",
            "cost": "",
            "cause": "pixels normalised",
            "from_": "65.5 [M7]",
            "to": "68.9 (67.9 to 69.8) [M208]",
        },
        "`to` is ours",
    ),
    "an algorithm that is not the paper's does not explain a part": (
        "adap-dp-fl",
        "MNIST, ε = 2: Adap DP-FL",
        {
            "status": "differs, partly explained",
            "cost": "",
            "cause": "C from the mean of raw norms",
            "from_": "28.3 (27.3 to 29.2) [M129]",
            "to": "94.3 (93.8 to 94.7) [M129]",
        },
        "it is wholly explained, or not at all: '94.3 (93.8 to 94.7)' has 94.15",
    ),
    "partly is not wholly explained": (
        "dp-fedmeta",
        "Omniglot, 5-way 1-shot: DP-AGRLR",
        {
            "status": "differs, explained",
            "cost": "",
            "cause": "five inner steps in place of one",
            "from_": "42.5 (41.4 to 43.5) [M101]",
            "to": "53.8 (52.8 to 54.9) [M101]",
        },
        "it is not explained: '53.8 (52.8 to 54.9)' does not have 72.4",
    ),
    "a second reading of another row is not ours": (
        "dp-fedmeta",
        "Omniglot, 5-way 1-shot: DP-AGRLR",
        {
            "status": "differs, partly explained",
            "cost": "",
            "cause": "five inner steps in place of one",
            "from_": "29.1 (26.8 to 31.3) [R4]",
            "to": "53.8 (52.8 to 54.9) [M101]",
        },
        "`from` is not ours",
    ),
    "an account decides no statement on accuracy": (
        "dp-fedmeta",
        "for z = 2 and 3 accuracy stays stable with larger L",
        {
            "status": "effect found",
            "cost": "",
            "run": "account",
            "ours": "52 of 83",
            "page": "findings/dp-maml.md",
            "measurement": "M200",
            "baseline": "L = 4,000, lots within ε = 2 = 100 of 100 [M200]",
        },
        "the runs account do not measure accuracy",
    ),
    "an effect has a baseline": (
        "adap-dp-fl",
        "Fashion-MNIST: adaptive clipping is above C = 1 at σ = 1.1",
        {"baseline": ""},
        "the effect has no baseline",
    ),
    "intervals that overlap do not show an effect": (
        "dp-maml",
        "accuracy drops as z grows",
        {"ours": "82.6 (81.8 to 83.3)"},
        "the effect is seen, but '82.6 (81.8 to 83.3)' and '82.9 (82.1 to 83.7)' overlap",
    ),
    "intervals that overlap do not refute an effect": (
        "dp-fedmeta",
        "adaptive clipping is above AQC",
        {"ours": "85.4 (84.7 to 86.2)"},
        "the effect is not seen, but all intervals overlap",
    ),
    "a smaller scale decides no effect": (
        "dp-fedmeta",
        "DP-AGR is above DP-AGRLR",
        {"status": "effect found", "cost": ""},
        "its runs have other settings: clients N: 16,000 (400,000)",
    ),
    "a number is in its measurement's row": (
        "dp-fedmeta",
        "Omniglot, 5-way 1-shot: DP-AGR",
        {"measurement": "M115"},
        "M115 does not have '90.7 (90.1 to 91.3)'",
    ),
    "a number is on its page": (
        "dp-fedmeta",
        "Omniglot, 5-way 1-shot: DP-AGR",
        {"ours": "92.4 (91.3 to 92.7)"},
        "results.md does not have '92.4 (91.3 to 92.7)'",
    ),
    "a number has a measurement": (
        "dp-fedmeta",
        "Omniglot, 5-way 1-shot: DP-AGR",
        {"measurement": ""},
        "it has a number of ours, but no measurement",
    ),
    "a measurement exists": (
        "dp-fedmeta",
        "Omniglot, 5-way 1-shot: DP-AGR",
        {"explanation": "See M999."},
        "docs/measurements.md has no row M999",
    ),
    "a baseline is in its measurement's row": (
        "dp-fedmeta",
        "DP-AGR is above DP-AGRLR",
        {"baseline": "Omniglot, 5-way 1-shot: DP-AGRLR = 38.9 (32.8 to 44.0) [R4]"},
        "R4 does not have '38.9 (32.8 to 44.0)'",
    ),
    "an interval of an explanation is in a row that it names": (
        "dp-fedmeta",
        "Omniglot, 5-way 1-shot: DP-AGR",
        {"explanation": "16,000 clients have 85.2 (84.2 to 86.0) (R4)."},
        "no row that the explanation names has '85.2 (84.2 to 86.0)'",
    ),
    "an accuracy is no size of a lot": (
        "dp-maml",
        "L below which accuracy drops quickly",
        {
            "ours": "82.6 (81.8 to 83.3)",
            "run": "maml-16k-figures",
            "page": "findings/dp-maml.md",
            "measurement": "M118",
        },
        "ours, '82.6 (81.8 to 83.3)', is no L below which accuracy drops quickly",
    ),
    "an open row has a cost": (
        "dp-fedmeta",
        "Omniglot, 5-way 1-shot: DP-AGR",
        {"cost": "some time"},
        "it has no cost",
    ),
    "equal settings that agree are no agreement under others": (
        "dp-fedmeta",
        "ε of a client, z = 1, by the paper's accounting",
        {"status": "agrees, other settings", "cost": "1 h"},
        "its runs have no other settings",
    ),
}
"""Faults: the paper, the claim, the columns that a tired colleague changes, and the
problem that the tool finds."""


@pytest.mark.parametrize("fault", PLANTED)
def test_fidelity_rule_refuses_planted_fault(sources: Sources, fault: str) -> None:
    paper, claim, changes, message = PLANTED[fault]
    result = read_result(paper, claim)
    assert message not in find_problems(result, paper, sources)
    planted = dataclasses.replace(result, **changes)
    assert message in find_problems(planted, paper, sources)


def test_fidelity_one_number_for_a_cell() -> None:
    """GBML's cell of Table 2 has 59.8 by the test of Nichol et al., and 29.1 with 2,000
    clients by another: a comparison uses the first.
    """
    results = fidelity.read_results("dp-fedmeta")
    assert list(fidelity.find_contradictions("dp-fedmeta", results)) == []
    claim = "DP-AGRLR is above GBML on Omniglot and CIFAR-FS"
    other = "Omniglot, 5-way 1-shot: GBML = 29.1 (26.8 to 31.3) [R4]"
    planted = [
        dataclasses.replace(result, baseline=other) if result.claim == claim else result
        for result in results
    ]
    (problem,) = fidelity.find_contradictions("dp-fedmeta", planted)
    assert "two numbers, '59.8 (59.0 to 60.6)' and '29.1 (26.8 to 31.3)'" in problem


def test_fidelity_one_number_for_an_entry_of_a_measurement() -> None:
    rows = {
        "M1": Measurement(text="… - M1 sum: 85.4 · mean: 83.5 · sum: 85.4", data="")
    }
    assert list(fidelity.find_problems_of_measurements(rows)) == []
    rows = {
        "M1": Measurement(text="… - M1 sum: 85.4 · mean: 83.5 · sum: 85.5", data="")
    }
    (problem,) = fidelity.find_problems_of_measurements(rows)
    assert problem == "docs/measurements.md, M1, sum: two numbers"


@pytest.mark.parametrize(
    ("differs", "message"),
    [
        ("", "`differs` says neither which settings differ, nor none"),
        ("clients N: 16,000", "is not `SETTING: OURS (TEXT)`"),
        ("clients N: 400,000 (16,000)", "is the text's value"),
        ("filters, Omniglot: 32 (64)", "the text leaves 'filters, Omniglot' open"),
    ],
)
def test_fidelity_runs_state_their_differences(
    sources: Sources, differs: str, message: str
) -> None:
    """DP-FedMeta's text has 400,000 clients, and states no number of filters."""
    run = dataclasses.replace(sources.runs["omniglot-16k"], differs=differs)
    papers = ["dp-fedmeta"]
    problems = fidelity.find_problems_of_runs(run, papers, sources.settings)
    assert any(message in problem for problem in problems)


def test_fidelity_stated_setting_without_a_key_is_not_open(sources: Sources) -> None:
    """Adap DP-FL's text states the labels of a client, for which we have no key."""
    run = sources.runs["fashion-scalar"]
    assert "labels of a client: all ten (three or four)" in run.differs
    papers = ["adap-dp-fl"]
    assert not list(fidelity.find_problems_of_runs(run, papers, sources.settings))


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (
            "real accuracy-b-rate-003 series=adap-noise",
            "adap-noise has learning rate, Fashion-MNIST 0.003 (0.001), which `differs`"
            " does not name",
        ),
        ("", "runs that differ in nothing name their cells of a preset"),
        ("real accuracy-b series=none", "the preset real has no cells accuracy-b"),
    ],
)
def test_fidelity_equal_settings_are_those_of_the_preset(
    paper_plan: Plan, sources: Sources, cells: str, message: str
) -> None:
    """A run that says it has the paper's settings is looked up in its preset."""
    run = sources.runs["fashion-scalar"]
    settings = sources.settings
    paper = "adap-dp-fl"
    assert not list(
        fidelity.find_unstated_differences(run, paper, settings, paper_plan)
    )
    planted = dataclasses.replace(run, cells=cells, differs="none")
    problems = fidelity.find_unstated_differences(planted, paper, settings, paper_plan)
    assert any(message in problem for problem in problems)


def test_measurement_row_has_whole_numbers(sources: Sources) -> None:
    """90.7 is in a row that has 90.7, not in one that has 190.7 or 90.75."""
    result = read_result("dp-fedmeta", "Omniglot, 5-way 1-shot: DP-AGR")
    for text, found in [
        ("| M215 | 90.7 (90.1 to 91.3) |", True),
        ("| M215 | 190.7 (90.1 to 91.3) |", False),
        ("| M215 | 90.75 (90.1 to 91.3) |", False),
    ]:
        row = Measurement(text=text, data="Omniglot")
        planted = dataclasses.replace(
            sources, measurements={**sources.measurements, "M215": row}
        )
        problems = find_problems(result, "dp-fedmeta", planted)
        assert ("M215 does not have '90.7 (90.1 to 91.3)'" not in problems) == found


def test_fidelity_page_names_the_row_that_has_an_explanation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One table of a paper has several explanations: its name alone tells none."""
    first, second, third, fourth = (
        read_result("dp-fedmeta", f"CIFAR-FS, 5-way 5-shot: {method}")
        for method in ("random initialisation", "non-private", "DP-AGR", "DP-AGRLR")
    )
    size = (
        "The published number of clients was not trained on this data set, nor was a"
        " smaller number."
    )
    network = "A smaller network than the paper's was trained, without a second run."
    planted = [
        dataclasses.replace(first, explanation=size),
        dataclasses.replace(second, explanation=network),
        dataclasses.replace(third, explanation=size),
        dataclasses.replace(fourth, explanation=size),
    ]
    monkeypatch.setattr(fidelity, "read_results", lambda _: planted)
    _, table = fidelity._make_result_tables("dp-fedmeta")
    rows = table.splitlines()[2:]
    assert size in rows[0]
    assert network in rows[1]
    reference = "As Table 2, “CIFAR-FS, 5-way 5-shot: random initialisation”, above."
    assert reference in rows[2]
    assert "As in the row above." in rows[3]
    assert not any(size in row for row in rows[1:])


def find_intervals(text: str) -> set[str]:
    """Return the numbers with an interval, without markup and signs of percent."""
    plain = " ".join(text.replace("*", "").replace(" %", "").split())
    number = r"[-−+]?\d[\d.,]*"
    return set(re.findall(rf"{number} \({number} to [-−+]?\d[\d.]*\d", plain))


def test_numbers_with_an_interval_stand_in_measurements() -> None:
    """Every measured interval of README and of all pages is in a row's numbers."""
    files = (DOCS / "measurements.md", DOCS / "measurements" / "numbers.txt")
    known = set()
    for file in files:
        known |= find_intervals(file.read_text(encoding="utf-8"))
    # A difference is written with or without its sign.
    known |= {number.lstrip("+") for number in known}
    missing = {
        f"{page.name}: {number}"
        for page in [ROOT / "README.md", *DOCS.rglob("*.md")]
        for number in find_intervals(page.read_text(encoding="utf-8"))
        if number.lstrip("+") not in known
    }
    assert missing == set()


def test_numbers_of_readme_stand_in_the_rows_that_it_names() -> None:
    """The notes below README's table name the rows of docs/measurements.md."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = re.search(r"^\| paper \|.*?\n\n(.*?)\n\n", text, flags=re.M | re.S)
    assert table is not None
    named = re.findall(r"\b[MR]\d+\b", table[1])
    measurements = fidelity.read_measurements()
    rows = " ".join(measurements[name].text for name in named)
    numbers = find_intervals(table[0])
    assert len(numbers) >= 10
    assert numbers <= find_intervals(rows)


def find_decimals(text: str) -> set[str]:
    """Return the numbers with a decimal point, without signs. Links are left out, and
    the bounds of intervals, which `find_intervals` has.
    """
    plain = re.sub(r"\]\([^)]*\)|\([-−+]?[\d.]+ to [-−+]?[\d.]+\)", "", text)
    return set(re.findall(r"(?<![\d.,])\d[\d,]*\.\d+(?![\d]|[.,]\d)", plain))


def test_decimals_of_readme_stand_in_the_rows_that_it_names() -> None:
    """Every measured number of README's results; printed numbers are the papers'."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    results = text.partition("## What came out")[2].partition("## Where to read")[0]
    measured = re.sub(r"\bprinted:? [\d.]+", "", results)
    measurements = fidelity.read_measurements()
    named = re.findall(r"\b[MR]\d+\b", results)
    rows = " ".join(measurements[name].text for name in named)
    numbers = find_decimals(measured)
    assert len(numbers) >= 30
    inner_rate = {"0.4"}
    assert numbers - inner_rate <= find_decimals(rows)


def test_decimals_of_findings_stand_in_the_rows_of_their_line() -> None:
    """The last column of each table names rows; a column of claims is the papers'."""
    measurements = fidelity.read_measurements()
    missing = []
    claims = None
    tables = [line for line in read_page("findings.md").splitlines() if "|" in line]
    for line in tables:
        cells = line.strip("| ").split(" | ")
        if cells[-1] == "rows":
            claims = cells.index("claim") if "claim" in cells else None
            continue
        if cells[0].startswith("---"):
            continue
        # A line without a paper continues the paper above.
        cells = cells if not line.startswith("| |") else ["", *cells]
        named = re.findall(r"\b[MR]\d+\b", cells[-1])
        assert named, line
        rows = find_decimals(" ".join(measurements[name].text for name in named))
        measured = [cell for i, cell in enumerate(cells[:-1]) if i != claims]
        missing += sorted(find_decimals(" ".join(measured)) - rows)
    assert missing == []


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
