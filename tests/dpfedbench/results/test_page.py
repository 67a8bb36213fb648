"""The page of results: its numbers and links, read as text; and its ranking in a real
browser, Debian's `chromium` or what CHROMIUM names, driven by Playwright.
"""

import html
import os
import re
import shutil
from urllib.parse import unquote

import pandas as pd
import pytest

from dpfedbench.results import page
from dpfedbench.results.configurations import rank, read_configurations


def table_with(page_text, heading):
    """Return the rows of the first table with a heading: the texts of their cells."""
    for table in re.findall(r"<table\b.*?</table>", page_text, re.DOTALL):
        rows = [
            [
                " ".join(html.unescape(re.sub(r"<[^>]*>", " ", cell)).split())
                for cell in re.findall(r"<t[hd]\b.*?</t[hd]>", row, re.DOTALL)
            ]
            for row in re.findall(r"<tr\b.*?</tr>", table, re.DOTALL)
        ]
        if heading in rows[0]:
            return pd.DataFrame(rows[1:], columns=rows[0])
    raise AssertionError(f"no table has {heading}")


def test_page_links_to_files_and_loads_nothing_from_outside(site):
    links = re.findall(r'<a[^>]* href="([^"#][^"]*)"', site.text)
    files = [unquote(html.unescape(link)) for link in links]
    assert all((site.folder / file).is_file() for file in files)
    runs = {cell["run"] for cell in site.arguments["cells"]}
    assert {f"runs/{run}/config.yaml" for run in runs} <= set(files)
    assert "content=\"default-src 'none'" in site.text
    loaded = r'<(?:script|img|link|iframe)[^>]* (?:src|href)="([^"]*)"'
    sources = re.findall(loaded, site.text)
    assert all(source.startswith("data:") for source in sources)


def test_paper_table_equals_its_csv(site):
    rows = pd.read_csv(site.folder / "tables" / "dp-fedmeta" / "table2.csv")
    shown = table_with(site.text, "published, %")
    assert len(rows) == 10
    assert shown["task"].tolist() == rows["task"].tolist()
    accuracies = shown["accuracy, % (95 % interval)"].str.split().str[0]
    assert accuracies.tolist() == rows["value"].map("{:.1f}".format).tolist()
    epsilons = rows["epsilon_proven"].map("{:.3g}".format).replace("nan", "–")
    assert shown["proven ε"].tolist() == epsilons.tolist()
    published = rows["published"].map("{:g} not comparable".format)
    assert shown["published, %"].tolist() == published.tolist()


def test_all_configurations_have_each_epsilon(site):
    """A variant's name is no markup."""
    table = table_with(site.text, "audited ε")
    epsilons = table[["claimed ε", "proven ε", "audited ε"]].to_numpy().tolist()
    shown = dict(zip(table["method"], epsilons, strict=True))
    assert shown["DP-AGR one-pass"] == ["1.5", "4.89", "0.8"]
    assert shown["DP-AGR Poisson"] == ["1.5", "1.49 to 1.51", "0.8"]
    infinite = shown["DP-AGR C <b>from</b> raw norms"]
    assert infinite == ["1.5", "4.89 to ∞ void", "0.8"]


def test_rows_have_what_the_ranking_needs(site):
    """A row without a proven ε is never ranked."""
    rows = set(re.findall(r'data-group="([^"]*)" data-proven="([^"]*)"', site.text))
    assert {("private", "1.51"), ("private", "")} <= rows
    groups = {group for group, _ in rows}
    assert groups == {"private", "not private", "no private data"}


def test_page_so_far_names_the_missing_papers(site):
    """A page of all papers says nothing of the kind."""
    text = page.make(
        site.products, **site.arguments | {"missing": ["DP-FNAS", "DP-MAML"]}
    )
    (notice,) = re.findall(r'<section class="missing".*?</section>', text, re.DOTALL)
    assert "This page is not complete." in notice
    assert "DP-FNAS, DP-MAML are still being made" in notice
    assert "<code>snakemake all</code> continues it" in notice
    assert 'class="missing"' not in site.text


def test_answer_of_a_paper_is_shown_by_its_file(site):
    """The page of one paper shows its answer, and no table where it claims nothing."""
    paths = ("tables/dp-fedmeta/answer.csv", "tables/dp-maml/answer.csv")
    products = [page.Product(path=path, command="it", item=None) for path in paths]
    text = page.make([*site.products, *products], **site.arguments)
    shown = [
        text.partition(f'id="{product.anchor}"')[2].partition("</section>")[0]
        for product in products
    ]
    assert "DP-AGR" in shown[0]
    assert shown[1] == ""


# In a browser


@pytest.fixture(scope="module")
def tab(site):
    """The page, opened as a double click does; an error of its script fails the tests."""
    reason = "`uv sync --group browser` installs playwright"
    playwright = pytest.importorskip("playwright.sync_api", reason=reason)
    names = ("chromium", "google-chrome")
    browsers = [os.environ.get("CHROMIUM"), *map(shutil.which, names)]
    executable = next(filter(None, browsers), None)
    if executable is None:
        pytest.skip("no Chromium here: `apt-get install chromium`, or set CHROMIUM")
    errors = []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable)
        tab = browser.new_page()
        tab.on("pageerror", lambda error: errors.append(error))
        tab.goto((site.folder / "index.html").as_uri())
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
    question = {"dataset": "glyphs", "task": "5-way 1-shot", "unit": "client"}
    counts = []
    for exponent in (1, 2, 3):
        ranking = choose(tab, exponent)
        expected = rank(rows, **question, epsilon=2.0**exponent)
        private = expected[expected["group"] == "private"]
        accuracies = [float(row[2].split()[0]) for row in ranking if row[0].isdigit()]
        assert accuracies == [round(value, 1) for value in private["accuracy"][:8]]
        counts.append(len(private))
    assert 1 <= counts[0] <= counts[1] < counts[2]
    choose(tab, -1)
    remark = tab.locator(".question .once").inner_text()
    assert "the least proven one is 1.22." in remark
