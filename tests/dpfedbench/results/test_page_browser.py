"""The page of results in a real browser: Debian's `chromium`, or what CHROMIUM names,
driven by Playwright.
"""

import os
import shutil

import pytest

from dpfedbench.results.configurations import rank, read_configurations

playwright = pytest.importorskip(
    "playwright.sync_api", reason="`uv sync --group browser` installs playwright"
)
CHROMIUM = (
    os.environ.get("CHROMIUM")
    or shutil.which("chromium")
    or shutil.which("google-chrome")
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None,
    reason="no Chromium here: `apt-get install chromium`, or set CHROMIUM",
)


@pytest.fixture(scope="module")
def tab(site):
    """The page, opened as a double click does; an error of its script fails the tests."""
    errors = []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM)
        tab = browser.new_page()
        tab.on("pageerror", lambda error: errors.append(error))
        tab.goto(site.page.as_uri())
        yield tab
        browser.close()
    assert errors == []


def choose(tab, exponent):
    """Choose letters and an epsilon of two to an exponent; return the ranking's rows."""
    tab.locator(".question select[name=task]").select_option("glyphs, 5-way 1-shot")
    tab.locator(".question input[name=epsilon]").evaluate(
        "(range, value) => { range.value = value;"
        " range.dispatchEvent(new Event('input', { bubbles: true })); }",
        exponent,
    )
    rows = tab.locator(".ranking tbody tr").all()
    return [row.locator("th, td").all_inner_texts() for row in rows]


def test_ranking_equals_that_in_python(tab, site):
    """At ε = 2, 4 and 8, of the accounts that the fixture wrote (4.887 / z, one 1.51).

    The least is 4.887 / 4, of the configuration with four times the noise.
    """
    rows = read_configurations(site.arguments["cells"], site.folder)
    asked = {"dataset": "glyphs", "task": "5-way 1-shot", "unit": "client"}
    counts = []
    for exponent in (1, 2, 3):
        ranking = choose(tab, exponent)
        expected = rank(rows, **asked, epsilon=2.0**exponent)
        private = expected[expected["group"] == "private"]
        accuracies = [float(row[2].split()[0]) for row in ranking if row[0].isdigit()]
        assert accuracies == [round(value, 1) for value in private["accuracy"][:8]]
        counts.append(len(private))
    assert 1 <= counts[0] <= counts[1] < counts[2]
    choose(tab, -1)
    remark = tab.locator(".question .once").inner_text()
    assert "the least proven one is 1.22." in remark


def test_infinity_sorts_above_every_number(tab):
    table = "#all-configurations"
    heads = tab.locator(f"{table} thead th").all_inner_texts()
    column = next(number for number, text in enumerate(heads) if "proven" in text)
    tab.locator(f"{table} thead th").nth(column).get_by_role("button").click()
    values = tab.locator(f"{table} tbody tr > :nth-child({column + 1})")
    finite = [text for text in values.all_inner_texts() if text != "–"]
    assert finite[0] == "1.22"
    assert "∞" in finite[-1]
