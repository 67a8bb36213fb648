"""One format for accuracies, times and ε everywhere, and the writers of CSV and
Markdown.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from dpfedbench.evaluation.intervals import Interval
from dpfedbench.files import defused
from dpsum.accounting.profiles import Entry

NOTHING = "–"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shown:
    """A value for people: its text, a note in small print, and the key that it is
    sorted by (None comes last).
    """

    text: str
    note: str = ""
    key: float | str | None = None

    @property
    def line(self) -> str:
        """Both texts in one line."""
        return f"{self.text} ({self.note})" if self.note else self.text


@dataclasses.dataclass(frozen=True, kw_only=True)
class Listing:
    """A table for people: in each row a value for each heading, and below the table
    notes, a sentence or two each.
    """

    title: str
    rows: Sequence[Mapping[str, Shown]]
    notes: Sequence[str]

    def markdown(self, command: str) -> str:
        """The table in Markdown, with the command that makes it; without a row there
        are only the notes.
        """
        texts = [[shown.line for shown in row.values()] for row in self.rows]
        table = [*markdown_table(list(self.rows[0]), texts), ""] if self.rows else []
        notes = [f"- {note}" for note in (*self.notes, f"Made by `{command}`.")]
        return "\n".join([f"# {self.title}", "", *table, *notes, ""])


def words(text: str, note: str = "") -> Shown:
    """A text, which is sorted by itself."""
    return Shown(text=text or NOTHING, note=note, key=text or None)


def number(
    value: float | None, form: str = ".3g", *, nothing: str = NOTHING, note: str = ""
) -> Shown:
    """A number; `nothing` stands for None and NaN."""
    if value is None or math.isnan(value):
        return Shown(
            text=nothing, note=note, key=None if nothing == NOTHING else nothing
        )
    return Shown(
        text="∞" if math.isinf(value) else f"{value:{form}}",
        note=note,
        key=float(value),
    )


def between(
    low: float,
    high: float,
    form: str = ".3g",
    *,
    nothing: str = NOTHING,
    note: str = "",
) -> Shown:
    """A range, as one number where both ends read the same; sorted by its upper end."""
    first, last = (
        number(low, form, nothing=nothing),
        number(high, form, nothing=nothing, note=note),
    )
    return (
        last
        if first.text == last.text
        else dataclasses.replace(last, text=f"{first.text} to {last.text}")
    )


def epsilon(given: Entry) -> Shown:
    """An ε: both ends where they differ, and its status unless it is proved and no
    audit is above it.
    """
    if math.isnan(given.epsilon_high):
        return Shown(text=NOTHING)
    return between(
        given.epsilon_low,
        given.epsilon_high,
        note="" if given.stands == "proved" else given.stands,
    )


def accuracy(given: Interval) -> Shown:
    """A percentage and its interval: the t interval knows nothing of 0 and 100 %, a
    reader does.
    """
    low, high = (min(100.0, max(0.0, value)) for value in (given.low, given.high))
    return number(
        given.mean,
        ".1f",
        note="no interval" if math.isnan(given.low) else f"{low:.1f} to {high:.1f}",
    )


def milliseconds(given: Interval) -> Shown:
    """A time and its interval."""
    spread = f"{max(given.low, 0.0):.3g} to {given.high:.3g}"
    return number(given.mean, note="one seed" if math.isnan(given.low) else spread)


def plural(count: int | str, what: str) -> str:
    """E.g. "1 seed", "3 seeds", "1 to 3 seeds"."""
    return f"{count} {what}{'' if str(count) == '1' else 's'}"


def span(counts: Iterable[int]) -> int | str:
    """The lowest and the highest of some counts, as one where they are equal."""
    ordered = sorted(counts)
    return ordered[0] if ordered[0] == ordered[-1] else f"{ordered[0]} to {ordered[-1]}"


def csv_text(table: pd.DataFrame, nothing: str = "") -> str:
    """CSV text: six significant digits, "inf" for no bound, true and false in lower
    case.

    A text that a spreadsheet would take for a formula is defused (`files.defused`).
    """

    def cell(value: object) -> object:
        return str(value).lower() if isinstance(value, bool) else defused(value)

    texts = {
        str(name): table[name].map(cell)
        for name in table.select_dtypes(exclude="number")
    }
    shown = table.assign(**texts)
    return str(
        shown.to_csv(
            index=False, na_rep=nothing, float_format="%.6g", lineterminator="\n"
        )
    )


def escaped(text: str) -> str:
    """A text for Markdown, in one line, in which no HTML can begin."""
    return " ".join(text.split()).replace("<", "&lt;")


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table in Markdown."""
    lines = [f"| {' | '.join(headings)} |", f"|{' --- |' * len(headings)}"]
    safe = ([escaped(text).replace("|", r"\|") for text in fields] for fields in rows)
    return lines + [f"| {' | '.join(fields)} |" for fields in safe]
