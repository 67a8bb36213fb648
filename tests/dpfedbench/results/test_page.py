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
from dpfedbench.results.configurations import (
    rank,
    read_configurations,
    with_differences,
)


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


LEVELS = [0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20]
HEADS = ["place", "method", "accuracy, %", "lost, points", "proven ε", "costs"]


def choose(tab, epsilon):
    """Choose letters and an epsilon; return the ranking's rows, by heading."""
    tab.locator(".question select[name=task]").select_option("glyphs, 5-way 1-shot")
    tab.locator(".question input[name=epsilon]").evaluate(
        "(range, value) => { range.value = value;"
        " range.dispatchEvent(new Event('input', { bubbles: true })); }",
        LEVELS.index(epsilon),
    )
    rows = tab.locator(".ranking tbody tr").all()
    texts = [row.locator("th, td").all_inner_texts() for row in rows]
    return [dict(zip(HEADS, row, strict=True)) for row in texts]


def number_in(row, heading):
    return float(row[heading].split()[0])


def test_ranking_equals_that_in_python(tab, site):
    """At ε = 2, 4 and 8, of the accounts that the fixture wrote (4.887 / z, one 1.51).

    The least is 4.887 / 4, of the configuration with four times the noise.
    """
    rows = read_configurations(site.arguments["cells"], site.folder)
    question = {"dataset": "glyphs", "task": "5-way 1-shot", "unit": "client"}
    counts = []
    for epsilon in (2, 4, 8):
        ranking = [row for row in choose(tab, epsilon) if row["place"].isdigit()]
        expected = rank(rows, **question, epsilon=epsilon)
        private = expected[expected["group"] == "private"]
        best = private.iloc[:8]
        accuracies = [number_in(row, "accuracy, %") for row in ranking]
        assert accuracies == [round(value, 1) for value in best["accuracy"]]
        assert [int(row["place"]) for row in ranking] == best["rank"].tolist()
        counts.append(len(private))
    assert 1 <= counts[0] <= counts[1] < counts[2]
    choose(tab, 0.1)
    remark = tab.locator(".question .once").inner_text()
    assert "the least proven one is 1.22." in remark


def test_ranking_says_what_privacy_costs_and_how_its_rows_differ(tab):
    """The lost points are the difference to the best row without privacy. Noise is in
    the name of configurations that differ in nothing else.
    """
    ranking = choose(tab, 20)
    assert tab.locator(".question output").inner_text() == "20"
    plain = [row for row in ranking if row["place"] == "not private"]
    best = max(number_in(row, "accuracy, %") for row in plain)
    for row in ranking:
        lost = best - number_in(row, "accuracy, %")
        assert number_in(row, "lost, points") == pytest.approx(lost, abs=0.11)
        assert re.match(r"\d+ × \d+ clients|no training", row["costs"])
    private = [row["method"] for row in ranking if row["place"].isdigit()]
    assert len({*private}) == len(private)


def test_configurations_of_one_name_say_how_they_differ():
    """Two differ in noise, one of them calibrated to a budget; two in a rate."""
    columns = ["run", "noise_multiplier", "noise.multiplier", "server.rate"]
    runs = [("a", 1.0, 1.0, 0.1), ("b", 3.98, None, 0.1), ("c", None, None, 0.1)]
    runs.append(("d", None, None, 0.3))
    rows = pd.DataFrame(
        {
            "title": ["DP-AGR", "DP-AGR", "MAML", "MAML", "Reptile"],
            "variant": "",
            "dataset": "glyphs",
            "tested": "5-way 1-shot",
            "unit": ["client", "client", "", "", ""],
            "runs": [(run,) for run in "abcdc"],
        }
    )
    named = with_differences(rows, pd.DataFrame(runs, columns=columns))
    differences = named["difference"].tolist()
    assert differences == [
        "z = 1",
        "z = 3.98",
        "server.rate = 0.1",
        "server.rate = 0.3",
        "",
    ]


def test_page_names_the_stand_ins_of_its_provenance(site):
    header = site.text[site.text.index("<header>") : site.text.index("</header>")]
    assert "Stand-ins: glyphs stands in for omniglot." in header


@pytest.mark.parametrize("width", [1280, 390])
def test_first_screen_fits_the_window(tab, width):
    """Nothing of the ranking is cut off, and the page does not scroll sideways."""
    tab.set_viewport_size({"width": width, "height": 900})
    choose(tab, 20)
    outside = tab.evaluate(
        """() => [...document.querySelectorAll('header *, .question *')]
          .map((part) => part.getBoundingClientRect())
          .filter((box) => box.width > 1 && (box.right > innerWidth || box.left < 0))
          .length"""
    )
    assert outside == 0
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
