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
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from PIL import Image

from dpfedbench.files import read_json
from dpfedbench.results import answer, privacy, tables
from dpfedbench.results.audits import count_audits, mark_rows
from dpfedbench.results.configurations import read_configurations
from dpfedbench.results.formats import Listing
from dpfedbench.results.items import Item
from dpfedbench.results.summary import collect_runs_of, each_row
from dpfedbench.results.table_columns import listing_of

GENERAL = {
    "answer": answer.TITLE,
    "privacy": privacy.TITLE,
    "frontier": "Frontiers",
}
"""Titles of the tables and figures of all papers."""

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
    def anchor(self) -> str:
        """Its place on the page, e.g. "tables-dp-fedmeta-table2"."""
        return re.sub(r"[^\w-]+", "-", str(Path(self.path).with_suffix("")))

    @property
    def title(self) -> str:
        """The title for readers."""
        if self.item is None:
            return GENERAL[Path(self.path).stem]
        return self.item.title

    @property
    def is_of_all(self) -> bool:
        """Whether it is a table or figure of all papers."""
        return len(Path(self.path).parts) == 2

    @property
    def is_answer(self) -> bool:
        """Whether it is the table of answers, of all papers or of one."""
        return Path(self.path).name == "answer.csv"

    @property
    def csv(self) -> str:
        """The file of its numbers."""
        return Path(self.path).with_suffix(".csv").as_posix()


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
    provenance: str | Path,
    missing: Sequence[str] = (),
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
        provenance: the file of what made the results.
        missing: titles of the papers that are still being made, in the order in which
            they will be finished.

    Raises:
        BenchError: a file that the page shows is missing or damaged.
    """
    folder = Path(folder)
    items = [product.item for product in products if product.item is not None]
    of_items = [cell for item in items for cell in item.cells if cell["run"]]
    runs = collect_runs_of(results, [*cells, *of_items])
    configurations = read_configurations(cells, results, runs)
    audit_count = count_audits(configurations)
    rows = mark_rows(configurations, audit_count)
    rows["is_first"] = ~rows.duplicated("folder")
    shown_tables = []
    answers = pd.DataFrame()
    if any(product.is_answer for product in products):
        answers = answer.read(privacy.explain(configurations, results, published))
    for product in products:
        if product.is_answer:
            listing = _answer(product, answers, papers)
            # That a single paper claims nothing needs no table.
            if listing.rows or product.is_of_all:
                shown_tables.append((product, listing))
        elif product.item is not None and product.item.kind == "table":
            table = tables.read(
                product.item,
                results,
                published,
                audit_count=audit_count,
                runs=runs,
            )
            shown_tables.append((product, tables.listing(table)))
    shown_figures = [
        _figure(product, folder)
        for product in products
        if product.path.startswith("figures/")
    ]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(
        tables=shown_tables,
        figures=shown_figures,
        configurations=_configurations(rows),
        rows=list(each_row(rows)),
        runs_folder=os.path.relpath(Path(results, "runs"), folder),
        seconds=rows["seconds"].sum(),
        papers=papers,
        datasets=datasets,
        provenance=read_json(provenance),
        made=made,
        missing=missing,
        products=products,
    )


def _answer(
    product: Product, answers: pd.DataFrame, papers: Mapping[str, Mapping[str, str]]
) -> Listing:
    """Return the table of answers of all papers, or of the one in the product's path."""
    paper = Path(product.path).parent.name
    if paper in papers:
        answers = answers[answers["of_paper"] == paper]
    titles = {name: paper["title"] for name, paper in papers.items()}
    return answer.listing(answers, titles)


def _configurations(rows: pd.DataFrame) -> Listing:
    """Return the table of all configurations, from which the page's script also ranks
    the methods.
    """
    is_named = (rows["variant"] == rows["title"]) | (rows["variant"] == rows["method"])
    rows = rows.assign(
        variant_note=rows["variant"].mask(is_named, ""),
        data=rows["dataset"] + ", " + rows["tested"],
    )
    return listing_of(
        rows,
        "configurations",
        title="All configurations",
        notes=RUNS_NOTES,
    )


def _figure(product: Product, folder: Path) -> dict[str, Any]:
    """Return what the template needs of a figure."""
    source, width, height = _embedded(folder / product.path)
    words = product.title
    if product.item is not None:
        spec = product.item.spec
        axes = f"{spec['y']['label']} over {spec['x']['label']}"
        words = f"Chart of {axes}: {'; '.join(product.item.unique('label'))}."
    return {
        "product": product,
        "source": source,
        "width": width,
        "height": height,
        "alt": words,
    }


def _embedded(path: Path) -> tuple[str, int, int]:
    """Return an image as a data URI, with width and height: the same pixels as lossless
    WebP, half as large as PNG.

    `method` and `quality` are how hard the encoder tries: its defaults take twice as
    long for a seventh less.
    """
    packed = io.BytesIO()
    with Image.open(path) as image:
        image.convert("RGB").save(
            packed,
            "WEBP",
            lossless=True,
            method=1,
            quality=20,
        )
        width, height = image.size
    data = base64.b64encode(packed.getvalue()).decode()
    return f"data:image/webp;base64,{data}", width, height
