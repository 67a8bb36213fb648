"""The page of results: one HTML file with every table and figure, an index of the runs, and what made them.

The file stands by itself: style, script and figures are in it, and its policy lets a browser load nothing from
outside it. Only the files of the runs, the CSV files and the original images are links, relative to the page, so
that a results folder can be moved as a whole; mailed alone, the page shows everything but what those links lead to.
"""

import base64
import dataclasses
import io
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup
from PIL import Image, UnidentifiedImageError

from dpfedbench.errors import BenchError
from dpfedbench.files import read_json
from dpfedbench.reporting import history_svg, tables
from dpfedbench.reporting.results import CellResult, read_cell

LEADING = "privacy"  # the item that the page opens with, where there is one of this name
TITLES = {LEADING: "Three ε: as claimed, that holds, audited"}
NOTHING = "–"
# What comes first in a row: which it is, then what was found.
IDENTIFYING = ("method", "data", "dataset", "task")
FOUND = ("accuracy", "value", "ε", "published", "status")
# A column that says one thing in every row is said once, above the table; these stay where they are looked for.
NEVER_LIFTED = re.compile(r"method|variant|accuracy|ε|published|seeds|status")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facet:
    """What the page can be filtered by: `epsilon` is the upper end of the ε that holds, None where none is claimed."""

    paper: str
    dataset: str
    method: str
    epsilon: float | None

    @property
    def plain(self) -> list[Any]:
        """As JSON, which knows no infinity: no finite ε is None, claimed or not."""
        finite = self.epsilon is not None and math.isfinite(self.epsilon)
        return [self.paper, self.dataset, self.method, self.epsilon if finite else None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Field:
    """A cell of a table: a value, what is said of it in small print, and what it is sorted by (None goes last)."""

    text: str
    note: str = ""
    key: float | str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a table; `anchor` is the place of its runs on the page, "" where it has none."""

    fields: Sequence[Field]
    facets: Sequence[Facet]
    anchor: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """A table as the page shows it; `said_once` are the columns that are the same in each row."""

    anchor: str
    title: str
    paper: str
    headings: Sequence[str]
    rows: Sequence[Row]
    said_once: Sequence[str]
    notes: Sequence[str]
    command: str
    links: Sequence[tuple[str, str]]

    def numeric(self, column: int) -> bool:
        """Whether a column holds numbers, which stand right-aligned."""
        keys = [row.fields[column].key for row in self.rows if row.fields[column].key is not None]
        return bool(keys) and all(isinstance(key, float) for key in keys)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure as the page shows it: `source` is the image itself, as a data URI; without facets no filter hides it."""

    anchor: str
    title: str
    paper: str
    source: str
    width: int
    height: int
    alt: str
    caption: str
    command: str
    links: Sequence[tuple[str, str]]
    facets: Sequence[Facet]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeedRun:
    """One seed of a configuration: its facts and its files, as links from the page."""

    seed: int
    accuracy: str
    rounds: str
    seconds: float
    spark: Markup
    links: Sequence[tuple[str, str]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Runs:
    """The runs of one configuration, a seed each."""

    anchor: str
    name: str
    folder: str
    dataset: str
    task: str
    seeds: Sequence[SeedRun]
    accuracy: str
    claimed: str
    holds: str
    notices: Sequence[str]
    configuration: str
    spark: Markup
    plots: Sequence[tuple[str, Markup]]
    shown_in: Sequence[tuple[str, str]]
    facets: Sequence[Facet]

    @property
    def seconds(self) -> float:
        """Of training, all seeds together."""
        return sum(run.seconds for run in self.seeds)


def make(
    items: Sequence[Mapping[str, Any]],
    *,
    results: str | Path,
    folder: str | Path,
    published: str | Path,
    papers: Mapping[str, Mapping[str, str]],
    datasets: Sequence[Mapping[str, str]],
    made: str,
) -> str:
    """The page's HTML.

    Args:
        items: every table (CSV) and figure (PNG): `path` below `folder`, the `command` that makes it, and its
            `description` (`Item.describe`), None for one that the configuration does not describe.
        results: the results folder, which holds the runs.
        folder: where the page will lie, with tables/, figures/ and provenance.json beside it.
        published: the published numbers.
        papers: for each paper's name, its `title` and `source`.
        datasets: the rows of config/datasets.tsv.
        made: when the page was made, for people.

    Raises:
        BenchError: a file that the page shows is missing or damaged.
    """
    described = [item["description"] for item in items if item["description"] is not None]
    results, folder = Path(results), Path(folder)
    groups = _groups(described)
    cells = {group: read_cell(results, cell["folders"]) for group, (cell, _) in groups.items()}
    facets = {
        group: [Facet(paper=paper, dataset=cell["dataset"], method=cell["method"], epsilon=_epsilon(cells[group]))
                for paper in dict.fromkeys(description["paper"] for description in shown)]
        for group, (cell, shown) in groups.items()
    }  # fmt: skip
    methods = {cell["method"]: cell["title"] for cell, _ in groups.values()}
    shown_tables = [_table(item, results, folder, published, methods) for item in items if _is(item, "tables")]
    shown_figures = [_figure(item, folder, facets) for item in items if _is(item, "figures")]
    runs = [
        _runs(group, cell, shown, cells[group], facets[group], results, folder)
        for group, (cell, shown) in groups.items()
    ]
    leading_tables, other_tables = _leading(shown_tables)
    leading_figures, other_figures = _leading(shown_figures)
    if not leading_tables and not leading_figures:
        leading_tables, other_tables = other_tables[:1], other_tables[1:]
    every = [facet for row in _filtered(runs, shown_figures, shown_tables) for facet in row.facets]
    given = read_json(folder / "provenance.json")
    used = sorted({cell["dataset"] for cell, _ in groups.values()})
    return str(
        _environment().get_template("page.html").render(
            leading_tables=leading_tables,
            leading_figures=leading_figures,
            tables=other_tables,
            figures=other_figures,
            runs=runs,
            count=sum(len(group.seeds) for group in runs),
            seconds=sum(group.seconds for group in runs),
            papers={name: papers[name] for name in dict.fromkeys(facet.paper for facet in every) if name in papers},
            choices={
                "paper": {name: papers.get(name, {}).get("title", name) for name in _values(every, "paper")},
                "dataset": {name: name for name in _values(every, "dataset")},
                "method": {name: methods.get(name, name) for name in _values(every, "method")},
            },
            used=used,
            datasets=[row for row in datasets if row["name"] in used],
            provenance=given,
            stand_ins=_stand_ins(given.get("stand_ins", {})),
            trained_with=_trained_with(results, groups),
            notices=list(dict.fromkeys(text for cell in cells.values() for text in cell.notices)),
            made=made,
        )
    )  # fmt: skip


def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _is(item: Mapping[str, Any], group: str) -> bool:
    return Path(item["path"]).parts[0] == group


def _filtered(runs: Sequence[Runs], figures: Sequence[Figure], shown: Sequence[Table]) -> Iterator[Runs | Figure | Row]:
    """Everything that has facets."""
    yield from runs
    yield from figures
    for table in shown:
        yield from table.rows


def _values(facets: Sequence[Facet], name: str) -> list[str]:
    return sorted({getattr(facet, name) for facet in facets if getattr(facet, name)})


def _leading(items: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Those that the page opens with, and the others."""
    first = [item for item in items if item.anchor.rpartition("-")[2] == LEADING]
    return first, [item for item in items if item not in first]


def _group(cell: Mapping[str, Any]) -> str:
    """The folder that the seeds of a cell share."""
    return str(Path(cell["folders"][0]).parent)


def _anchor_of(group: str) -> str:
    return f"run-{Path(group).name}"


def _anchor(path: str) -> str:
    """E.g. "tables-dp-fedmeta-table2": an id for the page, which is also what LEADING is looked for in."""
    return re.sub(r"[^\w-]+", "-", str(Path(path).with_suffix("")))


def _groups(
    described: Sequence[Mapping[str, Any]],
) -> dict[str, tuple[Mapping[str, Any], list[Mapping[str, Any]]]]:
    """The configurations: for each folder a cell with all seeds that any item shows, and the items that do."""
    found: dict[str, tuple[dict[str, Any], list[Mapping[str, Any]]]] = {}
    for description in described:
        for cell in description["cells"]:
            if not cell["folders"]:
                continue  # computed, and nothing trained
            kept, shown = found.setdefault(_group(cell), (dict(cell) | {"labels": []}, []))
            kept["folders"] = sorted({*kept["folders"], *cell["folders"]}, key=lambda name: (len(name), name))
            kept["labels"] = list(dict.fromkeys([*kept["labels"], cell["variant"] or cell["label"]]))
            if description not in shown:
                shown.append(description)
    return dict(found)


def _epsilon(cell: CellResult) -> float | None:
    return None if math.isnan(cell.holds.high) else cell.holds.high


# Tables


def _table(
    item: Mapping[str, Any], results: Path, folder: Path, published: str | Path, methods: Mapping[str, str]
) -> Table:
    path, description = folder / item["path"], item["description"]
    if not path.exists():
        raise BenchError(f"{path} is missing: run the workflow again to make it")
    beside = path.with_suffix(".md")
    if description is None or description["kind"] != "table":
        headings, rows, title = _tidy_rows(path, methods)
        notes = _notes_of(beside)
    else:
        read = tables.read_rows(description, results)
        frame = tables.tidy(description, read, published)
        headings, title = tables.headings(description), description["spec"]["title"]
        notes = tables.notes(description, read, frame)
        rows = [
            Row(
                fields=[_field(text, split=name != "method") for name, text in zip(headings, texts, strict=True)],
                facets=[
                    Facet(
                        paper=description["paper"],
                        dataset=cell["dataset"],
                        method=cell["method"],
                        epsilon=_epsilon(result),
                    )
                ],
                anchor=_anchor_of(_group(cell)),
            )
            for (cell, result), texts in zip(read, tables.texts(description, read, frame), strict=True)
        ]
    headings, rows, said_once = _arranged(headings, rows)
    return Table(
        anchor=_anchor(item["path"]),
        title=title,
        paper=_paper(item),
        headings=headings,
        rows=rows,
        said_once=said_once,
        notes=notes,
        command=item["command"],
        links=[(_kind(file), _link(file, folder)) for file in (path, beside) if file.exists()],
    )


def _paper(item: Mapping[str, Any]) -> str:
    """The folder between tables/ and the file; "" for an item of all papers."""
    return "/".join(Path(item["path"]).parts[1:-1])


def _tidy_rows(path: Path, methods: Mapping[str, str]) -> tuple[list[str], list[Row], str]:
    """Headings, rows and title of any CSV file.

    It is filtered by its columns `dataset`, `method`, `paper` and `epsilon_holds`; a `variant` is small print to its
    method, and two columns `NAME_low` and `NAME_high` are one range.
    """
    try:
        frame = pd.read_csv(path, keep_default_na=False, na_values=[""])
    except (OSError, ValueError) as error:
        raise BenchError(f"{path} cannot be read ({error}): delete it and run the workflow again") from error
    names = {title: name for name, title in methods.items()}
    given_columns = [str(name) for name in frame]
    ranges = {name: f"{name.removesuffix('_low')}_high" for name in given_columns if name.endswith("_low")}
    ranges = {low: high for low, high in ranges.items() if high in given_columns}
    dropped = {"variant" if "method" in frame else None, *ranges.values()}
    columns = [name for name in given_columns if name not in dropped]
    rows = []
    for record in frame.to_dict("records"):
        holds = record.get("epsilon_holds_high", record.get("epsilon_holds"))
        given = _cell_text(record.get("method"))
        facet = Facet(
            paper=_cell_text(record.get("paper")),
            dataset=_cell_text(record.get("dataset")),
            method=names.get(given, given),
            epsilon=float(holds) if isinstance(holds, (int, float)) and not math.isnan(holds) else None,
        )
        fields = []
        for column in columns:
            text, note = _cell_text(record[column]), ""
            if column in ranges:
                text = _range_text(text, _cell_text(record[ranges[column]]))
            elif column == "method":
                text, note = methods.get(given, given), _cell_text(record.get("variant"))
            fields.append(Field(text=text or NOTHING, note=note, key=_key(text)))
        rows.append(Row(fields=fields, facets=[facet]))
    headings = [_heading(column.removesuffix("_low") if column in ranges else column) for column in columns]
    return headings, rows, TITLES.get(path.stem, path.stem.replace("-", " ").replace("_", " ").capitalize())


def _range_text(low: str, high: str) -> str:
    """Both ends where they differ, as in `tables.epsilon_text`."""
    return high if low in ("", high) else f"{low} to {high or NOTHING}"


def _heading(column: str) -> str:
    words = column.replace("_", " ").strip()
    return re.sub(r"\bdelta\b", "δ", re.sub(r"\bepsilon\b", "ε", words))


def _cell_text(value: Any) -> str:
    """A value of a CSV file for people; "" for an empty one."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return "∞" if math.isinf(value) else f"{value:.4g}"
    return "∞" if value == "inf" else str(value)  # a text where other rows of its column have one


def _notes_of(markdown: Path) -> list[str]:
    """The list items of a table's Markdown before it says what it was made by."""
    if not markdown.exists():
        return []
    said = markdown.read_text(encoding="utf-8").partition("\nMade by\n")[0]
    return [line[2:].strip() for line in said.splitlines() if line.startswith("- ")]


def _field(text: str, *, split: bool) -> Field:
    """A text of `tables.texts`: "**72.4** (68.1 to 76.7)" is a value and what is said of it."""
    plain = text.replace("**", "")
    value, note = plain, ""
    if split and (found := re.fullmatch(r"(.+?) \((.+)\)", plain)):
        value, note = found.groups()
    return Field(text=value, note=note, key=_key(value))


def _key(text: str) -> float | str | None:
    """What a value is sorted by: a range by its upper end, what is not there not at all."""
    if text in ("", NOTHING):
        return None
    try:
        return float(text.rpartition(" to ")[2].replace("∞", "inf"))
    except ValueError:
        return text


def _arranged(headings: Sequence[str], rows: Sequence[Row]) -> tuple[list[str], list[Row], list[str]]:
    """What a row is of first, then what was found; columns that are the same in every row apart, as sentences."""

    def place(column: int) -> int:
        heading = headings[column]
        if heading in IDENTIFYING:
            return IDENTIFYING.index(heading)
        kind = next((index for index, word in enumerate(FOUND) if word in heading), len(FOUND))
        return len(IDENTIFYING) + kind

    order = sorted(range(len(headings)), key=place)
    kept, said_once = [], []
    for column in order:
        values = {row.fields[column].text for row in rows}
        given = values - {NOTHING}
        if len(rows) > 1 and len(given) <= 1 and not NEVER_LIFTED.search(headings[column]):
            if given:
                where = " where there is one" if NOTHING in values else ""
                said_once.append(f"{headings[column]}: {given.pop()}{where}")
        else:
            kept.append(column)
    moved = [dataclasses.replace(row, fields=[row.fields[column] for column in kept]) for row in rows]
    return [headings[column] for column in kept], moved, said_once


# Figures


def _figure(item: Mapping[str, Any], folder: Path, facets: Mapping[str, Sequence[Facet]]) -> Figure:
    path, description = folder / item["path"], item["description"]
    source, width, height = _embedded(path)
    numbers = path.with_suffix(".csv")
    where = " The numbers drawn are in the CSV file beside it." if numbers.exists() else ""
    if description is None or "x" not in description["spec"]:
        title = TITLES.get(path.stem, path.stem.replace("-", " ").replace("_", " ").capitalize())
        alt, caption, own = f"{title}.{where}", "", []
    else:
        spec, cells = description["spec"], description["cells"]
        title, caption = spec["title"], _measured_on(cells)
        lines = "; ".join(dict.fromkeys(cell["label"] for cell in cells))
        alt = f"Chart of {spec['y']['label']} over {spec['x']['label']}: {lines}.{where}"
        own = [
            facet
            for group in dict.fromkeys(_group(cell) for cell in cells if cell["folders"])
            for facet in facets[group]
            if facet.paper == description["paper"]
        ]
        if not any(cell["folders"] for cell in cells):
            own = [Facet(paper=description["paper"], dataset="", method=cells[0]["method"], epsilon=None)]
    return Figure(
        anchor=_anchor(item["path"]),
        title=title,
        paper=_paper(item),
        source=source,
        width=width,
        height=height,
        alt=alt,
        caption=caption,
        command=item["command"],
        links=[(_kind(file), _link(file, folder)) for file in (path, numbers) if file.exists()],
        facets=own,
    )


def _measured_on(cells: Sequence[Mapping[str, Any]]) -> str:
    if not any(cell["folders"] for cell in cells):
        return "Accounting alone: nothing is trained."
    data = ", ".join(dict.fromkeys(f"{cell['dataset']} {cell['tested']}" for cell in cells))
    seeds = max(len(cell["folders"]) for cell in cells)
    return f"Measured on {data}, {seeds} seed{'' if seeds == 1 else 's'}."


def _embedded(path: Path) -> tuple[str, int, int]:
    """An image as a data URI, with width and height: the same pixels as lossless WebP, half as large as PNG.

    `method` and `quality` are how hard the encoder tries: its defaults take twice as long for a seventh less.
    """
    packed = io.BytesIO()
    try:
        with Image.open(path) as image:
            image.convert("RGB").save(packed, "WEBP", lossless=True, method=1, quality=20)
            width, height = image.size
    except FileNotFoundError as error:
        raise BenchError(f"{path} is missing: run the workflow again to make it") from error
    except (UnidentifiedImageError, OSError) as error:
        raise BenchError(f"{path} is no whole image ({error}): delete it and run the workflow again") from error
    return f"data:image/webp;base64,{base64.b64encode(packed.getvalue()).decode()}", width, height


# Runs


def _runs(
    group: str,
    cell: Mapping[str, Any],
    shown: Sequence[Mapping[str, Any]],
    result: CellResult,
    facets: Sequence[Facet],
    results: Path,
    folder: Path,
) -> Runs:
    places = [(int(Path(name).name.removeprefix("seed")), results / "runs" / name) for name in cell["folders"]]
    curves = history_svg.read_curves([(seed, place / "history.csv") for seed, place in places])
    first = next(iter(curves), None)
    seeds = []
    for index, (seed, place) in enumerate(places):
        training, metrics = read_json(place / "training.json"), read_json(place / "metrics.json")
        own = Markup("")
        if first is not None:
            own = history_svg.draw([curves[first][index]], label=history_svg.QUANTITIES[first], small=True)
        seeds.append(
            SeedRun(
                seed=seed,
                accuracy=f"{metrics['accuracy']:.1f}",
                rounds=_rounds(training),
                seconds=float(training.get("seconds", 0.0)),
                spark=own,
                links=_files(place, folder),
            )
        )
    drawn = [(history_svg.QUANTITIES[column], found) for column, found in curves.items()]
    plain = {cell["title"].casefold(), cell["method"]}
    labels = [label for label in cell["labels"] if label.casefold() not in plain]
    accuracy = tables.accuracy_text(result.accuracy)
    return Runs(
        anchor=_anchor_of(group),
        name=f"{cell['title']}: {labels[0]}" if labels else cell["title"],
        folder=f"results/runs/{group}",
        dataset=cell["dataset"],
        task=cell["task"],
        seeds=seeds,
        accuracy=accuracy,
        claimed=tables.epsilon_text(result.claimed),
        holds=tables.epsilon_text(result.holds),
        notices=result.notices,
        configuration=_configuration(places[0][1] / "config.yaml"),
        spark=history_svg.draw(drawn[0][1], label=drawn[0][0], small=True) if drawn else Markup(""),
        plots=[(label, history_svg.draw(found, label=label)) for label, found in drawn],
        shown_in=[(_place(description), _anchor(_path(description))) for description in shown],
        facets=facets,
    )


def _path(description: Mapping[str, Any]) -> str:
    group = "tables" if description["kind"] == "table" else "figures"
    return f"{group}/{description['paper']}/{description['name']}"


def _place(description: Mapping[str, Any]) -> str:
    return f"{description['paper']}, {description['name']}"


def _rounds(training: Mapping[str, Any]) -> str:
    """How many rounds, of how many where they are not all, and what stopped it."""
    run, planned = training.get("rounds_run", 0), training.get("rounds_planned")
    if planned is None or planned == run:
        return f"{run:,}"
    return f"{run:,} of {planned:,} ({training.get('stopped_by', 'stopped')})"


def _files(place: Path, folder: Path) -> list[tuple[str, str]]:
    """What lies in a run's folder for a reader: its files, then its logs."""
    if not (place / "ledger.jsonl").exists():
        raise BenchError(f"{place / 'ledger.jsonl'} is missing: run the workflow again to make it")
    files = [path for path in sorted(place.iterdir()) if path.is_file() and not path.name.startswith(".")]
    return [(path.name, _link(path, folder)) for path in [*files, *sorted((place / "logs").glob("*.log"))]]


def _configuration(path: Path) -> str:
    """The resolved configuration as text, less the seed, which is not shared."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise BenchError(f"{path} is missing: run the workflow again to make it") from error
    return "\n".join(line for line in lines if not line.startswith("seed:"))


def _trained_with(results: Path, groups: Mapping[str, tuple[Mapping[str, Any], Any]]) -> list[str]:
    """Where and with what the runs were trained, as they themselves wrote down: not always what made the page."""
    found: dict[str, None] = {}
    for cell, _ in groups.values():
        for name in cell["folders"]:
            training = read_json(results / "runs" / name / "training.json")
            given = training.get("versions", {})
            said = ", ".join(f"{library} {version}" for library, version in given.items())
            found[f"{training.get('device', 'unknown')}, {training.get('machine', 'unknown')}: {said}"] = None
    return list(found)


def _stand_ins(replaced: Mapping[str, str]) -> str:
    """E.g. "digits stands in for mnist and fashion-mnist"; "" where nothing was replaced."""
    said = []
    for measured in dict.fromkeys(replaced.values()):
        originals = [name for name, stand_in in replaced.items() if stand_in == measured]
        said.append(f"{measured} stands in for {' and '.join(originals)}")
    return "; ".join(said)


def _kind(path: Path) -> str:
    return {".md": "Markdown", ".csv": "CSV", ".png": "PNG"}[path.suffix]


def _link(path: Path, folder: Path) -> str:
    """From the page, with slashes on every system."""
    return Path(os.path.relpath(path, folder)).as_posix()
