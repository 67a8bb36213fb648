"""Write docs/fidelity.md: the papers' results and settings beside ours.

`uv run python tools/fidelity.py` writes the page; a test compares it. The page is made
from:

- `docs/fidelity/claims/PAPER.csv`: one row for each result of the paper,
- `docs/fidelity/settings.csv`: one row for each setting that a paper states,
- `docs/fidelity/runs.csv`: how our runs differ from the paper's text,
- `config/published.csv`: the printed numbers,
- the plan of the `paper` preset: the settings as they are configured today.
"""

import csv
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import yaml

from dpfedbench.config.merge import leaves
from dpfedbench.config.yaml_files import read_file
from dpfedbench.experiments.configuration import Configuration, overlaid
from dpfedbench.experiments.expand import make_plan
from dpfedbench.experiments.plan import Plan, PlannedCell, PlannedItem

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "docs" / "fidelity"
PAGE = ROOT / "docs" / "fidelity.md"
PUBLISHED = ROOT / "config" / "published.csv"

PAPERS = {
    "dp-fedmeta": ("DP-FedMeta", "dp-fedmeta"),
    "dp-maml": ("DP-MAML", "dp-maml"),
    "dp-meta-learning-gbml": ("Differentially Private Meta-Learning (GBML)", "dp-meta-learning"),
    "adap-dp-fl": ("Adap DP-FL", "adap-dp-fl"),
    "dp-fnas": ("DP-FNAS", "dp-fnas"),
}  # fmt: skip
"""Title of each paper, and its page in docs/findings/."""

STATUSES = {
    "reproduced": "our 95 % interval contains the printed number, or ours rounds to it",
    "agrees": "a fact or a condition that needs no training, and that holds",
    "implemented": "an algorithm or a rule that runs as printed; deviations are named",
    "effect found": "the paper states an effect, not a number, and our runs show it",
    "effect not found": "our runs do not show the stated effect",
    "differs, explained": "the named run or account explains the difference",
    "differs, partly explained": "the named run explains a part of the difference",
    "differs, not explained": "the cause of the difference is not known",
    "contradictory": "the paper contradicts itself here",
    "void": "a privacy claim that does not hold for the mechanism that was run",
    "not run": "planned by the `paper` preset; the explanation has the estimated cost",
    "cannot be decided here": "the explanation says what is missing",
    "a setting": "not a result; it stands among the settings below",
    "nothing to measure": "an illustration or a notation",
}
"""Every status of a result, and its meaning."""

_EXPLAINED = ("differs, explained", "differs, partly explained")
_SETS = ("x", "series", "variants", "datasets", "tasks")
"""Keys that describe all cells together. Ours must contain the stated values."""

_MEASUREMENT = re.compile(r"\b[MR]\d+\b")
_COST = re.compile(r"about [\d.,]+(?: to [\d.,]+)? (?:hours|minutes|GPU days)")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")
_INTERVAL = re.compile(r"\((-?[\d.]+) to (-?[\d.]+)\)")


@dataclass(frozen=True)
class Result:
    """One result of a paper.

    Attributes:
        location: table, figure, algorithm or section.
        claim: the claim, in words.
        published: the printed text, where no row of published.csv has it.
        published_row: the row of published.csv: item; dataset; task; method; variant;
            x; quantity, without empty values at the end. A `*` at the end stands for
            any further values.
        item: our table or figure, in the `paper` preset; empty if there is none.
        run: name in runs.csv of the runs that `ours` comes from.
        ours: our number, word for word as on `page`.
        page: page in docs/ that shows `ours`.
        measurement: rows of docs/measurements.md that `ours` comes from.
        status: one of `STATUSES`.
        explanation: deviations, causes, the run that explains a difference.
    """

    location: str
    claim: str
    published: str
    published_row: str
    item: str
    run: str
    ours: str
    page: str
    measurement: str
    status: str
    explanation: str


@dataclass(frozen=True)
class Setting:
    """One setting that a paper states, or leaves open.

    Attributes:
        paper: the experiment.
        location: section of the paper.
        setting: its name.
        text: what the paper says.
        cells: the cells of the plan that it applies to: an item, then `name=value` of
            series, dataset, ways, shots or x.
        key: key in the configuration of their runs; `test.KEY` in that of their
            meta-test, `search.KEY` in the space of a search; or seeds, x, series,
            variants, datasets or tasks. Empty if no key corresponds.
        value: the paper's value, as YAML; `>= N` for at least N. For x, series,
            variants, datasets and tasks: the values that ours must contain. Empty if
            the paper leaves the setting open.
        reason: why our value differs, or how we read an open setting.
    """

    paper: str
    location: str
    setting: str
    text: str
    cells: str
    key: str
    value: str
    reason: str


@dataclass(frozen=True)
class RunSettings:
    """Differences between the settings of our runs and the paper's text.

    Attributes:
        name: the name that results refer to.
        paper: the experiment; empty for all papers.
        runs: description of the runs.
        deviations: each difference from the text.
    """

    name: str
    paper: str
    runs: str
    deviations: str


@dataclass(frozen=True)
class PublishedNumber:
    """Row of published.csv, as text."""

    value: str
    spread: str
    source: str
    dataset: str
    quantity: str

    @property
    def text(self) -> str:
        """Printed number with its spread."""
        if ";" in self.value:
            return self.value.replace(";", ",")
        return self.value + (f" ± {self.spread}" if self.spread else "")


@dataclass(frozen=True)
class ComparedSetting:
    """Setting of a paper beside its value in the `paper` preset.

    Attributes:
        setting: the paper's setting.
        ours: the configured value, as text.
        verdict: whether the two values are equal.
    """

    setting: Setting
    ours: str
    verdict: Literal[
        "equal", "differs", "open in the text", "no key", "not in the plan"
    ]


def _read_rows(path: Path, row_type: type[Any]) -> list[Any]:
    """Read a CSV file whose columns are the fields of a dataclass."""
    names = [field.name for field in fields(row_type)]
    with path.open(encoding="utf-8", newline="") as handle:
        reader = csv.DictReader(handle)
        if reader.fieldnames != names:
            raise ValueError(f"{path.name}: the first line must be {','.join(names)}")
        rows = []
        for number, row in enumerate(reader, start=2):
            if None in row or None in row.values():
                raise ValueError(f"{path.name}, row {number}: not {len(names)} values")
            rows.append(row_type(**row))
    return rows


def read_results(paper: str) -> list[Result]:
    """Return the results of a paper, in the order of its file."""
    return _read_rows(DATA / "claims" / f"{paper}.csv", Result)


def read_settings() -> list[Setting]:
    """Return all papers' settings."""
    return _read_rows(DATA / "settings.csv", Setting)


def read_runs() -> dict[str, RunSettings]:
    """Return the settings of our runs, by name."""
    return {row.name: row for row in _read_rows(DATA / "runs.csv", RunSettings)}


def read_published() -> dict[tuple[str, str], PublishedNumber]:
    """Return the printed numbers, by paper and key (see `Result.published_row`)."""
    numbers = {}
    with PUBLISHED.open(encoding="utf-8", newline="") as handle:
        for row in csv.DictReader(handle, restval=""):
            names = ("item", "dataset", "task", "method", "variant", "x", "quantity")
            key = re.sub(r"(; )*$", "", "; ".join(row[name] for name in names))
            texts = {name: row[name] for name in PublishedNumber.__annotations__}
            numbers[row["paper"], key] = PublishedNumber(**texts)
    return numbers


def read_paper_plan() -> Plan:
    """Return the plan of the `paper` preset."""
    config = ROOT / "config"
    experiments = sorted((config / "experiments").glob("*.yaml"))
    files = [config / "config.yaml", *experiments, config / "presets" / "paper.yaml"]
    return make_plan(Configuration.read(overlaid(*map(read_file, files))))


# Settings


def _matches(cell: PlannedCell, conditions: Mapping[str, str]) -> bool:
    """Return whether a cell satisfies all conditions `name=value`."""
    run = cell.runs[0]
    known = {
        "series": cell.series,
        "dataset": cell.published_dataset,
        "ways": str(run.task.ways),
        "shots": str(run.task.shots),
        "x": "" if cell.x is None else f"{cell.x:g}",
    }
    return all(known[name] == value for name, value in conditions.items())


def _collect_values(
    item: PlannedItem, cells: Sequence[PlannedCell], key: str
) -> list[Any]:
    """Return the distinct values of some cells at a key.

    Raises:
        KeyError: a cell has no such key.
    """
    of_all_cells: dict[str, Any] = {
        "x": sorted({cell.x for cell in cells if cell.x is not None}),
        "series": list(dict.fromkeys(cell.series for cell in cells)),
        "variants": list(dict.fromkeys(cell.variant for cell in cells)),
        "datasets": sorted({cell.published_dataset for cell in cells}),
        "tasks": list(
            dict.fromkeys(
                f"{cell.published_dataset} {cell.runs[0].task_name}" for cell in cells
            )
        ),
    }
    if key in of_all_cells:
        return [of_all_cells[key]]
    if key.startswith("search."):
        space = item.spec["series"][cells[0].series]["search"]["values"]
        if key == "search.participation.cohort":
            cohorts = (entry["cohort"] for entry in space["participation"])
            return [list(dict.fromkeys(cohorts))]
        return [space[key.removeprefix("search.")]]
    values: list[Any] = []
    for cell in cells:
        if key == "seeds":
            value: Any = len(cell.runs)
        elif key.startswith("test."):
            value = leaves(cell.tests[0].plain())[key.removeprefix("test.")]
        else:
            value = leaves(cell.runs[0].plain())[key]
        if value not in values:
            values.append(value)
    return values


def _is_equal(stated: Any, ours: Any) -> bool:
    """Return whether our value equals the stated one, up to its rounding."""
    if isinstance(stated, list):
        return (
            isinstance(ours, list)
            and len(stated) == len(ours)
            and all(map(_is_equal, stated, ours))
        )
    if isinstance(stated, bool) or isinstance(ours, bool):
        return stated is ours
    if isinstance(stated, float) and isinstance(ours, int | float):
        # A printed root of two is configured with four digits.
        return math.isclose(stated, ours, rel_tol=5e-4)
    return bool(stated == ours)


def _format_value(value: Any) -> str:
    """Return a value as the page shows it."""
    if isinstance(value, list):
        return ", ".join(map(_format_value, value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "none" if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def compare(setting: Setting, plan: Plan) -> ComparedSetting:
    """Compare a setting with the plan of the `paper` preset.

    Raises:
        ValueError: the cells have no such key.
    """
    if not setting.key:
        return ComparedSetting(setting, "", "no key")
    name, *words = setting.cells.split()
    item = plan.items.get((setting.paper, name))
    if item is None:
        return ComparedSetting(setting, "", "not in the plan")
    conditions = dict(word.split("=", 1) for word in words)
    cells = [cell for cell in item.cells if _matches(cell, conditions)]
    if not cells:
        return ComparedSetting(setting, "", "not in the plan")
    try:
        values = _collect_values(item, cells, setting.key)
    except (KeyError, IndexError) as error:
        raise ValueError(
            f"{setting.paper}, {setting.setting}: {setting.cells} has no key"
            f" {setting.key}"
        ) from error
    ours = "; ".join(map(_format_value, values))
    if not setting.value:
        return ComparedSetting(setting, ours, "open in the text")
    if setting.value.startswith(">= "):
        least = float(setting.value.removeprefix(">= "))
        equal = all(value >= least for value in values)
    else:
        stated = yaml.safe_load(setting.value)
        if setting.key in _SETS:
            # Ours has further values, such as other readings and repairs.
            equal = all(
                any(_is_equal(value, our_value) for our_value in values[0])
                for value in stated
            )
        else:
            equal = all(_is_equal(stated, value) for value in values)
    return ComparedSetting(setting, ours, "equal" if equal else "differs")


# Results


def published_text(
    result: Result, paper: str, numbers: Mapping[tuple[str, str], PublishedNumber]
) -> str:
    """Return the text that the paper prints for a result."""
    if result.published or not result.published_row:
        return result.published
    return numbers[paper, result.published_row].text


def _parse_number(text: str) -> float | None:
    """Return the number at the start of a text; None if there is none."""
    match = _NUMBER.match(text.strip())
    return float(match[0].replace(",", "")) if match else None


def _count_decimals(text: str) -> int:
    """Return the number of decimal places of the number at the start of a text."""
    match = _NUMBER.match(text.strip())
    if not match or "e" in match[0]:
        return 0
    return len(match[0].partition(".")[2])


def _find_printed_number(
    result: Result, paper: str, numbers: Mapping[tuple[str, str], PublishedNumber]
) -> str:
    """Return the printed number, or an empty text where it is not one number."""
    row = numbers.get((paper, result.published_row))
    if result.published or row is None or ";" in row.value:
        return ""
    return row.value


def subtract_published(ours: str, published: str) -> str:
    """Return ours less the printed number, with its sign, as text.

    The text is empty if one of the two is not a number.

    >>> subtract_published("85.1 (84.2 to 86.0)", "93.9")
    '-8.8'
    >>> subtract_published("one pass", "93.9")
    ''
    """
    our_number = _parse_number(ours)
    printed = _parse_number(published)
    if our_number is None or printed is None:
        return ""
    if abs(printed) < 1e-3:
        return f"{our_number - printed:+.2g}"
    digits = max(_count_decimals(ours), _count_decimals(published))
    return f"{our_number - printed:+.{digits}f}"


def _format_difference(
    result: Result, paper: str, numbers: Mapping[tuple[str, str], PublishedNumber]
) -> str:
    """Return the difference; empty where the numbers are of different quantities."""
    if result.status != "reproduced" and not result.status.startswith("differs"):
        return ""
    return subtract_published(result.ours, _find_printed_number(result, paper, numbers))


def is_reproduced(ours: str, published: str) -> bool:
    """Return whether the interval of `ours` contains the printed number.

    If `ours` has no interval, return whether it rounds to the printed number.

    >>> is_reproduced("90.4 (86.9 to 93.9)", "93.9")
    True
    >>> is_reproduced("1.517", "1.5"), is_reproduced("1.57", "1.5")
    (True, False)
    """
    printed = _parse_number(published)
    our_number = _parse_number(ours)
    interval = _INTERVAL.search(ours)
    if printed is None or our_number is None:
        return False
    if interval:
        return float(interval[1]) <= printed <= float(interval[2])
    rounded = round(our_number, _count_decimals(published))
    return math.isclose(rounded, printed, rel_tol=1e-9)


def _remove_markup(text: str) -> str:
    """Return a text without emphasis and line breaks."""
    return " ".join(text.replace("*", "").split())


def _find_covered(
    result: Result, paper: str, numbers: Mapping[tuple[str, str], PublishedNumber]
) -> list[PublishedNumber]:
    """Return the printed numbers that a result's `published_row` names."""
    row = result.published_row
    if row.endswith("*"):
        return [
            number
            for (number_paper, key), number in numbers.items()
            if number_paper == paper and key.startswith(row[:-1])
        ]
    return [numbers[paper, row]] if (paper, row) in numbers else []


def find_problems_of_result(
    result: Result,
    paper: str,
    plan: Plan,
    numbers: Mapping[tuple[str, str], PublishedNumber],
    runs: Mapping[str, RunSettings],
    measured: set[str],
) -> Iterable[str]:
    """Yield the problems of one result, one line each.

    Args:
        result: the result.
        paper: its experiment.
        plan: the plan of the `paper` preset.
        numbers: the printed numbers.
        runs: the settings of our runs.
        measured: the rows of docs/measurements.md.
    """
    if result.status not in STATUSES:
        yield f"the status {result.status!r} is none of {', '.join(STATUSES)}"
    if not result.published and not result.published_row:
        yield "it has neither `published` nor `published_row`"
    if result.published_row and not _find_covered(result, paper, numbers):
        yield f"published.csv has no row {result.published_row!r}"
    if result.item and (paper, result.item) not in plan.items:
        yield f"the paper preset has no item {result.item}"
    for name in _MEASUREMENT.findall(result.measurement):
        if name not in measured:
            yield f"docs/measurements.md has no row {name}"
    if result.run and (
        result.run not in runs or runs[result.run].paper not in ("", paper)
    ):
        yield f"runs.csv has no runs {result.run} of this paper"
    if result.ours:
        page = ROOT / "docs" / result.page
        if not result.page or not page.is_file():
            yield f"docs/ has no page {result.page!r}"
        elif _remove_markup(result.ours) not in _remove_markup(
            page.read_text(encoding="utf-8")
        ):
            yield f"{result.page} does not have {result.ours!r}"
        if not result.run:
            yield "it has a number of ours, but no `run`"
    printed = _find_printed_number(result, paper, numbers)
    yield from _find_problems_of_status(result, printed, measured)


def _find_problems_of_status(
    result: Result, printed: str, measured: set[str]
) -> Iterable[str]:
    """Yield the contradictions between a result's status and its numbers and texts."""
    status = result.status
    if status == "reproduced" and printed and not is_reproduced(result.ours, printed):
        yield f"ours, {result.ours!r}, does not reproduce {printed}"
    if status.startswith("differs"):
        if not subtract_published(result.ours, printed):
            yield "it differs, but there are no two numbers to compare"
        if is_reproduced(result.ours, printed):
            yield f"it differs, but {result.ours!r} reproduces {printed}"
    if status in _EXPLAINED:
        named = set(_MEASUREMENT.findall(result.explanation))
        if not named & measured and ".md" not in result.explanation:
            yield "its explanation names no measurement and no page"
    if status in ("effect found", "effect not found") and not result.ours:
        yield "it has no result of ours that shows the effect, or its absence"
    if status == "not run" and not _COST.search(result.explanation):
        yield "its explanation has no cost (`about N hours`)"
    needs_reason = status in ("void", "cannot be decided here", "contradictory")
    if needs_reason and not result.explanation:
        yield "it has no explanation"


def find_problems(plan: Plan) -> list[str]:
    """Return all problems of the data, one line each."""
    numbers = read_published()
    runs = read_runs()
    text = (ROOT / "docs" / "measurements.md").read_text(encoding="utf-8")
    measured = set(re.findall(r"^\| ([MR]\d+) \|", text, flags=re.M))
    messages = []
    used_runs = set()
    for paper in PAPERS:
        results = read_results(paper)
        covered = set()
        for result in results:
            name = f"{paper}, {result.location}, {result.claim}"
            messages += [
                f"{name}: {problem}"
                for problem in find_problems_of_result(
                    result, paper, plan, numbers, runs, measured
                )
            ]
            covered.update(_find_covered(result, paper, numbers))
            used_runs.add(result.run)
        counts = Counter((result.location, result.claim) for result in results)
        messages += [
            f"{paper}: two rows {row}" for row, count in counts.items() if count > 1
        ]
        # published.csv has a printed number under each of our items that shows it. One
        # result covers all equal rows.
        messages += [
            f"{paper}: no row for the printed number {key!r}"
            for (number_paper, key), number in numbers.items()
            if number_paper == paper and number not in covered
        ]
        items = {result.item for result in results}
        messages += [
            f"{paper}: no row for our item {item}"
            for item_paper, item in plan.items
            if item_paper == paper
            and re.match(r"table\d|figure\d", item)
            and item not in items
        ]
    messages += [
        f"runs.csv: nothing refers to {name}" for name in set(runs) - used_runs
    ]
    for setting in read_settings():
        compared = compare(setting, plan)
        name = f"{setting.paper}, {setting.setting}"
        if compared.verdict not in ("equal", "open in the text") and not setting.reason:
            messages.append(f"{name}: {compared.verdict}, but there is no reason")
    return messages


# The page


def _add_links(text: str) -> str:
    """Return a text with links to the pages and measurements that it names."""
    text = re.sub(
        r"\b(?:findings/|results/)?[\w-]+\.md\b",
        lambda match: f"[{Path(match[0]).stem}]({match[0]})",
        text,
    )
    return _MEASUREMENT.sub(lambda match: f"[{match[0]}](measurements.md)", text)


def _make_row(*cells: str) -> str:
    """Return a row of a Markdown table; an empty cell is a dash."""
    return "| " + " | ".join(cell.replace("|", r"\|") or "–" for cell in cells) + " |"


def _make_result_rows(paper: str) -> Iterable[str]:
    """Yield a row of the page for each result of a paper."""
    numbers = read_published()
    for result in read_results(paper):
        ours = result.ours
        if ours:
            ours = f"[{ours}]({result.page})"
            if result.measurement:
                ours += f" {_add_links(result.measurement)}"
        yield _make_row(
            result.location + (f" (`{result.item}`)" if result.item else ""),
            result.claim,
            published_text(result, paper, numbers),
            ours,
            _format_difference(result, paper, numbers),
            f"`{result.run}`" if result.run else "",
            f"**{result.status}**",
            _add_links(result.explanation),
        )


def _make_setting_rows(paper: str, plan: Plan) -> Iterable[str]:
    """Yield a row of the page for each setting of a paper."""
    for setting in read_settings():
        if setting.paper != paper:
            continue
        compared = compare(setting, plan)
        reason = "" if compared.verdict == "equal" else setting.reason
        key = f" (`{setting.key}`)" if setting.key else ""
        yield _make_row(
            setting.location,
            setting.setting + key,
            setting.text,
            compared.ours,
            f"**{compared.verdict}**",
            _add_links(reason),
        )


def _make_summary() -> Iterable[str]:
    """Yield the rows of the table that counts the statuses of each paper."""
    counts = {
        paper: Counter(result.status for result in read_results(paper))
        for paper in PAPERS
    }
    yield _make_row("status", "meaning", *(title for title, _ in PAPERS.values()))
    yield "|---" * (2 + len(PAPERS)) + "|"
    for status, meaning in STATUSES.items():
        yield _make_row(
            f"**{status}**", meaning, *(str(counts[paper][status]) for paper in PAPERS)
        )
    totals = (str(sum(counts[paper].values())) for paper in PAPERS)
    yield _make_row("all rows", "", *totals)


def make_page(plan: Plan) -> str:
    """Return the page, in Markdown."""
    items = sum(paper in PAPERS for paper, _ in plan.items)
    planned = (
        f"The `paper` preset plans {len(plan.runs):,} runs, and {items} tables and"
        " figures of these\npapers: `uv run snakemake -n --configfile"
        " config/presets/paper.yaml`."
    )
    parts = [_INTRODUCTION, "\n".join(_make_summary()), planned, _HOW_TO]
    runs = read_runs().values()
    for paper, (title, findings) in PAPERS.items():
        used_runs = {result.run for result in read_results(paper)}
        parts += [
            f"## {title}",
            f"[Findings](findings/{findings}.md) has the readings and the experiments.",
            "### Results",
            "| where (our item) | what | published | ours | difference | our runs |"
            " status | explanation |\n|---|---|---|---|---|---|---|---|\n"
            + "\n".join(_make_result_rows(paper)),
            "### How our runs differ from the text",
            "| runs | what was run | differences from the text |\n|---|---|---|\n"
            + "\n".join(
                _make_row(
                    f"`{row.name}`", _add_links(row.runs), _add_links(row.deviations)
                )
                for row in runs
                if row.paper == paper or (not row.paper and row.name in used_runs)
            ),
            "### The paper's settings and the `paper` preset",
            "| where | setting (key) | the text | `paper` preset | verdict |"
            " reason, or reading |\n|---|---|---|---|---|---|\n"
            + "\n".join(_make_setting_rows(paper, plan)),
        ]
    return "\n\n".join(parts) + "\n"


_INTRODUCTION = """# Fidelity: the papers' results and settings beside ours

This page lists every table, figure, algorithm and quantitative claim of the five papers: what is printed, what we measured, whether
our settings are the text's, and which run explains a difference. Numbers that the papers quote from other work are left out.

- *published*: the printed number, from `config/published.csv` where it has it.
- *ours*: our number with its 95 % interval, its page, and its row of [measurements](measurements.md), which has the command.
- *our runs*: the settings of these runs; each paper has a list of how they differ from its text.
- *difference*: ours less the printed number."""

_HOW_TO = """`uv run python tools/fidelity.py` writes this page from `docs/fidelity/`. To add a measured number:

1. Add its row to [measurements](measurements.md), and the number to a page of `docs/` (findings or results).
2. In `docs/fidelity/claims/PAPER.csv` edit the row: `ours` (word for word as on that page), `page`, `measurement`, `run`, `status`
   and `explanation`. If the settings are new, add a row to `docs/fidelity/runs.csv`.
3. Run the tool. It lists what does not fit: a number that its page does not have, "reproduced" outside the interval, "explained"
   without a measurement.

A changed preset needs step 3 alone. If a setting then differs from the text, `docs/fidelity/settings.csv` needs a reason."""


def main() -> None:
    """Write the page, and print the problems of its data."""
    plan = read_paper_plan()
    for problem in find_problems(plan):
        print(problem)
    PAGE.write_text(make_page(plan), encoding="utf-8")


if __name__ == "__main__":
    main()
