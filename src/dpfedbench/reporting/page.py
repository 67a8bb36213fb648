"""The page of results: one HTML file with every table and figure, an index of the runs,
and their provenance.

The file stands by itself: style, script and figures are in it, and its policy lets a
browser load nothing from outside it. Only the files of the runs, the CSV files and the
original images are links, relative to the page, so that a results folder can be moved
as a whole; mailed alone, the page shows everything but what those links lead to.
"""

import base64
import dataclasses
import io
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jinja2
import pandas as pd
from PIL import Image, UnidentifiedImageError

from dpfedbench.errors import BenchError
from dpfedbench.files import check_readable, read_json
from dpfedbench.reporting import answer, frontier, privacy, tables, values
from dpfedbench.reporting.audited import Audits
from dpfedbench.reporting.described import Item, Private
from dpfedbench.reporting.page_runs import (
    Facet,
    Links,
    Runs,
    anchor_of,
    groups_of,
    link_to,
    run_anchor,
    trained_with,
)
from dpfedbench.reporting.results import read_cell
from dpfedbench.reporting.values import NOTHING, Listing, Shown

# The columns of a table of a paper: what a row is of first, then what was found.
ORDER = (
    "method",
    "data",
    "task",
    "accuracy",
    "time",
    "ε claimed",
    "ε that holds",
    "published",
    "δ",
    "unit",
)
# A column that says one thing in every row is said once, above the table; these stay
# where they are looked for.
NEVER_LIFTED = re.compile(r"method|accuracy|ε|published|seeds|status")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Made:
    """A table (CSV) or figure (PNG) that the page shows, and the command that makes it.

    `path` is below the page's folder; `item` is what the configuration says of it, None
    for what is of all papers.
    """

    path: str
    command: str
    item: Item | None

    @property
    def anchor(self) -> str:
        """E.g. "tables-dp-fedmeta-table2": an id for the page."""
        return anchor_of(self.path)

    @property
    def is_table(self) -> bool:
        """Whether it is a table."""
        return self.path.startswith("tables/")


class Row(NamedTuple):
    """A row of a table; `anchor` is the place of its runs on the page, "" where it has
    none.
    """

    fields: Sequence[Shown]
    facets: Sequence[Facet]
    anchor: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """A table as the page shows it; `said_once` are the columns that are the same in
    each row.
    """

    made: Made
    title: str
    headings: Sequence[str]
    rows: Sequence[Row]
    leading: bool
    said_once: Sequence[str]
    notes: Sequence[str]
    links: Links

    def numeric(self, column: int) -> bool:
        """Whether a column holds numbers, which are right-aligned; up to half may be
        words such as "not printed".
        """
        keys = [
            row.fields[column].key
            for row in self.rows
            if row.fields[column].key is not None
        ]
        return bool(keys) and 2 * sum(isinstance(key, float) for key in keys) >= len(
            keys
        )


class Figure(NamedTuple):
    """A figure as the page shows it: `source` is the image itself, as a data URI;
    without facets no filter hides it.
    """

    made: Made
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
    items: Sequence[Made],
    *,
    private: Sequence[Private],
    results: str | Path,
    folder: str | Path,
    published: str | Path,
    papers: Mapping[str, Mapping[str, str]],
    datasets: Sequence[Mapping[str, str]],
    made: str,
    provenance: str | Path | None = None,
) -> str:
    """The page's HTML.

    Args:
        items: every table and figure.
        private: the private configurations, for the answer and the table of privacy
            where these are among the items, and for what their audits say wherever an ε
            is shown.
        results: the results folder, which holds the runs.
        folder: where the page will lie, with tables/ and figures/ beside it.
        published: the published numbers.
        papers: for each paper's name, its `title` and `source`.
        datasets: the rows of `data.DATASETS_TABLE`.
        made: when the page was made, for people.
        provenance: what made the results; None for provenance.json in the folder.

    Raises:
        BenchError: a file that the page shows is missing or damaged.
    """
    results, folder = Path(results), Path(folder)
    groups = groups_of([item.item for item in items if item.item is not None])
    audits = Audits(private, results)
    runs = [
        Runs(
            group,
            audits.marked(group.folder, read_cell(results, group.cell.folders)),
            folder,
        )
        for group in groups
    ]
    facets = {entry.group.folder: entry.facets for entry in runs}
    needed = any(item.is_table and item.item is None for item in items)
    rows = privacy.read(private, results, published) if needed else []
    titles = {name: paper["title"] for name, paper in papers.items()}

    def listed(item: Made) -> tuple[Listing, list[tuple[Facet, str]]]:
        check_readable(folder / item.path)
        if item.item is not None:
            return _of_paper(
                item.item, tables.read(item.item, results, published, audits)
            )
        return _of_all(folder / item.path, rows, titles)

    shown_tables = [
        _table(item, *listed(item), folder) for item in items if item.is_table
    ]
    shown_figures = [
        _figure(item, folder, facets) for item in items if not item.is_table
    ]
    leading_tables = [table for table in shown_tables if table.leading] or shown_tables[
        :1
    ]
    leading_figures = [figure for figure in shown_figures if figure.leading]
    every = [facet for entry in runs for facet in entry.facets]
    every += [facet for figure in shown_figures for facet in figure.facets]
    every += [
        facet for table in shown_tables for row in table.rows for facet in row.facets
    ]
    methods = {group.cell.method: group.cell.title for group in groups}
    choices = {
        name: {
            value: known.get(value, value)
            for value in sorted({getattr(facet, name) for facet in every} - {""})
        }
        for name, known in {"paper": titles, "dataset": {}, "method": methods}.items()
    }
    given = read_json(provenance or folder / "provenance.json")
    used = sorted({group.cell.dataset for group in groups})
    return str(
        _environment()
        .get_template("page.html")
        .render(
            leading_tables=leading_tables,
            leading_figures=leading_figures,
            tables=[table for table in shown_tables if table not in leading_tables],
            figures=[
                figure for figure in shown_figures if figure not in leading_figures
            ],
            runs=runs,
            count=sum(len(entry.seeds) for entry in runs),
            seconds=sum(entry.seconds for entry in runs if entry.seconds is not None),
            untimed=sum(len(entry.seeds) for entry in runs if entry.seconds is None),
            papers={
                name: papers[name]
                for name in dict.fromkeys(facet.paper for facet in every)
                if name in papers
            },
            choices=choices,
            used=used,
            datasets=[row for row in datasets if row["name"] in used],
            provenance=given,
            stand_ins=_stand_ins(given.get("stand_ins", {})),
            trained_with=list(
                dict.fromkeys(
                    trained_with(run) for entry in runs for run in entry.result.runs
                )
            ),
            notices=list(
                dict.fromkeys(text for entry in runs for text in entry.result.notices)
            ),
            made=made,
            values=values,
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


# Tables: what each says, and by what each of its rows is filtered, with the place of
# the row's runs


def _of_all(
    path: Path, rows: Sequence[privacy.Row], titles: Mapping[str, str]
) -> tuple[Listing, list[tuple[Facet, str]]]:
    """A table of all papers: the answer, the frontier, or that of privacy."""
    if path.stem == "frontier":
        drawn = pd.read_csv(path)
        ends = [end if math.isfinite(end) else None for end in drawn["epsilon_holds"]]
        return frontier.listing(drawn), [
            (Facet("", *of), "")
            for of in zip(drawn["dataset"], drawn["method"], ends, strict=True)
        ]
    if path.stem == "answer":
        answers = answer.read(rows)
        places = [
            (each.paper, each.published, run_anchor(each.published.entry.group))
            for each in answers
        ]
    else:
        places = [(row.entry.paper, row, "") for row in rows]
    listing = (
        answer.listing(answers, titles)
        if path.stem == "answer"
        else privacy.for_page(rows)
    )
    return listing, [
        (Facet.of(paper, row.entry, row.holds.epsilon_high), anchor)
        for paper, row, anchor in places
    ]


def _of_paper(
    item: Item, table: tables.Table
) -> tuple[Listing, list[tuple[Facet, str]]]:
    """A table of a paper, with its columns in the page's order: what a table has beside
    the usual comes last.
    """

    def place(field: tuple[str, Shown]) -> int:
        name = field[0].split(",")[0]
        return ORDER.index(name) if name in ORDER else len(ORDER)

    rows = [dict(sorted(table.fields(row).items(), key=place)) for row in table.rows]
    return Listing(title=item.spec["title"], rows=rows, notes=tables.notes(table)), [
        (
            Facet.of(item.paper, row.cell, row.result.holds.epsilon_high),
            run_anchor(row.cell.group),
        )
        for row in table.rows
    ]


def _table(
    made: Made, listing: Listing, places: Sequence[tuple[Facet, str]], folder: Path
) -> Table:
    kept, said_once = _lifted(listing.rows)
    return Table(
        made=made,
        title=listing.title,
        headings=kept,
        rows=[
            Row([row[name] for name in kept], [facet], anchor)
            for row, (facet, anchor) in zip(listing.rows, places, strict=True)
        ],
        leading=made.item is None
        and Path(made.path).stem == "answer"
        and bool(listing.rows),
        said_once=said_once,
        notes=listing.notes,
        links=_links(made, folder, {".csv": "CSV", ".md": "Markdown"}),
    )


def _lifted(rows: Sequence[Mapping[str, Shown]]) -> tuple[list[str], list[str]]:
    """The columns to show; and, as sentences, those that say the same in every row."""
    kept, said_once = [], []
    for name in rows[0] if rows else ():
        texts = {row[name].text for row in rows}
        told = texts - {NOTHING}
        if len(rows) == 1 or len(told) > 1 or NEVER_LIFTED.search(name):
            kept.append(name)
        elif told:
            said_once.append(
                f"{name}:"
                f" {told.pop()}{' where there is one' if NOTHING in texts else ''}"
            )
    return kept, said_once


# Figures


def _figure(made: Made, folder: Path, facets: Mapping[str, Sequence[Facet]]) -> Figure:
    path, item = folder / made.path, made.item
    source, width, height = _embedded(path)
    where = (
        " The numbers drawn are in the CSV file beside it."
        if path.with_suffix(".csv").exists()
        else ""
    )
    title, alt, caption, own = (
        privacy.TITLE,
        f"{privacy.TITLE}.{where}",
        "",
        list[Facet](),
    )
    if item is not None:
        title, trained = (
            item.spec["title"],
            [cell for cell in item.cells if cell.folders],
        )
        lines = "; ".join(dict.fromkeys(cell.label for cell in item.cells))
        alt = (
            f"Chart of {item.spec['y']['label']} over {item.spec['x']['label']}:"
            f" {lines}.{where}"
        )
        caption, own = (
            "Accounting alone: nothing is trained.",
            [Facet(item.paper, "", item.cells[0].method, None)],
        )
        if trained:
            data = ", ".join(
                dict.fromkeys(f"{cell.dataset} {cell.tested}" for cell in trained)
            )
            caption = (
                f"Measured on {data},"
                f" {values.plural(max(len(cell.folders) for cell in trained), 'seed')}."
            )
            groups = dict.fromkeys(cell.group for cell in trained)
            own = [
                facet
                for group in groups
                for facet in facets[group]
                if facet.paper == item.paper
            ]
    links = _links(made, folder, {".png": "PNG", ".csv": "CSV"})
    leading = item is not None and item.kind == "frontier"
    return Figure(made, title, source, width, height, alt, caption, links, own, leading)


def _embedded(path: Path) -> tuple[str, int, int]:
    """An image as a data URI, with width and height: the same pixels as lossless WebP,
    half as large as PNG.

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
    return (
        f"data:image/webp;base64,{base64.b64encode(packed.getvalue()).decode()}",
        width,
        height,
    )


def _stand_ins(replaced: Mapping[str, str]) -> str:
    """E.g. "digits stands in for mnist and fashion-mnist"; "" where nothing was
    replaced.
    """
    originals: dict[str, list[str]] = {}
    for original, measured in replaced.items():
        originals.setdefault(measured, []).append(original)
    return "; ".join(
        f"{measured} stands in for {' and '.join(names)}"
        for measured, names in originals.items()
    )


def _links(made: Made, folder: Path, kinds: Mapping[str, str]) -> list[tuple[str, str]]:
    """A file and those beside it, by their kinds."""
    files = [
        ((folder / made.path).with_suffix(suffix), kind)
        for suffix, kind in kinds.items()
    ]
    return [(kind, link_to(path, folder)) for path, kind in files if path.exists()]
