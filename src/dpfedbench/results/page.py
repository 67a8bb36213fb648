"""The page of results: one HTML file with the ranking of methods at a given ε, every
table and figure, all configurations, and their provenance.

The file stands by itself: style, script and figures are in it, and its policy lets a
browser load nothing from outside it. Only the folders of the runs, the CSV files and
the original images are links, relative to the page, so that a results folder can be
moved as a whole.
"""

import base64
import dataclasses
import io
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from PIL import Image

from dpfedbench.files import check_readable, read_json
from dpfedbench.results import answer, privacy, tables
from dpfedbench.results.audits import count_audits, mark_rows
from dpfedbench.results.configurations import read_configurations
from dpfedbench.results.formats import (
    NOTHING,
    Formatted,
    Listing,
    format_duration,
    plural,
)
from dpfedbench.results.items import Item
from dpfedbench.results.summary import collect_runs_of, each_row
from dpfedbench.results.table_columns import listing_of

GENERAL = {"answer": answer.TITLE, "privacy": privacy.TITLE, "frontier": "Frontiers"}
"""Titles of the tables and figures of all papers."""

ALWAYS_COLUMNS = re.compile(r"method|accuracy|ε|published|seeds|status")
"""Headings that stay columns; another column that is the same in every row becomes a
sentence above the table.
"""

RUNS_NOTES = (
    "A row is one configuration with all its seeds. A configuration that protects two"
    " units has a row for each.",
    "Claimed ε: the paper's accounting, applied to the run made here. Proven ε: what"
    " is proved for the sampler that ran and for the observer; ∞: no finite ε. Audited"
    " ε: a"
    " lower bound at 95 % confidence.",
    "Times of private runs with secret cohorts are not told, since they would reveal"
    " how many clients took part. Cohort: clients a round, or records a lot, as"
    " configured or expected.",
)


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
    def name(self) -> str:
        """The name of its file, such as `table2`."""
        return Path(self.path).stem

    @property
    def anchor(self) -> str:
        """Its place on the page, e.g. "tables-dp-fedmeta-table2"."""
        return re.sub(r"[^\w-]+", "-", str(Path(self.path).with_suffix("")))

    @property
    def is_leading(self) -> bool:
        """Whether it stands at the head of the page, as a frontier does."""
        return self.item is not None and self.item.kind == "frontier"

    @property
    def title(self) -> str:
        """The title for readers."""
        return GENERAL[self.name] if self.item is None else self.item.title

    def links(self, folder: Path) -> list[tuple[str, str]]:
        """Return its files in several formats, as links from the page's folder."""
        files = [
            Path(self.path).with_suffix(f".{kind}") for kind in ("csv", "md", "png")
        ]
        return [
            (file.suffix[1:].upper(), file.as_posix())
            for file in files
            if (folder / file).exists()
        ]


def make(
    products: Sequence[Product],
    *,
    cells: Sequence[Mapping[str, Any]],
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
        cells: all cells of the page's papers, as `items.Item.cells`.
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
    folder = Path(folder)
    for product in products:
        check_readable(folder / product.path)
    items = [product.item for product in products if product.item is not None]
    of_items = [cell for item in items for cell in item.cells if cell["run"]]
    runs = collect_runs_of(results, [*cells, *of_items])
    rows = read_configurations(cells, results, runs)
    private = privacy.explain(rows, results, published)
    audit_count = count_audits(rows)
    rows = mark_rows(rows, audit_count)
    rows["papers"] = [
        list(dict.fromkeys(cell[0] for cell in shown_in))
        for shown_in in rows["shown_in"]
    ]
    rows["is_first"] = ~rows.duplicated("folder")
    rows["data"] = rows["dataset"] + ", " + rows["tested"]
    shown_tables = []
    for product in products:
        if product.item is not None and product.path.startswith("tables/"):
            table = tables.read(
                product.item,
                results,
                published,
                marked=True,
                audit_count=audit_count,
                runs=runs,
            )
            of_paper = [[product.item.paper]] * len(table.rows)
            of_table = table.rows.assign(papers=pd.Series(of_paper, dtype=object))
            shown_tables.append(_table(tables.listing(table), of_table, product))
        elif product.path == "tables/answer.csv":
            answers = answer.read(private)
            answers["papers"] = [[paper] for paper in answers["of_paper"]]
            titles = {name: paper["title"] for name, paper in papers.items()}
            shown_tables.append(
                _table(answer.listing(answers, titles), answers, product)
            )
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(
        tables=shown_tables,
        figures=[
            _figure(product, folder, rows)
            for product in products
            if product.path.startswith("figures/")
        ],
        runs=_runs_table(rows, os.path.relpath(Path(results, "runs"), folder)),
        rows=list(each_row(rows)),
        seconds=format_duration(rows["seconds"].sum()),
        tasks=_tasks(rows),
        papers=papers,
        datasets=datasets,
        provenance=read_json(provenance or folder / "provenance.json"),
        made=made,
        products=products,
        folder=folder,
    )


def _runs_table(rows: pd.DataFrame, runs_folder: str) -> dict[str, Any]:
    """Return the table of all configurations, from which the page's script also ranks
    the methods.
    """
    is_named = (rows["variant"] == rows["title"]) | (rows["variant"] == rows["method"])
    rows = rows.assign(variant_note=rows["variant"].mask(is_named, ""))
    rows["items"] = [_items(row) for row in each_row(rows)]
    rows["seed_links"] = rows["runs"].map(
        lambda runs: [
            (run.rpartition("/seed")[2], f"{runs_folder}/{run}") for run in runs
        ]
    )
    title = "All configurations"
    return _table(
        listing_of(rows, "configurations", title=title, notes=RUNS_NOTES), rows
    )


def _items(row: Any) -> str:
    """Return the tables and figures that show a row, by paper."""
    items = dict.fromkeys(cell[:2] for cell in row.shown_in)
    texts = [
        f"{paper}: {', '.join(item for of_paper, item in items if of_paper == paper)}"
        for paper in row.papers
    ]
    return "; ".join(texts)


def _table(
    listing: Listing, rows: pd.DataFrame, product: Product | None = None
) -> dict[str, Any]:
    """Return what the template needs of a table.

    Args:
        listing: the table as text.
        rows: the frame that its rows are of; `papers` are those that the page's filter
            shows a row for.
        product: its file; None for the table of all configurations, which keeps all
            columns.
    """
    fields = pd.DataFrame(listing.rows)
    constants = []
    if product is not None and len(fields) > 1:
        for name in map(str, fields):
            texts = {field.text for field in fields[name]}
            if len(texts - {NOTHING}) > 1 or ALWAYS_COLUMNS.search(name):
                continue
            where = " where there is one" if NOTHING in texts else ""
            constants += [f"{name}: {text}{where}" for text in texts - {NOTHING}]
            fields = fields.drop(columns=name)
    return {
        "product": product,
        "title": listing.title,
        "headings": list(fields),
        "numeric": [_is_numeric(fields[name]) for name in fields],
        "rows": [
            {"fields": list(of_row), "source": row, "facets": _facets(row.papers, row)}
            for of_row, row in zip(
                fields.itertuples(index=False), each_row(rows), strict=True
            )
        ],
        "constants": constants,
        "notes": listing.notes,
    }


def _is_numeric(column: Iterable[Formatted]) -> bool:
    """Whether a column holds numbers, which are right-aligned; up to half may be words
    such as "not printed".
    """
    keys = [field.key for field in column if field.key is not None]
    numbers = [key for key in keys if isinstance(key, float)]
    return bool(keys) and 2 * len(numbers) >= len(keys)


def _facets(papers: Iterable[str], row: Any) -> list[Any]:
    """Return what a row is filtered by: [paper, data set, method, proven ε or None]."""
    epsilon = (
        row.epsilon_proven_high if math.isfinite(row.epsilon_proven_high) else None
    )
    return [[paper, row.dataset, row.method, epsilon] for paper in papers]


def _tasks(rows: pd.DataFrame) -> dict[str, list[str]]:
    """Return the data sets and tasks that some private configuration was tested on,
    those with most of them first, each with its protected units.
    """
    private = rows[rows["unit"] != ""]
    return {
        str(task): sorted(private.loc[private["data"] == task, "unit"].unique())
        for task in private["data"].value_counts().index
    }


def _figure(product: Product, folder: Path, rows: pd.DataFrame) -> dict[str, Any]:
    """Return what the template needs of a figure; without facets no filter hides it."""
    source, width, height = _embedded(folder / product.path)
    figure = {"source": source, "width": width, "height": height, "product": product}
    item = product.item
    if item is None:
        return {**figure, "alt": product.title, "caption": "", "facets": []}
    folders = {str(Path(cell["run"] or "").parent) for cell in item.cells}
    axes = f"{item.spec['y']['label']} over {item.spec['x']['label']}"
    return {
        **figure,
        "alt": f"Chart of {axes}: {'; '.join(item.unique('label'))}.",
        "caption": _caption(item),
        "facets": [
            facet
            for row in each_row(rows[rows["folder"].isin(folders)])
            for facet in _facets([item.paper], row)
        ],
    }


def _caption(item: Item) -> str:
    if item.kind == "account":
        return "Accounting alone: nothing is trained."
    cells = pd.DataFrame(list(item.cells))
    data = (cells["dataset"] + " " + cells["tested"]).unique()
    seeds = cells["cell"].value_counts().max()
    return f"Measured on {', '.join(data)}, {plural(seeds, 'seed')}."


def _embedded(path: Path) -> tuple[str, int, int]:
    """Return an image as a data URI, with width and height: the same pixels as lossless
    WebP, half as large as PNG.

    `method` and `quality` are how hard the encoder tries: its defaults take twice as
    long for a seventh less.
    """
    packed = io.BytesIO()
    with Image.open(path) as image:
        image.convert("RGB").save(packed, "WEBP", lossless=True, method=1, quality=20)
        width, height = image.size
    data = base64.b64encode(packed.getvalue()).decode()
    return f"data:image/webp;base64,{data}", width, height
