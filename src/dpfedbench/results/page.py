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

from dpfedbench.data import read_table
from dpfedbench.files import read_json
from dpfedbench.results import answer, privacy, tables
from dpfedbench.results.audits import count_audits, mark_rows
from dpfedbench.results.configurations import read_configurations
from dpfedbench.results.figure_style import NOTES
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
    "Lost: percentage points below the most accurate configuration without privacy on"
    " the same data and task.",
    "Costs: rounds times clients of a round, as configured or expected, and the seconds"
    " of a training on the machine below. Times of private runs with secret cohorts are"
    " not told, since they would reveal how many clients took part.",
)
PERSONAL_NOTE = (
    "Own models: mean over clients of the accuracy of each client's own model on"
    " examples of its own, and of the worst tenth of the clients. No server sees these"
    " numbers, and no ε covers them."
)
EPSILONS = (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20)
"""Values of ε that the ranking offers."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Product:
    """A table (CSV) or figure (PNG) that the page shows, and the command that makes it.

    `path` is below the folder of tables and figures; `item` is its description, None for a table or
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
    page_folder: str | Path,
    published: str | Path,
    papers: Mapping[str, Mapping[str, str]],
    made: str,
    provenance: str | Path,
    missing: Sequence[str] = (),
) -> str:
    """Return the page's HTML.

    Args:
        products: every table and figure.
        cells: all cells of the page's papers, as `items.Item.cells`.
        results: the results folder, which holds the runs.
        folder: the folder with tables/ and figures/ in it.
        page_folder: the folder of the page, from which its links lead.
        published: the published numbers.
        papers: for each paper's name, its `title` and `source`.
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
        runs_folder=_link(page_folder, Path(results, "runs")),
        products_folder=_link(page_folder, folder),
        seconds=rows["seconds"].sum(),
        papers=papers,
        datasets=read_table().values(),
        provenance=read_json(provenance),
        epsilons=EPSILONS,
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


def _link(start: str | Path, folder: str | Path) -> str:
    """Return the relative link from one folder to another."""
    return Path(os.path.relpath(folder, start)).as_posix()


def _configurations(rows: pd.DataFrame) -> Listing:
    """Return the table of all configurations, from which the page's script also ranks
    the methods.
    """
    is_named = (rows["variant"] == rows["title"]) | (rows["variant"] == rows["method"])
    names = rows["variant"].mask(is_named, "")
    has_both = (names != "") & (rows["difference"] != "")
    rows = rows.assign(
        variant_note=names + has_both.map({True: ", ", False: ""}) + rows["difference"],
        data=rows["dataset"] + ", " + rows["tested"],
        costs_note=[_costs_note(row) for row in each_row(rows)],
        personal_note=[
            f"worst tenth {value:.1f}" if pd.notna(value) else ""
            for value in rows["personal_worst_tenth"]
        ],
    )
    options = []
    notes = [*RUNS_NOTES]
    if rows["personal_accuracy"].notna().any():
        options.append("personal")
        notes.append(PERSONAL_NOTE)
    return listing_of(
        rows,
        "configurations",
        *options,
        title="All configurations",
        notes=notes,
    )


def _costs_note(row: Any) -> str:
    """Return the lot and the seconds of a row's training, as far as it may tell them."""
    texts = []
    if row.lot > 0:
        texts.append(f"lots of {row.lot:,.0f}")
    if row.seconds > 0:
        texts.append(f"{row.seconds:,.3g} s")
    return "; ".join(texts)


def _figure(product: Product, folder: Path) -> dict[str, Any]:
    """Return what the template needs of a figure."""
    source, width, height, notes = _embedded(folder / product.path)
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
        "notes": notes,
    }


def _embedded(path: Path) -> tuple[str, int, int, str]:
    """Return an image as a data URI, with width, height and its notes: the same pixels
    as lossless WebP, half as large as PNG.

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
        notes = str(image.info.get(NOTES, ""))
    data = base64.b64encode(packed.getvalue()).decode()
    return f"data:image/webp;base64,{data}", width, height, notes
