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
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from PIL import Image, UnidentifiedImageError

from dpfedbench.errors import BenchError
from dpfedbench.files import check_readable, read_json
from dpfedbench.results import answer, privacy, tables
from dpfedbench.results.audits import count_audits, mark_rows
from dpfedbench.results.configurations import read_configurations
from dpfedbench.results.formats import (
    NOTHING,
    Formatted,
    Listing,
    format_accuracy,
    format_duration,
    format_epsilon,
    format_number,
    format_text,
    plural,
)
from dpfedbench.results.items import Item
from dpfedbench.results.summary import collect_runs_of, each_row, row_interval

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
    def title(self) -> str:
        """The title for readers."""
        return GENERAL[self.name] if self.item is None else self.item.title

    def links(self, folder: Path) -> list[tuple[str, str]]:
        """Return its files in several formats, as links from the page's folder."""
        path = Path(self.path)
        files = {
            suffix[1:].upper(): path.with_suffix(suffix)
            for suffix in (".csv", ".md", ".png")
        }
        return [
            (kind, file.as_posix())
            for kind, file in files.items()
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
    results = Path(results)
    folder = Path(folder)
    for product in products:
        check_readable(folder / product.path)
    shown = [product.item for product in products if product.item is not None]
    of_items = [cell for item in shown for cell in item.cells if cell["run"]]
    runs = collect_runs_of(results, [*cells, *of_items])
    rows = read_configurations(cells, results, runs)
    private = privacy.explain(rows, results, published)
    audit_count = count_audits(rows)
    rows = mark_rows(rows, audit_count)
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
            listing = tables.listing(table)
            shown_tables.append(_table(listing, table.rows, of_paper, product))
        elif product.path == "tables/answer.csv":
            answers = answer.choose(private)
            titles = {name: paper["title"] for name, paper in papers.items()}
            listing = answer.listing(private, answers, titles)
            chosen = private.loc[[choice.published for choice in answers]]
            of_answers = [[choice.paper] for choice in answers]
            shown_tables.append(_table(listing, chosen, of_answers, product))
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
        runs=_runs_table(rows, os.path.relpath(results / "runs", folder)),
        rows=list(each_row(rows)),
        seconds=format_duration(
            sum(row.seconds for row in each_row(rows) if row.seconds > 0)
        ),
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
    listed = []
    for row in each_row(rows):
        variant = "" if row.variant in (row.title, row.method) else row.variant
        seed_links = [
            (
                Path(run).name.removeprefix("seed"),
                f"{Path(runs_folder).as_posix()}/{run}",
            )
            for run in row.runs
        ]
        listed.append(
            {
                "method": format_text(row.title, variant),
                "data": format_text(f"{row.dataset}, {row.tested}"),
                "unit": format_text(row.unit),
                "accuracy, %": format_accuracy(row_interval(row)),
                "claimed ε": format_epsilon(row, "claimed"),
                "proven ε": format_epsilon(row, "proven"),
                "audited ε": format_number(row.epsilon_audited),
                "δ": format_number(row.delta, "g"),
                "observer": format_text(row.observer),
                "cohort": format_number(row.cohort, ",.0f"),
                "rounds": format_number(row.rounds, ",.0f"),
                "training": format_duration(row.seconds),
                "seeds": Formatted(text="", links=seed_links, key=float(row.seeds)),
                "shown in": format_text(_items(row)),
            }
        )
    papers = [
        list(dict.fromkeys(cell[0] for cell in row.shown_in)) for row in each_row(rows)
    ]
    if len(rows):
        rows = rows.assign(is_first=~rows.duplicated("folder"))
    listing = Listing(title="All configurations", rows=listed, notes=RUNS_NOTES)
    return _table(listing, rows, papers)


def _items(row: Any) -> str:
    """Return the tables and figures that show a row, by paper."""
    items: dict[str, list[str]] = {}
    for paper, item in dict.fromkeys(cell[:2] for cell in row.shown_in):
        items.setdefault(paper, []).append(item)
    return "; ".join(f"{paper}: {', '.join(names)}" for paper, names in items.items())


def _table(
    listing: Listing,
    rows: pd.DataFrame,
    papers: Sequence[Sequence[str]],
    product: Product | None = None,
) -> dict[str, Any]:
    """Return what the template needs of a table.

    Args:
        listing: the table as text.
        rows: the frame that its rows are of.
        papers: of each row, the papers that the page's filter shows it for.
        product: its file; None for the table of all configurations, which keeps all
            columns.
    """
    headings, constants = _divide_columns(
        listing.rows, keep_all=product is None or len(listing.rows) == 1
    )
    fields = [[row[name] for name in headings] for row in listing.rows]
    return {
        "product": product,
        "title": listing.title,
        "headings": headings,
        "numeric": [_is_numeric(column) for column in zip(*fields, strict=True)],
        "rows": [
            {"fields": of_row, "source": row, "facets": _facets(of_papers, row)}
            for of_row, row, of_papers in zip(
                fields, each_row(rows), papers, strict=True
            )
        ],
        "constants": constants,
        "notes": listing.notes,
    }


def _divide_columns(
    rows: Sequence[Mapping[str, Formatted]], *, keep_all: bool
) -> tuple[list[str], list[str]]:
    """Return the columns to show; and, as sentences, those that are the same in every
    row, unless all are kept.
    """
    headings = []
    constants = []
    for name in rows[0] if rows else ():
        texts = {row[name].text for row in rows}
        known = texts - {NOTHING}
        if keep_all or len(known) > 1 or ALWAYS_COLUMNS.search(name):
            headings.append(name)
        elif known:
            where = " where there is one" if NOTHING in texts else ""
            constants.append(f"{name}: {known.pop()}{where}")
    return headings, constants


def _is_numeric(column: Iterable[Formatted]) -> bool:
    """Whether a column holds numbers, which are right-aligned; up to half may be words
    such as "not printed".
    """
    known = [field.key for field in column if field.key is not None]
    numbers = [key for key in known if isinstance(key, float)]
    return bool(known) and 2 * len(numbers) >= len(known)


def _facets(papers: Iterable[str], row: Any) -> list[Any]:
    """Return what a row is filtered by: [paper, data set, method, proven ε or None]."""
    epsilon = row.epsilon_proven_high
    finite = epsilon if math.isfinite(epsilon) else None
    return [[paper, row.dataset, row.method, finite] for paper in papers]


def _tasks(rows: pd.DataFrame) -> dict[str, list[str]]:
    """Return the data sets and tasks that some private configuration was tested on,
    those with most of them first, each with its protected units.
    """
    private = [row for row in each_row(rows) if row.unit]
    tasks = Counter(f"{row.dataset}, {row.tested}" for row in private)
    return {
        task: sorted(
            {row.unit for row in private if f"{row.dataset}, {row.tested}" == task}
        )
        for task, _ in tasks.most_common()
    }


def _figure(product: Product, folder: Path, rows: pd.DataFrame) -> dict[str, Any]:
    """Return what the template needs of a figure; without facets no filter hides it."""
    source, width, height = _embedded(folder / product.path)
    item = product.item
    alt = product.title
    caption = ""
    facets = list[list[Any]]()
    if item is not None:
        axes = f"{item.spec['y']['label']} over {item.spec['x']['label']}"
        alt = f"Chart of {axes}: {'; '.join(item.unique('label'))}."
        caption = _caption(item)
        folders = {str(Path(cell["run"] or "").parent) for cell in item.cells}
        for row in each_row(rows):
            if row.folder in folders:
                facets += _facets([item.paper], row)
    return {
        "product": product,
        "source": source,
        "width": width,
        "height": height,
        "alt": alt,
        "caption": caption,
        "facets": facets,
        "is_leading": item is not None and item.kind == "frontier",
    }


def _caption(item: Item) -> str:
    if item.kind == "account":
        return "Accounting alone: nothing is trained."
    data = dict.fromkeys(f"{cell['dataset']} {cell['tested']}" for cell in item.cells)
    numbers = [cell["cell"] for cell in item.cells]
    seeds = max(numbers.count(number) for number in set(numbers))
    return f"Measured on {', '.join(data)}, {plural(seeds, 'seed')}."


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
    except (UnidentifiedImageError, OSError) as error:
        raise BenchError(
            f"{path} is no whole image ({error}): delete it and run the workflow again"
        ) from error
    data = base64.b64encode(packed.getvalue()).decode()
    return f"data:image/webp;base64,{data}", width, height
