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
    " holds for the sampler that ran and for the observer; ∞: no finite ε. Audited ε: a"
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
    results, folder = Path(results), Path(folder)
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
            shown_tables.append(_paper_table(product, table, folder))
        elif product.path == "tables/answer.csv":
            shown_tables.append(_answer_table(product, private, papers, folder))
    figures = [
        _figure(product, folder, rows)
        for product in products
        if product.path.startswith("figures/")
    ]
    provenance_facts = read_json(provenance or folder / "provenance.json")
    used = sorted(set(rows["dataset"])) if len(rows) else []
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(
        tables=shown_tables,
        figures=figures,
        runs=_runs_table(rows, results, folder),
        run_count=sum(row.seeds for row in each_row(rows.drop_duplicates("folder"))),
        seconds=format_duration(rows.get("seconds", pd.Series(dtype=float)).sum()),
        choices=_choices(rows),
        filters=_filters(rows, papers),
        papers=papers,
        used=used,
        datasets=[row for row in datasets if row["name"] in used],
        provenance=provenance_facts,
        stand_ins=_stand_ins(provenance_facts.get("stand_ins", {})),
        notices=list(
            dict.fromkeys(text for row in each_row(rows) for text in row.notices)
        ),
        made=made,
        links=[
            (product.title, product.links(folder))
            for product in products
            if product.item is None
        ],
    )


# Tables


def _paper_table(product: Product, table: tables.Table, folder: Path) -> dict[str, Any]:
    """Return a table of a paper."""
    return _table(
        tables.listing(table),
        anchor=product.anchor,
        facets=[
            _facets([product.path.split("/")[1]], row) for row in each_row(table.rows)
        ],
        targets=[_run_anchor(row) for row in each_row(table.rows)],
        command=product.command,
        links=product.links(folder),
    )


def _answer_table(
    product: Product,
    private: pd.DataFrame,
    papers: Mapping[str, Mapping[str, str]],
    folder: Path,
) -> dict[str, Any]:
    """Return the table of what papers claim and what is proven."""
    answers = answer.choose(private)
    published = [next(each_row(private.loc[[chosen.published]])) for chosen in answers]
    titles = {name: paper["title"] for name, paper in papers.items()}
    return _table(
        answer.listing(private, answers, titles),
        anchor=product.anchor,
        facets=[
            _facets([chosen.paper], row)
            for chosen, row in zip(answers, published, strict=True)
        ],
        targets=[_run_anchor(row) for row in published],
        command=product.command,
        links=product.links(folder),
        is_leading=True,
    )


def _runs_table(rows: pd.DataFrame, results: Path, folder: Path) -> dict[str, Any]:
    """Return the table of all configurations, from which the page's script also ranks
    the methods.
    """
    listed = []
    for row in each_row(rows):
        places = [(Path(run).name.removeprefix("seed"), run) for run in row.runs]
        seed_links = [
            (seed, Path(os.path.relpath(results / "runs" / run, folder)).as_posix())
            for seed, run in places
        ]
        shown_in: dict[str, list[str]] = {}
        for paper, item, *_ in dict.fromkeys(cell[:2] for cell in row.shown_in):
            shown_in.setdefault(paper, []).append(item)
        names = [f"{paper}: {', '.join(items)}" for paper, items in shown_in.items()]
        listed.append(
            {
                "method": format_text(row.title, _variant(row)),
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
                "shown in": format_text("; ".join(names)),
            }
        )
    return _table(
        Listing(title="All configurations", rows=listed, notes=RUNS_NOTES),
        anchor="all-configurations",
        facets=[
            _facets(dict.fromkeys(shown[0] for shown in row.shown_in), row)
            for row in each_row(rows)
        ],
        anchors=[
            _run_anchor(row) if is_first else ""
            for row, is_first in zip(
                each_row(rows), ~rows.duplicated("folder"), strict=True
            )
        ],
        groups=[
            (
                row.group,
                row.epsilon_proven_high if row.proven_status == "proved" else "",
            )
            for row in each_row(rows)
        ],
    )


def _table(
    listing: Listing,
    *,
    anchor: str,
    facets: Sequence[list[Any]],
    targets: Sequence[str] = (),
    anchors: Sequence[str] = (),
    groups: Sequence[tuple[str, float | str] | None] = (),
    command: str = "",
    links: Sequence[tuple[str, str]] = (),
    is_leading: bool = False,
) -> dict[str, Any]:
    """Return what the template needs of a table.

    Args:
        listing: its rows.
        anchor: its place on the page.
        facets: of each row, what the page can be filtered by.
        targets: of each row, the place that its first cell links to.
        anchors: of each row, its own place on the page.
        groups: of each row, its group and proven ε, for the ranking; its table keeps
            all columns.
        command: what makes the table.
        links: its files.
        is_leading: whether it stands at the top of the page.
    """
    headings, constants = _divide_columns(
        listing.rows, keep_all=bool(groups) or len(listing.rows) == 1
    )
    count = len(listing.rows)
    fields = [[row[name] for name in headings] for row in listing.rows]
    rows = [
        {
            "fields": of_row,
            "facets": facet,
            "target": target,
            "id": own,
            "group": group,
        }
        for of_row, facet, target, own, group in zip(
            fields,
            facets,
            targets or [""] * count,
            anchors or [""] * count,
            groups or [None] * count,
            strict=True,
        )
    ]
    return {
        "anchor": anchor,
        "title": listing.title,
        "headings": headings,
        "numeric": [_is_numeric(column) for column in zip(*fields, strict=True)],
        "rows": rows,
        "constants": constants,
        "notes": listing.notes,
        "command": command,
        "links": links,
        "is_leading": is_leading,
    }


def _divide_columns(
    rows: Sequence[Mapping[str, Formatted]], *, keep_all: bool
) -> tuple[list[str], list[str]]:
    """Return the columns to show; and, as sentences, those that are the same in every
    row, unless all are kept.
    """
    headings, constants = [], []
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


# Filters and the ranking


def _facets(papers: Iterable[str], row: Any) -> list[Any]:
    """Return what a row is filtered by: [paper, data set, method, proven ε or None]."""
    epsilon = _finite(row.epsilon_proven_high)
    return [[paper, row.dataset, row.method, epsilon] for paper in papers]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _filters(
    rows: pd.DataFrame, papers: Mapping[str, Mapping[str, str]]
) -> dict[str, dict[str, str]]:
    """Return the choices of each filter, with their titles."""
    if not len(rows):
        return {"paper": {}, "dataset": {}, "method": {}}
    titles = rows.sort_values("method").drop_duplicates("method")
    return {
        "paper": {name: paper["title"] for name, paper in papers.items()},
        "dataset": {name: name for name in sorted(set(rows["dataset"]))},
        "method": dict(zip(titles["method"], titles["title"], strict=True)),
    }


def _choices(rows: pd.DataFrame) -> list[tuple[str, list[str]]]:
    """Return the data sets and tasks that some private configuration was tested on,
    those with most of them first, each with its protected units.
    """
    if not len(rows):
        return []
    private = rows[rows["unit"] != ""]
    tasks = private["dataset"] + ", " + private["tested"]
    return [
        (task, sorted(set(private.loc[tasks == task, "unit"])))
        for task in tasks.value_counts().index
    ]


def _run_anchor(row: Any) -> str:
    return f"run-{Path(row.folder).name}"


def _variant(row: Any) -> str:
    """Return what a table calls the configuration, where that says more than the
    method's name.
    """
    is_plain = row.variant.casefold() in (row.title.casefold(), row.method)
    return "" if is_plain else str(row.variant)


# Figures


def _figure(product: Product, folder: Path, rows: pd.DataFrame) -> dict[str, Any]:
    source, width, height = _embedded(folder / product.path)
    item = product.item
    alt, caption, facets = product.title, "", list[list[Any]]()
    if item is not None:
        axes = f"{item.spec['y']['label']} over {item.spec['x']['label']}"
        alt = f"Chart of {axes}: {'; '.join(item.unique('label'))}."
        caption = _caption(item)
        folders = {str(Path(cell["run"] or "").parent) for cell in item.cells}
        shown = rows[rows["folder"].isin(folders)]
        facets = [
            facet for row in each_row(shown) for facet in _facets([item.paper], row)
        ]
    return {
        "product": product,
        "links": product.links(folder),
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
