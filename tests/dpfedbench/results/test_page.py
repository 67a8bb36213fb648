"""The page of results, read as text: its numbers, its links and damaged files."""

import csv
import dataclasses
import html
import re
import shutil
from urllib.parse import unquote

import pytest

from dpfedbench.results import page

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


def make_page(site, products, **changes):
    return page.make(products, **(site.arguments | changes))


def file_links(page_text):
    links = re.findall(r'<a[^>]* href="([^"#][^"]*)"', page_text)
    return [unquote(html.unescape(link)) for link in links]


def test_links_are_relative_and_lead_to_files(site, text):
    files = file_links(text)
    assert not any(re.match(r"[a-z]+:|/", link) for link in files)
    assert all((site.folder / link).is_file() for link in files)
    runs = {cell["run"] for cell in site.arguments["cells"]}
    assert {f"runs/{run}/config.yaml" for run in runs} <= set(files)


def test_links_of_a_presets_page_lead_to_the_shared_runs(site, tmp_path):
    preset = tmp_path / "results" / "smoke"
    shutil.copytree(site.folder / "runs", tmp_path / "results" / "runs")
    for name in ("tables", "figures"):
        shutil.copytree(site.folder / name, preset / name)
    shutil.copy(site.folder / "provenance.json", preset)
    text = make_page(site, site.products, results=preset.parent, folder=preset)
    files = file_links(text)
    assert any(link.startswith("../runs/") for link in files)
    assert all((preset / link).is_file() for link in files)
    assert str(tmp_path) not in text


def test_page_loads_nothing_from_outside(text):
    assert "content=\"default-src 'none'" in text
    sources = re.findall(
        r'<(?:script|img|link|iframe)[^>]* (?:src|href)="([^"]*)"', text
    )
    assert len(sources) > 1
    assert all(source.startswith("data:") for source in sources)


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


def test_provenance_and_stand_ins_are_named(text):
    assert "Stand-ins: glyphs stands in for omniglot." in text
    assert "none: the default configuration" in text
    assert "not known: the sources were not in a git working tree" in text


def test_title_is_text_not_markup(site):
    product = site.products[0]
    title = '<script>alert(1)</script> & "quotes" {{ 7 * 7 }}'
    item = product.item
    item = dataclasses.replace(item, spec={**item.spec, "title": title})
    text = make_page(site, [dataclasses.replace(product, item=item)])
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert "{{ 7 * 7 }}" in text
