"""The page of results, read as text: its content, its links and damaged files."""

import base64
import csv
import dataclasses
import io
import itertools
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
from PIL import Image

from dpfedbench.errors import BenchError
from dpfedbench.results import page
from tests.dpfedbench.results.conftest import Site

TEMPLATES = Path(page.__file__).parent / "templates"


class PageReader(HTMLParser):
    """The tags of a page with their attributes, and the text of table cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[list[list[str]]] = []
        self._open_row: list[str] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("th", "td"):
            self._open_row = self.tables[-1][-1]
            self._open_row.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("th", "td"):
            self._open_row = None

    def handle_data(self, data: str) -> None:
        if self._open_row is not None:
            self._open_row[-1] = " ".join(f"{self._open_row[-1]} {data}".split())

    def values(self, tag: str, attribute: str) -> list[str]:
        return [
            attributes[attribute] or ""
            for name, attributes in self.tags
            if name == tag and attribute in attributes
        ]

    def table_with(self, *headings: str) -> list[list[str]]:
        return next(
            rows for rows in self.tables if rows and set(headings) <= set(rows[0])
        )


@pytest.fixture(scope="module")
def text(site: Site) -> str:
    return site.page.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def reader(text: str) -> PageReader:
    return PageReader(text)


def make_page(site: Site, items: list[page.Product], **changed: Any) -> str:
    return page.make(items, **(site.arguments | changed))


def test_links_are_relative_and_lead_to_files(site: Site, reader: PageReader) -> None:
    links = reader.values("a", "href")
    anchors = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(set(anchors)) == len(anchors)
    targets = [link[1:] for link in links if link.startswith("#")]
    assert set(targets) <= set(anchors)
    files = [link for link in links if not link.startswith("#")]
    assert not any(re.match(r"[a-z]+:|/", link) for link in files)
    assert all((site.folder / unquote(link)).is_file() for link in files)
    runs = {cell["run"] for cell in site.arguments["cells"]}
    assert {f"runs/{run}/config.yaml" for run in runs} <= set(files)


def test_links_of_a_presets_page_lead_to_the_shared_runs(
    site: Site, tmp_path: Path
) -> None:
    moved = tmp_path / "elsewhere" / "results"
    preset = moved / "smoke"
    shutil.copytree(site.folder / "runs", moved / "runs")
    for name in ("tables", "figures"):
        shutil.copytree(site.folder / name, preset / name)
    shutil.copy(site.folder / "provenance.json", preset)
    text = make_page(site, site.items, results=moved, folder=preset)
    links = PageReader(text).values("a", "href")
    files = [link for link in links if not link.startswith("#")]
    assert any(link.startswith("../runs/") for link in files)
    assert all((preset / link).is_file() for link in files)
    assert str(tmp_path) not in text


def test_page_loads_nothing_from_outside(reader: PageReader) -> None:
    names = {tag for tag, _ in reader.tags}
    assert not names & {"iframe", "object", "embed"}
    assert reader.values("script", "src") == []
    assert reader.values("link", "href") == ["data:,"]
    assert all(source.startswith("data:") for source in reader.values("img", "src"))
    policy = reader.values("meta", "content")[1]
    assert policy.startswith("default-src 'none'")


def test_tables_and_figures_have_title_and_command(site: Site, text: str) -> None:
    shown = [product for product in site.items if product.item is not None]
    assert len(shown) == 4
    for product in shown:
        assert f'id="{product.anchor}"' in text
        assert f"<code>{product.command}</code>" in text
        assert product.title in text


def test_answer_and_frontier_stand_before_the_other_tables(
    reader: PageReader,
) -> None:
    anchors = [
        attributes["id"]
        for tag, attributes in reader.tags
        if "item" in (attributes.get("class") or "").split()
    ]
    assert anchors[:2] == ["tables-answer", "figures-dp-fedmeta-frontier"]
    assert anchors[-1] == "all-configurations"


def test_paper_table_equals_its_csv(site: Site, reader: PageReader) -> None:
    path = site.folder / "tables" / "dp-fedmeta" / "table2.csv"
    with path.open(newline="", encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    table = reader.table_with("published, %")
    assert table[0] == [
        *("method", "data", "task", "accuracy, % (95 % interval)"),
        *("claimed ε", "proven ε", "published, %", "δ", "unit"),
    ]
    assert len(table) == 1 + len(rows) == 11
    for shown, row in zip(table[1:], rows, strict=True):
        assert shown[1:3] == [row["dataset"], row["task"]]
        assert shown[3].startswith(f"{float(row['value']):.1f} ")
        epsilon = row["epsilon_proven"]
        assert shown[5] == (f"{float(epsilon):.3g}" if epsilon else "–")
        assert shown[6] == f"{float(row['published']):g} not comparable"


def test_all_configurations_have_each_epsilon(reader: PageReader) -> None:
    """The fixture's accounts: one exact, one with a range, one without an upper end,
    whose name is no markup.
    """
    table = reader.table_with("audited ε", "observer")
    heads = ["method", "accuracy, %", "claimed ε", "proven ε", "audited ε"]
    columns = [table[0].index(name) for name in heads]
    shown = {row[0]: [row[column] for column in columns[2:]] for row in table[1:]}
    assert shown["DP-AGR one-pass"] == ["1.5", "4.89", "0.8"]
    assert shown["DP-AGR Poisson"] == ["1.5", "1.49 to 1.51", "0.8"]
    assert shown["adap-dp-fl C <b>from</b> raw norms"] == [
        *("1.5", "4.89 to ∞ void", "0.8")
    ]


def test_rows_have_what_the_ranking_needs(reader: PageReader) -> None:
    rows = [
        (attributes["data-group"], attributes["data-proven"])
        for tag, attributes in reader.tags
        if "data-group" in attributes
    ]
    assert ("private", "1.51") in rows
    # No ε is proven: such a row is never ranked.
    assert ("private", "") in rows
    assert {group for group, _ in rows} == {
        *("private", "not private", "no private data")
    }


def test_cells_with_a_note_are_sorted_by_their_own_key(text: str) -> None:
    """Without a key the script sorts by the text, to which the note belongs."""
    cells = re.findall(r"<t[dh]([^>]*)>(.*?)</t[dh]>", text, flags=re.S)
    noted = [attributes for attributes, content in cells if "<small" in content]
    assert len(noted) > 20
    assert all("data-key=" in attributes for attributes in noted)


def test_figures_keep_their_pixels_and_have_words(
    site: Site, reader: PageReader
) -> None:
    sources = reader.values("img", "src")
    alts = reader.values("img", "alt")
    assert len(sources) == len(alts) == 4 and all(alts)
    index_of_chart = next(
        index for index, alt in enumerate(alts) if alt.startswith("Chart of L2 norm")
    )
    packed = base64.b64decode(sources[index_of_chart].partition(",")[2])
    embedded = np.asarray(Image.open(io.BytesIO(packed)))
    path = site.folder / "figures" / "dp-fedmeta" / "figure2b.png"
    with Image.open(path) as original:
        assert (embedded == np.asarray(original.convert("RGB"))).all()


def test_tables_have_captions_and_scopes(reader: PageReader) -> None:
    tags = [tag for tag, _ in reader.tags]
    assert tags.count("table") == tags.count("caption")
    scopes = {attributes.get("scope") for tag, attributes in reader.tags if tag == "th"}
    assert scopes == {"col", "row"}


def test_provenance_and_stand_ins_are_named(text: str) -> None:
    assert "Stand-ins: glyphs stands in for omniglot." in text
    assert "none: the default configuration" in text
    assert "not known: the sources were not in a git working tree" in text
    assert "ACSAC 2022" in text and "torch" in text


def test_title_is_text_not_markup(site: Site) -> None:
    product = site.items[0]
    assert product.item is not None
    title = '<script>alert(1)</script> & "quotes" {{ 7 * 7 }}'
    spec = {**product.item.spec, "title": title}
    item = dataclasses.replace(product.item, spec=spec)
    text = make_page(site, [dataclasses.replace(product, item=item)])
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)" in text and "{{ 7 * 7 }}" in text


def test_page_without_private_runs_has_no_ranking(site: Site) -> None:
    public = [cell for cell in site.arguments["cells"] if not cell["private"]]
    products = [site.items[0]]
    assert 'name="task"' not in make_page(site, products, cells=public)
    assert 'name="task"' in make_page(site, products)


@pytest.mark.parametrize(
    ("path", "damage", "message"),
    [
        ("figures/dp-fedmeta/figure2b.png", None, "is missing: run the workflow"),
        ("tables/dp-fedmeta/table2.csv", None, "is missing: run the workflow"),
        ("provenance.json", b"{", "is not valid JSON"),
    ],
)
def test_damaged_file_is_refused_in_one_line(
    site: Site, tmp_path: Path, path: str, damage: bytes | None, message: str
) -> None:
    for name in ("tables", "figures"):
        shutil.copytree(site.folder / name, tmp_path / name)
    shutil.copy(site.folder / "provenance.json", tmp_path)
    (tmp_path / path).unlink()
    if damage is not None:
        (tmp_path / path).write_bytes(damage)
    with pytest.raises(BenchError, match=f"{Path(path).name} {message}") as caught:
        make_page(site, site.items, folder=tmp_path)
    assert "\n" not in str(caught.value)


def relative_luminance(colour: str) -> float:
    """Return the relative luminance of an sRGB colour, as WCAG 2 defines it."""
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in channels
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_has_the_contrast_of_wcag_aa_in_light_and_dark() -> None:
    style = (TEMPLATES / "page.css").read_text(encoding="utf-8")
    blocks = re.findall(r":root \{(.*?)\}", style, re.S)
    themes = [dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", block)) for block in blocks]
    assert relative_luminance(themes[0]["ground"]) > 0.9
    assert relative_luminance(themes[1]["ground"]) < 0.02
    texts = ("text", "quiet", "link")
    for theme, ground, name in itertools.product(themes, ("ground", "card"), texts):
        luminances = [
            relative_luminance(theme[name]),
            relative_luminance(theme[ground]),
        ]
        contrast = (max(luminances) + 0.05) / (min(luminances) + 0.05)
        assert contrast >= 4.5, (name, ground)
