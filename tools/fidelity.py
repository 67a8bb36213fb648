"""Write docs/fidelity.md: the papers' results and settings beside ours.

`uv run python tools/fidelity.py` writes the page; a test compares it. The page is made
from:

- `docs/fidelity/claims/PAPER.csv`: one row for each result of the paper,
- `docs/fidelity/settings.csv`: one row for each setting that a paper states,
- `docs/fidelity/runs.csv`: what our runs measure, and how they differ from the text,
- `docs/fidelity/badge.csv`: what each paper lacks for the badge, and its cost,
- `docs/measurements.md`: the numbers that were measured,
- `config/published.csv`: the printed numbers,
- the plan of the `paper` preset: the settings as they are configured today.
"""

import csv
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from dpfedbench.config.merge import leaves
from dpfedbench.config.yaml_files import read_file
from dpfedbench.experiments.configuration import (
    Configuration,
    overlaid,
    shipped_files,
)
from dpfedbench.experiments.expand import make_plan
from dpfedbench.experiments.plan import Plan, PlannedCell, PlannedItem

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "docs" / "fidelity"
PAGE = ROOT / "docs" / "fidelity.md"
PUBLISHED = ROOT / "config" / "published.csv"
MEASUREMENTS = ROOT / "docs" / "measurements.md"
NUMBERS = ROOT / "docs" / "measurements" / "numbers.txt"

PAPERS = {
    "dp-fedmeta": ("DP-FedMeta", "dp-fedmeta"),
    "dp-maml": ("DP-MAML", "dp-maml"),
    "dp-meta-learning-gbml": ("Differentially Private Meta-Learning (GBML)", "dp-meta-learning"),
    "adap-dp-fl": ("Adap DP-FL", "adap-dp-fl"),
    "dp-fnas": ("DP-FNAS", "dp-fnas"),
}  # fmt: skip
"""Title of each paper, and its page in docs/findings/."""

STATUSES = {
    "reproduced": "the printed number is in our interval (rule 1)",
    "holds": "a fact, a derivation or an account of the paper is right, without training",
    "implemented": "an algorithm or a formula runs; each deviation is named",
    "effect found": "our runs show the effect (rule 3)",
    "effect not found": "our runs do not show it (rule 3)",
    "differs, explained": "with one cause changed, our interval has the printed number",
    "differs, partly explained": "with one cause changed, our number is nearer to it,"
    " and not past it",
    "contradictory": "the paper contradicts itself, or its released code",
    "void": "a privacy claim that does not hold for the mechanism that was run",
    "agrees, other settings": "the printed number is in our interval, by our settings",
    "fitted": "a free value was chosen so that the printed number comes out, or training"
    " ends there",
    "effect seen, other settings": "our runs show it, at another scale or setting",
    "effect not seen, other settings": "our runs do not show it, likewise",
    "not decided": "no run of ours decides it; the row has the cost of a decision",
    "a setting": "not a result; among the settings below",
    "nothing to measure": "an illustration or a notation",
}
"""Every status of a result, and its meaning."""

UNDECIDED = (
    "agrees, other settings",
    "fitted",
    "effect seen, other settings",
    "effect not seen, other settings",
    "not decided",
)
"""Statuses that leave the paper's result open."""

WITHOUT_ROW = ("nothing to measure", "a setting")
"""Statuses without a number: the page lists their results below the table."""

QUANTITIES = (
    "accuracy",
    "loss",
    "norm",
    "time",
    "epsilon",
    "delta",
    "noise",
    "labels",
    "parameters",
    "operations",
    "text",
)
"""What a statement is about. "text" is a fact or a formula: nothing is measured."""

DATA_SETS = {
    "omniglot": r"Omniglot",
    "cifar-fs": r"CIFAR-FS",
    "mini-imagenet": r"Mini-ImageNet",
    "mnist": r"(?<!Fashion-)MNIST",
    "fashion-mnist": r"Fashion-MNIST",
    "cifar-10": r"CIFAR-10",
    "shakespeare-800": r"Shakespeare",
    "wiki-1600": r"Wiki",
}
"""Patterns of the data sets of published.csv in docs/measurements.md."""

COMMON_KEYS = (
    "clients.count",
    "clients.examples_per_class",
    "clients.fragments",
    "clients.query_per_class",
    "clients.support_per_class",
    "client_update.inner_rate",
    "client_update.inner_steps",
    "client_update.learnable_rates",
    "client_update.multi_step_rounds",
    "client_update.optimizer.kind",
    "client_update.order",
    "budget.delta",
    "evaluation.tasks",
    "model.filters",
    "model.nodes",
    "participation.cohort",
    "participation.kind",
    "participation.lot",
    "server.optimizer.kind",
    "server.rate",
    "server.schedule.kind",
    "validation.ensemble",
    "validation.tasks",
)
"""Keys that the rows of a paper's table share. Figures vary noise, thresholds and
budgets.
"""

_EXPLAINED = ("differs, explained", "differs, partly explained")
_EFFECTS = ("effect found", "effect not found")
_OTHER_EFFECTS = ("effect seen, other settings", "effect not seen, other settings")
_SETS = ("x", "series", "variants", "datasets", "tasks")
"""Keys that describe all cells together. Ours must contain the stated values."""

_MEASUREMENT = re.compile(r"\b[MR]\d+\b")
_COST = re.compile(r"[\d.,]+(?: to [\d.,]+)? (?:GPU )?h\b|needs [\w' -]+")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")
_INTERVAL = re.compile(r"\((-?[\d.]+) to (-?[\d.]+)\)")
_BASELINE = re.compile(r".+ = .+ \[[MR]\d+(?:, [MR]\d+)*\]")
_COUNT = re.compile(r"\b(L|k|epochs|improvement)\b")
"""Printed quantities that no accuracy of ours can be compared with."""
_WITH_INTERVAL = re.compile(r"-?[\d.,]+(?: %)? \(-?[\d.]+ to -?[\d.]+\)")


@dataclass(frozen=True)
class Result:
    """One result of a paper.

    Attributes:
        location: table, figure, algorithm or section.
        claim: the claim, in words.
        quantity: what the claim is about, one of `QUANTITIES`.
        published: the printed text, where no row of published.csv has it.
        published_row: the row of published.csv: item; dataset; task; method; variant;
            x; quantity, without empty values at the end. A `*` at the end stands for
            any further values.
        item: our table or figure, in the `paper` preset; empty if there is none.
        run: name in runs.csv of the runs that `ours` comes from.
        ours: our number, word for word as on `page`.
        page: page in docs/ that shows `ours`.
        measurement: rows of docs/measurements.md that `ours` comes from.
        baseline: what an effect is compared with: `NAME = NUMBER [ROW]`, joined by `; `.
            A NAME that is a claim of the paper has that claim's number.
        cause: the one setting that differs between `from_` and `to`.
        from_: the number before the cause is changed: `NUMBER [ROW]`. It is `ours`, or
            both are of other runs. The column's name is "from".
        to: the number with the cause changed, nearer to the printed one.
        status: one of `STATUSES`.
        cost: what a decision costs, where there is none: `N h`, `N GPU h`, `needs DATA`.
        explanation: deviations, and what else is known.
    """

    location: str
    claim: str
    quantity: str
    published: str
    published_row: str
    item: str
    run: str
    ours: str
    page: str
    measurement: str
    baseline: str
    cause: str
    from_: str
    to: str
    status: str
    cost: str
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
    """What some of our runs measure, and how their settings differ from the text.

    Attributes:
        name: the name that results refer to.
        paper: the experiment; empty for several papers.
        runs: description of the runs.
        measures: quantities that these runs measure (`QUANTITIES`), joined by `; `.
        differs: settings that the text states and our runs do not have: `SETTING: OURS
            (TEXT)`, joined by `; `. A SETTING of settings.csv is compared with its
            stated value. "none" if there are none.
        open: our choices where the text leaves a setting open.
        cells: where the runs are configured: `PRESET ITEM`, then `name=value` as in
            `Setting.cells`, joined by `; `. Their settings are compared with the text.
            Runs that train and differ in nothing have them.
        fitted: the value that was chosen so that a printed number comes out.
    """

    name: str
    paper: str
    runs: str
    measures: str
    differs: str
    open: str
    cells: str
    fitted: str


@dataclass(frozen=True)
class MissingRun:
    """What a paper lacks for the badge "results reproduced".

    Attributes:
        paper: the experiment.
        missing: what is missing.
        run: the run that would decide it.
        cost: hours of one core, or of a GPU.
    """

    paper: str
    missing: str
    run: str
    cost: str


@dataclass(frozen=True)
class Measurement:
    """Row of docs/measurements.md.

    Attributes:
        text: the row and its numbers, without markup.
        data: the column of the data sets.
    """

    text: str
    data: str


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
    names = [field.name.rstrip("_") for field in fields(row_type)]
    with path.open(encoding="utf-8", newline="") as handle:
        reader = csv.DictReader(handle)
        if reader.fieldnames != names:
            raise ValueError(f"{path.name}: the first line must be {','.join(names)}")
        rows = []
        for number, row in enumerate(reader, start=2):
            if None in row or None in row.values():
                raise ValueError(f"{path.name}, row {number}: not {len(names)} values")
            rows.append(row_type(*row.values()))
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


def read_missing() -> list[MissingRun]:
    """Return what the papers lack for the badge."""
    return _read_rows(DATA / "badge.csv", MissingRun)


def read_measurements() -> dict[str, Measurement]:
    """Return the rows of docs/measurements.md and their numbers, by name."""
    rows = {}
    texts = [path.read_text(encoding="utf-8") for path in (MEASUREMENTS, NUMBERS)]
    for line in "\n".join(texts).splitlines():
        row = re.match(r"\| ([MR]\d+) \|", line)
        numbers = re.match(r"- ([MR]\d+) ", line)
        if row:
            data = line.split(" | ")[3]
            rows[row[1]] = Measurement(text=_remove_markup(line), data=data)
        elif numbers and numbers[1] in rows:
            known = rows[numbers[1]]
            text = f"{known.text} {_remove_markup(line)}"
            rows[numbers[1]] = Measurement(text=text, data=known.data)
    return rows


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
    return _make_plan("paper", {})


@cache
def read_plan_of(preset: str, paper: str) -> Plan:
    """Return a preset's plan of one paper."""
    whole = overlaid(*map(read_file, shipped_files(ROOT / "config")))
    others = {name: None for name in whole["experiments"] if name != paper}
    return _make_plan(preset, {"experiments": others})


def _make_plan(preset: str, overlay: Mapping[str, Any]) -> Plan:
    """Return the plan of a preset with an overlay."""
    config = ROOT / "config"
    preset_file = config / "presets" / f"{preset}.yaml"
    files = [*shipped_files(config, preset), preset_file]
    return make_plan(Configuration.read(overlaid(*map(read_file, files), overlay)))


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
                f"{cell.published_dataset} {cell.runs[0].task.label}" for cell in cells
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


def _find_cells(
    text: str, paper: str, plan: Plan
) -> tuple[PlannedItem | None, list[PlannedCell]]:
    """Return the item and the cells that `ITEM name=value ...` describes."""
    name, *words = text.split()
    item = plan.items.get((paper, name))
    if item is None:
        return None, []
    conditions = dict(word.split("=", 1) for word in words)
    return item, [cell for cell in item.cells if _matches(cell, conditions)]


def compare(setting: Setting, plan: Plan) -> ComparedSetting:
    """Compare a setting with the plan of the `paper` preset.

    Raises:
        ValueError: the cells have no such key.
    """
    if not setting.key:
        return ComparedSetting(setting, "", "no key")
    item, cells = _find_cells(setting.cells, setting.paper, plan)
    if item is None or not cells:
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
    """Return the difference; empty where the numbers are of different quantities.

    A size L of our clients is not one of the paper's, which has more.
    """
    if result.status.startswith("effect") or result.status == "fitted":
        return ""
    number = numbers.get((paper, result.published_row))
    if number and re.search(r"\bL\b", number.quantity):
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


@dataclass(frozen=True)
class Sources:
    """What the results are compared with.

    Attributes:
        plan: the plan of the `paper` preset.
        numbers: the printed numbers, by paper and key.
        settings: the settings that the papers state.
        runs: the settings of our runs, by name.
        measurements: the rows of docs/measurements.md, by name.
    """

    plan: Plan
    numbers: Mapping[tuple[str, str], PublishedNumber]
    settings: Sequence[Setting]
    runs: Mapping[str, RunSettings]
    measurements: Mapping[str, Measurement]


def read_sources(plan: Plan) -> Sources:
    """Return what the results are compared with."""
    return Sources(
        plan=plan,
        numbers=read_published(),
        settings=read_settings(),
        runs=read_runs(),
        measurements=read_measurements(),
    )


def find_problems_of_result(
    result: Result, paper: str, sources: Sources
) -> Iterable[str]:
    """Yield the problems of one result of a paper, one line each."""
    numbers = sources.numbers
    if result.status not in STATUSES:
        yield f"the status {result.status!r} is none of {', '.join(STATUSES)}"
    if result.quantity not in QUANTITIES:
        yield f"the quantity {result.quantity!r} is none of {', '.join(QUANTITIES)}"
    if not result.published and not result.published_row:
        yield "it has neither `published` nor `published_row`"
    if result.published_row and not _find_covered(result, paper, numbers):
        yield f"published.csv has no row {result.published_row!r}"
    if result.item and (paper, result.item) not in sources.plan.items:
        yield f"the paper preset has no item {result.item}"
    run = sources.runs.get(result.run)
    if result.run and (run is None or run.paper not in ("", paper)):
        yield f"runs.csv has no runs {result.run} of this paper"
    if result.ours and not result.run:
        yield "it has a number of ours, but no `run`"
    yield from _find_problems_of_numbers(result, sources.measurements)
    yield from _find_problems_of_comparisons(result, sources.measurements)
    printed = _find_printed_number(result, paper, numbers)
    number = numbers.get((paper, result.published_row))
    quantity = number.quantity if number else ""
    is_effect = result.status.startswith("effect")
    if _COUNT.search(quantity) and _INTERVAL.search(result.ours) and not is_effect:
        yield f"ours, {result.ours!r}, is no {quantity}"
    yield from _find_problems_of_status(result, printed, run)
    if result.status in _EXPLAINED:
        yield from _find_problems_of_cause(result, printed, sources.measurements)


def _find_problems_of_numbers(
    result: Result, measurements: Mapping[str, Measurement]
) -> Iterable[str]:
    """Yield the numbers that neither their page nor their measurement's row has."""
    named = _MEASUREMENT.findall(result.measurement)
    texts = [result.measurement, result.baseline, result.from_, result.to]
    for name in _MEASUREMENT.findall(" ".join([*texts, result.explanation])):
        if name not in measurements:
            yield f"docs/measurements.md has no row {name}"
    if result.ours:
        page = ROOT / "docs" / result.page
        if not result.page or not page.is_file():
            yield f"docs/ has no page {result.page!r}"
        elif _remove_markup(result.ours) not in _remove_markup(
            page.read_text(encoding="utf-8")
        ):
            yield f"{result.page} does not have {result.ours!r}"
        if not named:
            yield "it has a number of ours, but no measurement"
        if not _is_measured(result.ours, named, measurements):
            yield f"{result.measurement} does not have {result.ours!r}"


def _find_problems_of_comparisons(
    result: Result, measurements: Mapping[str, Measurement]
) -> Iterable[str]:
    """Yield the numbers beside ours that their measurement's row does not have."""
    for entry in _split(result.baseline):
        if not _BASELINE.fullmatch(entry):
            yield f"the baseline {entry!r} is not `NAME = NUMBER [ROW]`"
    for text in (result.from_, result.to, *_split(result.baseline)):
        number, rows = _split_rows(text)
        if text and not _is_measured(number, rows, measurements):
            yield f"{', '.join(rows) or 'no row'} does not have {number!r}"
    # An interval in the explanation is a measured number too.
    for number in _WITH_INTERVAL.findall(result.explanation):
        rows = _MEASUREMENT.findall(result.explanation)
        if not _is_measured(number, rows, measurements):
            yield f"no row that the explanation names has {number!r}"


def _split(text: str) -> list[str]:
    """Return the entries of a text that are joined by `; `."""
    return [entry.strip() for entry in text.split("; ") if entry.strip()]


def _split_rows(text: str) -> tuple[str, list[str]]:
    """Return the number of `NAME = NUMBER [ROW]`, and the named rows."""
    number = text.partition(" [")[0].rpartition(" = ")[2]
    return number, _MEASUREMENT.findall(text.partition(" [")[2])


def _is_measured(
    number: str, names: Iterable[str], measurements: Mapping[str, Measurement]
) -> bool:
    """Return whether one of the named rows has a number, as a whole word."""
    wanted = re.escape(_remove_markup(number).replace(" %", ""))
    pattern = re.compile(rf"(?<![\d.,]){wanted}(?![\d]|[.,]\d)")
    return any(
        pattern.search(measurements[name].text.replace(" %", ""))
        for name in names
        if name in measurements
    )


def _find_problems_of_status(
    result: Result, printed: str, run: RunSettings | None
) -> Iterable[str]:
    """Yield the contradictions between a result's status and its numbers and runs."""
    status = result.status
    judged = ("reproduced", "agrees, other settings", "fitted")
    if status in (*judged, *_EFFECTS, *_OTHER_EFFECTS):
        if not result.ours or run is None:
            yield "it has no result of ours"
        elif result.quantity not in _split(run.measures):
            yield f"the runs {run.name} do not measure {result.quantity}"
    if status in ("reproduced", "agrees, other settings") and not is_reproduced(
        result.ours, printed
    ):
        yield f"ours, {result.ours!r}, does not reproduce {printed}"
    if status in ("reproduced", *_EFFECTS) and run is not None:
        if run.differs != "none":
            yield f"its runs have other settings: {run.differs}"
        if run.fitted:
            yield f"its runs were fitted: {run.fitted}"
    other = ("agrees, other settings", *_OTHER_EFFECTS)
    if status in other and run is not None and run.differs == "none":
        yield "its runs have no other settings"
    if status == "fitted" and run is not None and not run.fitted:
        yield f"runs.csv does not say what was fitted in {run.name}"
    yield from _find_missing_columns(result, printed)


def _find_missing_columns(result: Result, printed: str) -> Iterable[str]:
    """Yield the columns that a result's status needs, or does not allow."""
    status = result.status
    if status in (*_EFFECTS, *_OTHER_EFFECTS):
        yield from _find_problems_of_effect(result)
    if status in _EXPLAINED and is_reproduced(result.ours, printed):
        yield f"it differs, but {result.ours!r} reproduces {printed}"
    if status not in _EXPLAINED and (result.cause or result.from_ or result.to):
        yield "it has a cause, but is not explained"
    if status in UNDECIDED and not _COST.match(result.cost):
        yield "it has no cost (`N h`, `N GPU h` or `needs DATA`)"
    if status not in UNDECIDED and result.cost:
        yield "it has a cost, but is decided"
    needs_reason = ("void", "not decided", "contradictory", "fitted", "holds")
    if status in needs_reason and not result.explanation:
        yield "it has no explanation"


def _find_problems_of_effect(result: Result) -> Iterable[str]:
    """Yield why the numbers of an effect do not tell it.

    A seen effect is outside the interval of every baseline. An effect that is not seen
    is outside that of at least one, since the intervals would else tell nothing.
    """
    numbers = [_split_rows(entry)[0] for entry in _split(result.baseline)]
    if not numbers:
        yield "the effect has no baseline"
        return
    same = [number for number in numbers if _overlap(result.ours, number)]
    is_seen = result.status in ("effect found", "effect seen, other settings")
    if is_seen and same:
        yield f"the effect is seen, but {result.ours!r} and {same[0]!r} overlap"
    if not is_seen and len(same) == len(numbers):
        yield "the effect is not seen, but all intervals overlap: it is not decided"


def _find_problems_of_cause(
    result: Result, printed: str, measurements: Mapping[str, Measurement]
) -> Iterable[str]:
    """Yield what an explanation by a second run lacks."""
    if not result.cause or not result.from_ or not result.to:
        yield "it is explained without a second measurement: `cause`, `from`, `to`"
        return
    before, before_rows = _split_rows(result.from_)
    after, after_rows = _split_rows(result.to)
    if before == after:
        yield "`from` and `to` are one measurement"
    own = _MEASUREMENT.findall(result.measurement)
    if before != result.ours and {*before_rows, *after_rows} & {*own}:
        yield f"`from` is not ours, {result.ours!r}, and not of another run"
    if after == result.ours:
        yield "`to` is ours: it does not explain what is left of the difference"
    if _overlap(before, after):
        yield f"{before!r} and {after!r} overlap: the cause moves nothing"
    distance_before = _find_distance(before, printed)
    distance_after = _find_distance(after, printed)
    if distance_before is None or distance_after is None:
        yield "`from`, `to` or the printed value is no number"
    elif distance_after >= distance_before:
        yield f"the cause does not move our number towards {printed}"
    is_explained = is_reproduced(after, printed)
    if result.status == "differs, explained" and not is_explained:
        yield f"it is not explained: {after!r} does not have {printed}"
    if result.status == "differs, partly explained" and is_explained:
        yield f"it is wholly explained, or not at all: {after!r} has {printed}"
    if not is_explained and _is_between(printed, before, after):
        yield f"the cause moves our number past {printed}"
    data_set = [*_split(result.published_row), "", ""][1]
    pattern = DATA_SETS.get(data_set, "")
    for name in (*before_rows, *after_rows):
        if name in measurements and not re.search(pattern, measurements[name].data):
            yield f"{name} is not of {data_set}"


def _find_distance(ours: str, printed: str) -> float | None:
    """Return the distance of our number from the printed one."""
    our_number = _parse_number(ours)
    printed_number = _parse_number(printed)
    if our_number is None or printed_number is None:
        return None
    return abs(our_number - printed_number)


def _is_between(printed: str, before: str, after: str) -> bool:
    """Return whether the printed number lies between two numbers of ours."""
    parsed = [_parse_number(text) for text in (before, printed, after)]
    numbers = [number for number in parsed if number is not None]
    in_order = (sorted(numbers), sorted(numbers, reverse=True))
    return len(numbers) == len(parsed) and numbers in in_order


def _overlap(first: str, second: str) -> bool:
    """Return whether two numbers have intervals that overlap."""
    one = _INTERVAL.search(first)
    other = _INTERVAL.search(second)
    if not one or not other:
        return False
    return float(one[1]) <= float(other[2]) and float(other[1]) <= float(one[2])


def find_contradictions(paper: str, results: Sequence[Result]) -> Iterable[str]:
    """Yield the cells of a paper that have two numbers.

    A cell is a claim, or a baseline's name.
    """
    values = {result.claim: result.ours for result in results if result.ours}
    for result in results:
        for entry in _split(result.baseline):
            name = entry.rpartition(" = ")[0]
            number, _ = _split_rows(entry)
            known = values.setdefault(name, number)
            if known != number:
                yield f"{paper}, {name}: two numbers, {known!r} and {number!r}"


def find_problems_of_measurements(
    measurements: Mapping[str, Measurement],
) -> Iterable[str]:
    """Yield the entries of docs/measurements.md that have two numbers."""
    for name, row in measurements.items():
        known: dict[str, str] = {}
        for entry in row.text.partition(f" - {name} ")[2].split(" · "):
            label, _, value = entry.partition(": ")
            if known.setdefault(label, value) != value:
                yield f"docs/measurements.md, {name}, {label}: two numbers"


def find_problems_of_runs(
    run: RunSettings, papers: Iterable[str], settings: Sequence[Setting]
) -> Iterable[str]:
    """Yield the problems of a row of runs.csv that some papers' results refer to."""
    for quantity in _split(run.measures):
        if quantity not in QUANTITIES:
            yield f"it measures {quantity!r}, which is none of {', '.join(QUANTITIES)}"
    if not run.differs:
        yield "`differs` says neither which settings differ, nor none"
    if run.differs == "none":
        return
    for entry in _split(run.differs):
        name, _, values = entry.partition(": ")
        if not re.fullmatch(r".+ \(.+\)", values):
            yield f"{entry!r} is not `SETTING: OURS (TEXT)`"
        stated = [
            yaml.safe_load(setting.value or "null")
            for setting in settings
            if setting.paper in papers and setting.setting == name and setting.key
        ]
        if stated and set(map(str, stated)) == {"None"}:
            yield f"the text leaves {name!r} open"
        ours = _parse_number(values)
        if stated and ours is not None and all(ours == value for value in stated):
            yield f"{name}: {values!r} is the text's value"


def find_unstated_differences(
    run: RunSettings, paper: str, settings: Sequence[Setting], plan: Plan
) -> Iterable[str]:
    """Yield the settings of a run's cells that differ from the text, but are not named.

    A setting with one of `COMMON_KEYS` applies to a cell of the same data set and method
    as the cells of the `paper` preset for which it is stated.

    Args:
        run: the row of runs.csv.
        paper: its experiment.
        settings: the settings that the papers state.
        plan: the plan of the `paper` preset.
    """
    trained = set(_split(run.measures)) - {"epsilon", "delta"}
    if run.differs == "none" and trained and not run.cells:
        yield "runs that differ in nothing name their cells of a preset"
    named = {entry.partition(": ")[0] for entry in _split(run.differs)}
    for text in _split(run.cells):
        preset, _, words = text.partition(" ")
        item, cells = _find_cells(words, paper, read_plan_of(preset, paper))
        if item is None or not cells:
            yield f"the preset {preset} has no cells {words}"
            continue
        for setting in settings:
            if setting.paper != paper or setting.key not in COMMON_KEYS:
                continue
            if not setting.value or setting.setting in named:
                continue
            _, stated = _find_cells(setting.cells, paper, plan)
            kinds = {(cell.published_dataset, cell.runs[0].method) for cell in stated}
            for cell in cells:
                if (cell.published_dataset, cell.runs[0].method) in kinds:
                    yield from _find_difference(setting, item, cell)


def _find_difference(
    setting: Setting, item: PlannedItem, cell: PlannedCell
) -> Iterable[str]:
    """Yield the setting of a cell, if it is not the stated one."""
    try:
        (ours,) = _collect_values(item, [cell], setting.key)
    except (KeyError, IndexError):
        return
    if setting.value.startswith(">= "):
        equal = ours >= float(setting.value.removeprefix(">= "))
    else:
        equal = _is_equal(yaml.safe_load(setting.value), ours)
    if not equal:
        yield (
            f"{cell.series} has {setting.setting} {_format_value(ours)}"
            f" ({setting.text}), which `differs` does not name"
        )


def _find_missing_rows(
    paper: str, results: Sequence[Result], sources: Sources
) -> Iterable[str]:
    """Yield the rows that a paper has twice, and what has no row."""
    counts = Counter((result.location, result.claim) for result in results)
    for row, count in counts.items():
        if count > 1:
            yield f"{paper}: two rows {row}"
    # published.csv has a printed number under each of our items that shows it. One
    # result covers all equal rows.
    covered = {
        number
        for result in results
        for number in _find_covered(result, paper, sources.numbers)
    }
    for (number_paper, key), number in sources.numbers.items():
        if number_paper == paper and number not in covered:
            yield f"{paper}: no row for the printed number {key!r}"
    items = {result.item for result in results}
    for item_paper, item in sources.plan.items:
        numbered = re.match(r"table\d|figure\d", item)
        if item_paper == paper and numbered and item not in items:
            yield f"{paper}: no row for our item {item}"


def _find_problems_of_all_runs(
    papers_of_runs: Mapping[str, set[str]], sources: Sources
) -> Iterable[str]:
    """Yield the problems of runs.csv.

    Args:
        papers_of_runs: the papers whose results refer to each row of runs.csv.
        sources: what the results are compared with.
    """
    for name, papers in papers_of_runs.items():
        run = sources.runs[name]
        if not papers:
            yield f"runs.csv: nothing refers to {name}"
        problems = list(find_problems_of_runs(run, papers, sources.settings))
        if run.paper:
            problems += find_unstated_differences(
                run, run.paper, sources.settings, sources.plan
            )
        # Two items may state one setting.
        for problem in dict.fromkeys(problems):
            yield f"runs.csv, {name}: {problem}"


def find_problems(plan: Plan) -> list[str]:
    """Return all problems of the data, one line each."""
    sources = read_sources(plan)
    messages = list(find_problems_of_measurements(sources.measurements))
    papers_of_runs: dict[str, set[str]] = {name: set() for name in sources.runs}
    for paper in PAPERS:
        results = read_results(paper)
        messages += find_contradictions(paper, results)
        messages += _find_missing_rows(paper, results, sources)
        for result in results:
            name = f"{paper}, {result.location}, {result.claim}"
            messages += [
                f"{name}: {problem}"
                for problem in find_problems_of_result(result, paper, sources)
            ]
            if result.run in papers_of_runs:
                papers_of_runs[result.run].add(paper)
    messages += _find_problems_of_all_runs(papers_of_runs, sources)
    missing = {row.paper for row in read_missing()}
    messages += [
        f"badge.csv: no row for {paper}" for paper in PAPERS if paper not in missing
    ]
    for setting in sources.settings:
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


def _shorten_repeats(cells: Sequence[str]) -> list[str]:
    """Return the cells of a column, with a mark for those that repeat the cell above."""
    above = ["", *cells][: len(cells)]
    return [
        "″" if cell == before and len(cell.split()) > 1 else cell
        for cell, before in zip(cells, above, strict=True)
    ]


class _ShownExplanations:
    """The explanations that a table has so far."""

    def __init__(self) -> None:
        self._references: dict[str, str] = {}
        self._last = ""

    def shorten(self, result: Result) -> str:
        """Return a result's explanation, or a shorter reference to the row that has it.

        The reference names the row by its place and its claim, since one table of a
        paper may have several explanations.
        """
        explanation = result.explanation
        is_in_row_above = explanation == self._last
        self._last = explanation
        if len(explanation.split()) < _LONG:
            return explanation
        if explanation not in self._references:
            reference = f"As {result.location}, “{result.claim}”, above."
            self._references[explanation] = reference
            return explanation
        shown = _AS_ROW_ABOVE if is_in_row_above else self._references[explanation]
        return min(shown, explanation, key=len)


def _make_result_tables(paper: str) -> Iterable[str]:
    """Yield a paper's results: those that are decided and those that no run decides,
    with a number of ours and without. A table has the columns that its rows fill.
    Results without a number that are equal but for their claims share a row.
    """
    numbers = read_published()
    rows: dict[str, list[tuple[str, list[str], tuple[str, ...]]]] = {
        head: [] for head in _RESULT_HEADS
    }
    last_row: dict[str, tuple[str, ...]] = {}
    shown_explanations = {head: _ShownExplanations() for head in _RESULT_HEADS}
    for result in read_results(paper):
        if result.status in WITHOUT_ROW:
            continue
        location = result.location
        if result.item and result.item not in location.lower().replace(" ", ""):
            location += f" (`{result.item}`)"
        printed = published_text(result, paper, numbers)
        if result.ours:
            ours = f"[{result.ours}]({result.page}) {_add_links(result.measurement)}"
            difference = _format_difference(result, paper, numbers)
            cells = [ours, difference, f"`{result.run}`"]
            head = _MEASURED_NOT_DECIDED
            if result.status != "not decided":
                cells.append(f"**{result.status}**")
                head = _MEASURED
        elif result.status == "not decided":
            cells = []
            head = _NOT_DECIDED
        else:
            cells = [f"**{result.status}**"]
            head = _WITHOUT_NUMBER
        evidence = _describe_evidence(result)
        row = (location, printed, *cells, evidence)
        if last_row.get(head) == row and not result.ours:
            rows[head][-1][1].append(result.claim)
            continue
        last_row[head] = row
        shown = shown_explanations[head].shorten(result)
        evidence = evidence.replace(result.explanation, shown)
        evidence = _add_links(evidence)
        rows[head].append((location, [result.claim], (printed, *cells, evidence)))
    for head, entries in rows.items():
        locations = _shorten_repeats([location for location, _, _ in entries])
        lines = [
            _make_row(location, "; ".join(claims), *others)
            for location, (_, claims, others) in zip(locations, entries, strict=True)
        ]
        if lines:
            title, _, columns = head.partition(": ")
            names = columns.split(" | ")
            yield f"{title}:"
            yield "\n".join([_make_row(*names), "|---" * len(names) + "|", *lines])


_MEASURED = (
    "Judged, with a number of ours: where (our item) | what | published | ours | difference"
    " | our runs | status | evidence, explanation, *cost*"
)
_MEASURED_NOT_DECIDED = (
    "**not decided**, with a number of ours: where (our item) | what | published | ours"
    " | difference | our runs | what is known, and *the cost*"
)
_WITHOUT_NUMBER = (
    "Judged, without a number of ours: where (our item) | what | published | status"
    " | evidence, explanation, *cost*"
)
_NOT_DECIDED = (
    "**not decided**, without a number of ours: where (our item) | what | published"
    " | what is known, and *the cost*"
)
_RESULT_HEADS = (_MEASURED, _MEASURED_NOT_DECIDED, _WITHOUT_NUMBER, _NOT_DECIDED)
"""Title and columns of the tables of a paper's results."""

_LONG = 7
"""Words of an explanation that a table has once."""

_AS_ROW_ABOVE = "As in the row above."
"""Text of a cell whose explanation is that of the row above it."""

_LONG_LIST = 4
"""Commas of a list of values that the page leaves to settings.csv."""


def _make_lists(paper: str) -> Iterable[str]:
    """Yield a list for each status whose results have no row, with each explanation."""
    for status in WITHOUT_ROW:
        by_explanation: dict[str, list[str]] = {}
        for result in read_results(paper):
            if result.status == status:
                results = by_explanation.setdefault(result.explanation, [])
                results.append(f"{result.location}, {result.claim}")
        lines = [
            f"- {'; '.join(results)}. {_add_links(explanation)}".rstrip()
            for explanation, results in by_explanation.items()
        ]
        if lines:
            yield f"**{status}**:"
            yield "\n".join(lines)


def _describe_evidence(result: Result) -> str:
    """Return the baseline, the cause, the cost and the explanation of a result."""
    parts = []
    if result.baseline:
        parts.append(f"Beside: {_remove_brackets(result.baseline)}.")
    if result.cause:
        before = _remove_brackets(result.from_)
        if result.from_ == f"{result.ours} [{result.measurement}]":
            before = "ours"
        after = _remove_brackets(result.to)
        parts.append(f"Cause: {result.cause}; from {before} to {after}.")
    parts.append(result.explanation)
    if result.cost:
        parts.append(f"*{result.cost}*")
    return " ".join(part for part in parts if part)


def _remove_brackets(text: str) -> str:
    """Return numbers with their rows in round brackets, which become links."""
    return text.replace(" [", " (").replace("]", ")").replace(" = ", " ")


def _make_run_rows(runs: Iterable[RunSettings]) -> Iterable[str]:
    """Yield a row for each of our runs.

    Settings that are those of a row above are named by that row, if there are three.
    """
    above: dict[str, list[str]] = {}
    for row in runs:
        entries = _split(row.differs)
        parts = [name for name, known in above.items() if {*known} <= {*entries}]
        part = max(parts, key=lambda name: len(above[name]), default="")
        differs = row.differs
        if part and len(above[part]) >= 3:
            further = [entry for entry in entries if entry not in above[part]]
            differs = "; ".join([f"as `{part}`", *further])
        above[row.name] = entries
        yield _make_row(
            f"`{row.name}`",
            _add_links(row.runs),
            _add_links(differs),
            _add_links(row.open),
            row.fitted,
        )


def _make_settings(paper: str, plan: Plan) -> Iterable[str]:
    """Yield a paper's settings: a list of those that are equal, and a table for each
    other verdict.
    """
    equal: dict[str, None] = {}
    equal_count = 0
    tables: dict[str, dict[tuple[str, ...], list[str]]] = {}
    for setting in read_settings():
        if setting.paper != paper:
            continue
        compared = compare(setting, plan)
        if compared.verdict == "equal":
            equal_count += 1
            value = compared.ours or setting.text
            is_list = value.count(", ") >= _LONG_LIST
            entry = setting.setting if is_list else f"{setting.setting}: {value}"
            equal[entry] = None
            continue
        key = f" (`{setting.key}`)" if setting.key else ""
        text = re.sub(r"^not stated( \(figure only\))?$", "", setting.text)
        cells = [setting.setting + key, text]
        if compared.verdict != "no key":
            cells.append(compared.ours)
        rows = tables.setdefault(compared.verdict, {})
        rows.setdefault((*cells, setting.reason), []).append(setting.location)
    yield f"**equal** ({equal_count}): {'; '.join(_join_entries(equal))}."
    for verdict, rows in tables.items():
        names = ["where", "setting (key)", "the text", "`paper` preset", "reason"]
        if verdict == "no key":
            names.remove("`paper` preset")
        lines = [_make_row(*names), "|---" * len(names) + "|"]
        reason_above = ""
        places = ["; ".join(dict.fromkeys(locations)) for locations in rows.values()]
        for where, (*cells, reason) in zip(_shorten_repeats(places), rows, strict=True):
            is_again = len(reason.split()) >= _LONG and reason == reason_above
            reason_above = reason
            shown = _AS_ROW_ABOVE if is_again else _add_links(reason)
            lines.append(_make_row(where, *cells, shown))
        yield f"**{verdict}**:"
        yield "\n".join(lines)


def _join_entries(entries: Iterable[str]) -> list[str]:
    """Return entries "NAME, DETAIL: VALUE", those of one name and value as one entry."""
    details: dict[tuple[str, str], list[str]] = {}
    for entry in entries:
        name, separator, value = entry.rpartition(": ")
        head, comma, detail = name.partition(", ")
        key = (head, separator + value)
        details.setdefault(key, []).append(comma + detail)
    return [
        f"{head}{''.join(parts)}{value}" for (head, value), parts in details.items()
    ]


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
    undecided = (
        str(sum(counts[paper][status] for status in UNDECIDED)) for paper in PAPERS
    )
    yield _make_row("open", "the rows with a cost", *undecided)
    totals = (str(sum(counts[paper].values())) for paper in PAPERS)
    yield _make_row("all rows", "", *totals)


def _make_missing() -> Iterable[str]:
    """Yield the rows of the table of what each paper lacks for the badge."""
    yield _make_row("paper", "missing", "run that decides it", "cost")
    yield "|---|---|---|---|"
    for row in read_missing():
        title, _ = PAPERS[row.paper]
        yield _make_row(title, _add_links(row.missing), _add_links(row.run), row.cost)


def make_page(plan: Plan) -> str:
    """Return the page, in Markdown."""
    items = sum(paper in PAPERS for paper, _ in plan.items)
    planned = (
        f"The `paper` preset plans {len(plan.runs):,} runs, and {items} tables and"
        " figures of these\npapers: `uv run snakemake -n --configfile"
        " config/presets/paper.yaml`."
    )
    parts = [
        _INTRODUCTION,
        "## Count",
        "\n".join(_make_summary()),
        planned,
        _BADGE,
        "\n".join(_make_missing()),
        _HOW_TO,
    ]
    runs = read_runs().values()
    listed: dict[str, str] = {}
    for paper, (title, findings) in PAPERS.items():
        used_runs = {result.run for result in read_results(paper)}
        own_runs = [
            row
            for row in runs
            if row.paper == paper or (not row.paper and row.name in used_runs)
        ]
        new_runs = [row for row in own_runs if row.name not in listed]
        above = [
            f"`{row.name}` ({listed[row.name]})"
            for row in own_runs
            if row.name in listed
        ]
        listed |= {row.name: title for row in new_runs}
        parts += [
            f"## {title}",
            f"[Findings](findings/{findings}.md)",
            "### Results",
            *_make_result_tables(paper),
            *_make_lists(paper),
            "### How our runs differ from the text",
            "| runs | what was run | settings that differ: ours (the text's) | open in"
            " the text: ours | fitted |\n|---|---|---|---|---|\n"
            + "\n".join(_make_run_rows(new_runs)),
            *([f"Listed above: {', '.join(above)}."] if above else []),
            "### The paper's settings and the `paper` preset",
            *_make_settings(paper, plan),
        ]
    return "\n\n".join(parts) + "\n"


_INTRODUCTION = """# Fidelity: the papers' results and settings beside ours

Every table, figure, algorithm and quantitative claim of the five papers: what is printed, what we measured, whether our settings are
the text's, and what explains a difference. Numbers that the papers quote from other work are left out. Equations that only define a
method stand in one row with their algorithm.

- *published*: the printed number, from `config/published.csv` where it has it. DP-FNAS's errors are shown as accuracies in %.
- *ours*: our number with its 95 % interval, its page, and its row of [measurements](measurements.md).
- *our runs*: the settings of these runs, listed below each paper's results.
- *difference*: ours less the printed number.
- *where*: section, table or figure (″: as in the row above); our item has its name (`table2`, `figure4a`) or that in brackets.
- *the text*, of a setting: a dash where it does not state the value.

`docs/fidelity/settings.csv` has section, key and wording of each setting, also of the *equal* ones, and the values of their longer
lists. The data sets that a cost needs (CIFAR-FS, Wiki-3029) are not on our machine.

## Rules

`tools/fidelity.py` refuses a row that breaks one of these rules where a program can see it.

1. **reproduced** needs the paper's own quantity, data set and stated settings, and a number that training or an independent
   computation produced. If a free value was solved from the printed number, if training ends where that number is reached, if the
   algorithm is not in the paper, if a stated setting differs, or if the agreement is chance, the row is *fitted*, *agrees, other
   settings* or *not decided*.
2. **explained** needs a second number on the same data set and task in which one named cause is changed, in which our run differs
   from the text or the released code. Its interval has the printed number (*partly*: it is nearer, and not past it), and does not
   overlap with the first. What our run already has explains nothing, nor does our size as long as the larger run is missing.
3. **effect found** and **effect not found** need the statement's quantity, baseline, data set and settings. An account decides no
   statement on accuracy, and a grid that cannot contain the optimum, or intervals that overlap, decide nothing. At another scale the
   effect is *seen* or *not seen*, and stays open.
4. **One number for each thing.** Where two tests give two values, all rows use the one that the paper's test asks for, and name the
   other.
5. Everything else is **not decided**, with its cost in hours (of one core and one seed, unless the row says otherwise) or what it
   needs. A statement on several data sets stays open until each has run."""

_BADGE = """## What is missing for the badge

"Results reproduced" asks that the main claims are reproduced, or that a difference is explained. No paper has that yet. For each:"""

_HOW_TO = """## How to add a number

`uv run python tools/fidelity.py` writes this page from `docs/fidelity/`.

1. Add its row to [measurements](measurements.md), the number to `docs/measurements/numbers.txt` and to a page of findings or results.
2. In `docs/fidelity/claims/PAPER.csv` edit `ours` (word for word as on that page), `page`, `measurement`, `run`, `status` and
   `explanation`; for an effect the `baseline`, for an explanation `cause`, `from` and `to`, for an open row the `cost`. New settings
   need a row in `docs/fidelity/runs.csv`.
3. Run the tool. It lists what breaks a rule.

A changed preset needs step 3 alone. If a setting then differs from the text, `docs/fidelity/settings.csv` needs a reason."""


def main() -> None:
    """Write the page, and print the problems of its data."""
    plan = read_paper_plan()
    for problem in find_problems(plan):
        print(problem)
    PAGE.write_text(make_page(plan), encoding="utf-8")


if __name__ == "__main__":
    main()
