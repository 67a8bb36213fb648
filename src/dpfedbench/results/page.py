"""The page of results: one HTML file with every table and figure, an index of the runs,
and their provenance.

The file stands by itself: style, script and figures are in it, and its policy lets a
browser load nothing from outside it. Only the files of the runs, the CSV files and the
original images are links, relative to the page, so that a results folder can be moved
as a whole.
"""

import base64
import dataclasses
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import pandas as pd
from PIL import Image, UnidentifiedImageError

from dpfedbench.errors import BenchError
from dpfedbench.files import check_readable, read_json
from dpfedbench.results import answer, formats, frontier, privacy, tables
from dpfedbench.results.audits import count_audits, mark_rows
from dpfedbench.results.formats import NOTHING, Formatted, Listing, plural
from dpfedbench.results.items import Item
from dpfedbench.results.page_runs import (
    Entry,
    Facet,
    Links,
    anchor_of,
    link_to,
    read_configurations,
    read_entry,
    run_anchor,
)
from dpfedbench.results.runs_table import collect_runs
from dpfedbench.results.summary import each_row, row_interval

COLUMN_ORDER = (
    *("method", "data", "task", "accuracy", "time", "ε claimed", "ε that holds"),
    *("published", "δ", "unit"),
)
"""The columns of a table of a paper; others come last."""
ALWAYS_COLUMNS = re.compile(r"method|accuracy|ε|published|seeds|status")
"""Headings that stay columns; another column that is the same in every row becomes a
sentence above the table.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Product:
    """A table (CSV) or figure (PNG) that the page shows, and the command that makes it.

    `path` is below the page's folder; `item` is its description, None for a table or
    figure of all papers.
    """

    path: str
    command: str
    item: Item | None

    @property
    def anchor(self) -> str:
        """Its place on the page, e.g. "tables-dp-fedmeta-table2"."""
        return anchor_of(self.path)

    @property
    def is_table(self) -> bool:
        """Whether it is a table."""
        return self.path.startswith("tables/")


class Row(NamedTuple):
    """A row of a table; `anchor` is the place of its runs on the page, or ""."""

    fields: Sequence[Formatted]
    facets: Sequence[Facet]
    anchor: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """A table as the page shows it; `constants` are the columns that are the same in
    every row, as sentences.
    """

    product: Product
    title: str
    headings: Sequence[str]
    rows: Sequence[Row]
    leading: bool
    constants: Sequence[str]
    notes: Sequence[str]
    links: Links

    def numeric(self, column: int) -> bool:
        """Whether a column holds numbers, which are right-aligned; up to half may be
        words such as "not printed".
        """
        keys = [row.fields[column].key for row in self.rows]
        known = [key for key in keys if key is not None]
        numbers = [key for key in known if isinstance(key, float)]
        return bool(known) and 2 * len(numbers) >= len(known)


class Figure(NamedTuple):
    """A figure as the page shows it: `source` is the image itself, as a data URI;
    without facets no filter hides it.
    """

    product: Product
    title: str
    source: str
    width: int
    height: int
    alt: str
    caption: str
    links: Links
    facets: Sequence[Facet]
    leading: bool


def make(
    products: Sequence[Product],
    *,
    private: Sequence[Mapping[str, Any]],
    results: str | Path,
    folder: str | Path,
    published: str | Path,
    papers: Mapping[str, Mapping[str, str]],
    datasets: Sequence[Mapping[str, str]],
    made: str,
    provenance: str | Path | None = None,
) -> str:
    """Return the page's HTML.

    Args:
        products: every table and figure.
        private: the private cells, for the tables of privacy and of answers.
        results: the results folder, which holds the runs.
        folder: the folder of the page, with tables/ and figures/ in it.
        published: the published numbers.
        papers: for each paper's name, its `title` and `source`.
        datasets: the rows of `data.DATASETS_TABLE`.
        made: when the page was made, for readers.
        provenance: what made the results; None for provenance.json in the folder.

    Raises:
        BenchError: a file that the page shows is missing or damaged.
    """
    results, folder = Path(results), Path(folder)
    items = [product.item for product in products if product.item is not None]
    rows = read_configurations(items, results)
    audit_count = count_audits(rows)
    rows = mark_rows(rows, audit_count)
    names = [run for row in each_row(rows) for run in row.runs]
    runs = collect_runs(results, names).set_index("run")
    entries = [read_entry(row, runs, results, folder) for row in each_row(rows)]
    titles = {name: paper["title"] for name, paper in papers.items()}
    private_rows = pd.DataFrame()
    if any(product.is_table and product.item is None for product in products):
        private_rows = privacy.read(private, results, published)

    shown_tables = []
    shown_figures = []
    for product in products:
        check_readable(folder / product.path)
        if not product.is_table:
            shown_figures.append(_figure(product, folder, rows))
        elif product.item is None:
            shown_tables.append(_general_table(product, folder, private_rows, titles))
        else:
            table = tables.read(
                product.item, results, published, marked=True, audit_count=audit_count
            )
            shown_tables.append(_paper_table(product, table, folder))
    leading = [table for table in shown_tables if table.leading] or shown_tables[:1]
    leading_figures = [figure for figure in shown_figures if figure.leading]
    facets = [facet for entry in entries for facet in entry.facets]
    facets += [facet for figure in shown_figures for facet in figure.facets]
    facets += [
        facet for table in shown_tables for row in table.rows for facet in row.facets
    ]
    made_with = read_json(provenance or folder / "provenance.json")
    datasets_used = sorted(set(rows["dataset"])) if len(rows) else []
    return str(
        _environment()
        .get_template("page.html")
        .render(
            leading_tables=leading,
            leading_figures=leading_figures,
            tables=[table for table in shown_tables if table not in leading],
            figures=[
                figure for figure in shown_figures if figure not in leading_figures
            ],
            runs=entries,
            count=len(names),
            seconds=sum(entry.seconds or 0 for entry in entries),
            untimed=sum(len(entry.seeds) for entry in entries if entry.seconds is None),
            papers={
                name: papers[name]
                for name in dict.fromkeys(facet.paper for facet in facets)
                if name in papers
            },
            choices=_choices(facets, titles, entries),
            used=datasets_used,
            datasets=[row for row in datasets if row["name"] in datasets_used],
            provenance=made_with,
            stand_ins=_stand_ins(made_with.get("stand_ins", {})),
            trained_with=list(dict.fromkeys(_machine(row) for row in each_row(runs))),
            notices=list(
                dict.fromkeys(text for entry in entries for text in entry.row.notices)
            ),
            made=made,
            formats=formats,
            row_interval=row_interval,
        )
    )


def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _choices(
    facets: Sequence[Facet], titles: Mapping[str, str], entries: Sequence[Entry]
) -> dict[str, dict[str, str]]:
    """Return the choices of each filter, with their titles."""
    methods = {entry.row.method: entry.row.title for entry in entries}
    choices = {}
    for name, known in {"paper": titles, "dataset": {}, "method": methods}.items():
        values = sorted({getattr(facet, name) for facet in facets} - {""})
        choices[name] = {value: known.get(value, value) for value in values}
    return choices


def _machine(row: Any) -> str:
    """Return where and with what a run was trained, as it wrote itself.

    Args:
        row: of the run, in the frame of runs.
    """
    device = "unknown" if pd.isna(row.device) else row.device
    machine = "unknown" if pd.isna(row.machine) else row.machine
    return f"{device}, {machine}: {row.versions}"


# Tables


def _general_table(
    product: Product, folder: Path, private: pd.DataFrame, titles: Mapping[str, str]
) -> Table:
    """Return a table of all papers: the answer, the frontier, or that of privacy."""
    name = Path(product.path).stem
    if name == "frontier":
        drawn = pd.read_csv(folder / product.path)
        ends = drawn["epsilon_holds"]
        row_links = [
            (Facet("", *of), "")
            for of in zip(
                drawn["dataset"],
                drawn["method"],
                [end if math.isfinite(end) else None for end in ends],
                strict=True,
            )
        ]
        return _table(product, frontier.listing(drawn), row_links, folder)
    if name == "answer":
        answers = answer.choose(private)
        listing = answer.listing(private, answers, titles)
        row_links = []
        for chosen in answers:
            row = next(each_row(private.loc[[chosen.published]]))
            row_links.append((Facet.of(row, chosen.paper), run_anchor(row.folder)))
        return _table(product, listing, row_links, folder)
    row_links = [(Facet.of(row), "") for row in each_row(private)]
    return _table(product, privacy.page_listing(private), row_links, folder)


def _paper_table(product: Product, table: tables.Table, folder: Path) -> Table:
    """Return a table of a paper, with its columns in the page's order."""

    def place(heading: str) -> int:
        name = heading.split(",")[0]
        if name in COLUMN_ORDER:
            return COLUMN_ORDER.index(name)
        return len(COLUMN_ORDER)

    listing = tables.listing(table)
    rows = [
        {name: fields[name] for name in sorted(fields, key=place)}
        for fields in listing.rows
    ]
    row_links = [
        (Facet.of(row, product.path.split("/")[1]), run_anchor(row.folder))
        for row in each_row(table.rows)
    ]
    return _table(product, dataclasses.replace(listing, rows=rows), row_links, folder)


def _table(
    product: Product,
    listing: Listing,
    row_links: Iterable[tuple[Facet, str]],
    folder: Path,
) -> Table:
    headings, constants = _divide_columns(listing.rows)
    rows = [
        Row([fields[name] for name in headings], [facet], anchor)
        for fields, (facet, anchor) in zip(listing.rows, row_links, strict=True)
    ]
    is_answer = product.item is None and Path(product.path).stem == "answer"
    return Table(
        product=product,
        title=listing.title,
        headings=headings,
        rows=rows,
        leading=is_answer and bool(rows),
        constants=constants,
        notes=listing.notes,
        links=_links(product, folder, {".csv": "CSV", ".md": "Markdown"}),
    )


def _divide_columns(
    rows: Sequence[Mapping[str, Formatted]],
) -> tuple[list[str], list[str]]:
    """Return the columns to show; and, as sentences, those that are the same in every
    row.
    """
    headings, constants = [], []
    for name in rows[0] if rows else ():
        texts = {row[name].text for row in rows}
        known = texts - {NOTHING}
        if len(rows) == 1 or len(known) > 1 or ALWAYS_COLUMNS.search(name):
            headings.append(name)
        elif known:
            where = " where there is one" if NOTHING in texts else ""
            constants.append(f"{name}: {known.pop()}{where}")
    return headings, constants


# Figures


def _figure(product: Product, folder: Path, rows: pd.DataFrame) -> Figure:
    path = folder / product.path
    source, width, height = _embedded(path)
    where = ""
    if path.with_suffix(".csv").exists():
        where = " The numbers drawn are in the CSV file beside it."
    title = privacy.TITLE
    alt = f"{title}.{where}"
    caption = ""
    facets: list[Facet] = []
    item = product.item
    if item is not None:
        title = item.title
        axes = f"{item.spec['y']['label']} over {item.spec['x']['label']}"
        alt = f"Chart of {axes}: {'; '.join(item.unique('label'))}.{where}"
        caption = _caption(item)
        facets = _facets(item, rows)
    return Figure(
        product=product,
        title=title,
        source=source,
        width=width,
        height=height,
        alt=alt,
        caption=caption,
        links=_links(product, folder, {".png": "PNG", ".csv": "CSV"}),
        facets=facets,
        leading=item is not None and item.kind == "frontier",
    )


def _caption(item: Item) -> str:
    if item.kind == "account":
        return "Accounting alone: nothing is trained."
    data = dict.fromkeys(f"{cell['dataset']} {cell['tested']}" for cell in item.cells)
    numbers = [cell["cell"] for cell in item.cells]
    seeds = max(numbers.count(number) for number in set(numbers))
    return f"Measured on {', '.join(data)}, {plural(seeds, 'seed')}."


def _facets(item: Item, rows: pd.DataFrame) -> list[Facet]:
    """Return what a figure is filtered by: the facets of the runs that it shows."""
    if item.kind == "account":
        return [Facet(item.paper, "", item.cells[0]["method"], None)]
    folders = {str(Path(cell["run"]).parent) for cell in item.cells}
    shown = rows[rows["folder"].isin(folders)]
    return [Facet.of(row, item.paper) for row in each_row(shown)]


def _embedded(path: Path) -> tuple[str, int, int]:
    """Return an image as a data URI, with width and height: the same pixels as lossless
    WebP, half as large as PNG.

    `method` and `quality` are how hard the encoder tries: its defaults take twice as
    long for a seventh less.
    """
    packed = io.BytesIO()
    try:
        with Image.open(path) as image:
            image.convert("RGB").save(
                packed, "WEBP", lossless=True, method=1, quality=20
            )
            width, height = image.size
    except FileNotFoundError as error:
        raise BenchError(
            f"{path} is missing: run the workflow again to make it"
        ) from error
    except (UnidentifiedImageError, OSError) as error:
        raise BenchError(
            f"{path} is no whole image ({error}): delete it and run the workflow again"
        ) from error
    data = base64.b64encode(packed.getvalue()).decode()
    return f"data:image/webp;base64,{data}", width, height


def _stand_ins(replaced: Mapping[str, str]) -> str:
    """Return e.g. "digits stands in for mnist and fashion-mnist"; "" where nothing was
    replaced.
    """
    originals: dict[str, list[str]] = {}
    for original, measured in replaced.items():
        originals.setdefault(measured, []).append(original)
    return "; ".join(
        f"{measured} stands in for {' and '.join(names)}"
        for measured, names in originals.items()
    )


def _links(product: Product, folder: Path, kinds: Mapping[str, str]) -> Links:
    """Return a file and those beside it, by their kinds."""
    path = folder / product.path
    files = [(kind, path.with_suffix(suffix)) for suffix, kind in kinds.items()]
    return [(kind, link_to(file, folder)) for kind, file in files if file.exists()]
