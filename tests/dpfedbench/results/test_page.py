"""The page of results, read as text: its numbers and links."""

import csv
import html
import re
from urllib.parse import unquote

import pytest

TAG = re.compile(r"<[^>]*>")


def texts_of(page_text, tag):
    """Return what stands between each opening and closing tag."""
    return re.findall(rf"<(?:{tag})\b[^>]*>(.*?)</(?:{tag})>", page_text, re.DOTALL)


def table_with(page_text, heading):
    """Return the texts of the cells of the first table with a heading, by rows."""
    for table in texts_of(page_text, "table"):
        rows = [
            [
                " ".join(html.unescape(TAG.sub(" ", cell)).split())
                for cell in texts_of(row, "th|td")
            ]
            for row in texts_of(table, "tr")
        ]
        if heading in rows[0]:
            return rows
    raise AssertionError(f"no table has {heading}")


@pytest.fixture(scope="module")
def text(site):
    return site.page.read_text(encoding="utf-8")


def test_page_links_to_files_and_loads_nothing_from_outside(site, text):
    links = re.findall(r'<a[^>]* href="([^"#][^"]*)"', text)
    files = [unquote(html.unescape(link)) for link in links]
    assert all((site.folder / file).is_file() for file in files)
    runs = {cell["run"] for cell in site.arguments["cells"]}
    assert {f"runs/{run}/config.yaml" for run in runs} <= set(files)
    assert "content=\"default-src 'none'" in text
    loaded = r'<(?:script|img|link|iframe)[^>]* (?:src|href)="([^"]*)"'
    assert all(source.startswith("data:") for source in re.findall(loaded, text))
    assert "Stand-ins: glyphs stands in for omniglot." in text


def test_paper_table_equals_its_csv(site, text):
    path = site.folder / "tables" / "dp-fedmeta" / "table2.csv"
    with path.open(newline="", encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    heads, *lines = table_with(text, "published, %")
    assert len(rows) == 10
    for line, row in zip(lines, rows, strict=True):
        shown = dict(zip(heads, line, strict=True))
        assert (shown["data"], shown["task"]) == (row["dataset"], row["task"])
        accuracy = shown["accuracy, % (95 % interval)"]
        assert accuracy.startswith(f"{float(row['value']):.1f} ")
        epsilon = row["epsilon_proven"]
        assert shown["proven ε"] == (f"{float(epsilon):.3g}" if epsilon else "–")
        comparison = f"{float(row['published']):g} not comparable"
        assert shown["published, %"] == comparison


def test_all_configurations_have_each_epsilon(text):
    """A variant's name is no markup."""
    heads, *lines = table_with(text, "audited ε")
    columns = [heads.index(name) for name in ("claimed ε", "proven ε", "audited ε")]
    shown = {line[0]: [line[column] for column in columns] for line in lines}
    assert shown["DP-AGR one-pass"] == ["1.5", "4.89", "0.8"]
    assert shown["DP-AGR Poisson"] == ["1.5", "1.49 to 1.51", "0.8"]
    infinite = shown["DP-AGR C <b>from</b> raw norms"]
    assert infinite == ["1.5", "4.89 to ∞ void", "0.8"]


def test_rows_have_what_the_ranking_needs(text):
    """A row without a proven ε is never ranked."""
    rows = set(re.findall(r'data-group="([^"]*)" data-proven="([^"]*)"', text))
    assert {("private", "1.51"), ("private", "")} <= rows
    groups = {group for group, _ in rows}
    assert groups == {"private", "not private", "no private data"}
