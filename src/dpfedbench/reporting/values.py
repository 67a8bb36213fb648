"""One format for accuracies, times and ε everywhere, and the writers of CSV and Markdown."""

import csv
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
    """A value for people: its text, a note in small print, and the key that it is sorted by (None comes last)."""

    text: str
    note: str = ""
    key: float | str | None = None

    @property
    def line(self) -> str:
        """Both texts in one line."""
        return f"{self.text} ({self.note})" if self.note else self.text

    @property
    def bold(self) -> str:
        """The same in Markdown, the value in bold."""
        return f"**{self.text}** ({self.note})"


def words(text: str, note: str = "") -> Shown:
    """A text, which is sorted by itself."""
    return Shown(text=text or NOTHING, note=note, key=text or None)


def number(value: float | None, form: str = ".3g", *, nothing: str = NOTHING) -> Shown:
    """A number; `nothing` stands for None and NaN."""
    if value is None or math.isnan(value):
        return Shown(text=nothing, key=None if nothing == NOTHING else nothing)
    return Shown(text="∞" if math.isinf(value) else f"{value:{form}}", key=float(value))


def between(low: float, high: float, form: str = ".3g", *, nothing: str = NOTHING) -> Shown:
    """A range, as one number where both ends read the same; sorted by its upper end."""
    first, last = number(low, form, nothing=nothing), number(high, form, nothing=nothing)
    return last if first.text == last.text else dataclasses.replace(last, text=f"{first.text} to {last.text}")


def epsilon(given: Entry) -> Shown:
    """An ε: both ends where they differ, and its status unless it is proved and no audit is above it."""
    if math.isnan(given.epsilon_high):
        return Shown(text=NOTHING)
    note = "" if given.stands == "proved" else given.stands
    return dataclasses.replace(between(given.epsilon_low, given.epsilon_high), note=note)


def accuracy(given: Interval) -> Shown:
    """A percentage and its interval: the t interval knows nothing of 0 and 100 %, a reader does."""
    low, high = (min(100.0, max(0.0, value)) for value in (given.low, given.high))
    note = "no interval" if math.isnan(given.low) else f"{low:.1f} to {high:.1f}"
    return dataclasses.replace(number(given.mean, ".1f"), note=note)


def milliseconds(given: Interval) -> Shown:
    """A time and its interval."""
    note = "one seed" if math.isnan(given.low) else f"{max(given.low, 0.0):.3g} to {given.high:.3g}"
    return dataclasses.replace(number(given.mean), note=note)


def plural(count: int | str, what: str) -> str:
    """E.g. "1 seed", "3 seeds", "1 to 3 seeds"."""
    return f"{count} {what}{'' if str(count) == '1' else 's'}"


def span(counts: Iterable[int]) -> int | str:
    """The lowest and the highest of some counts, as one where they are equal."""
    low, high = min(found := list(counts)), max(found)
    return low if low == high else f"{low} to {high}"


def csv_text(table: pd.DataFrame, nothing: str = "") -> str:
    """CSV text: six significant digits, "inf" for no bound, true and false in lower case.

    A text that a spreadsheet would take for a formula is defused (`files.defused`).
    """
    shown = table.assign(**{str(name): table[name].map(_cell) for name in table.select_dtypes(exclude="number")})
    return str(
        shown.to_csv(
            index=False, float_format="%.6g", lineterminator="\n", na_rep=nothing, quoting=csv.QUOTE_MINIMAL
        )
    )  # fmt: skip


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return defused(value)


def escaped(text: str) -> str:
    """A text for Markdown, in one line, in which no HTML can begin."""
    return " ".join(text.split()).replace("<", "&lt;")


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table in Markdown."""
    lines = [f"| {' | '.join(headings)} |", f"|{' --- |' * len(headings)}"]
    safe = ([escaped(text).replace("|", r"\|") for text in fields] for fields in rows)
    return lines + [f"| {' | '.join(fields)} |" for fields in safe]


def document(title: str, rows: Sequence[Mapping[str, str]], notes: Iterable[str], command: str) -> str:
    """A table in Markdown with its title, its notes, and the command that makes it.

    Args:
        title: of the table.
        rows: texts by the columns' headings, which are the first row's; without one there is no table.
        notes: a sentence each.
        command: that makes the table.
    """
    lines = [*markdown_table(list(rows[0]), [list(row.values()) for row in rows]), ""] if rows else []
    return "\n".join([f"# {title}", "", *lines, *(f"- {note}" for note in notes), f"- Made by `{command}`.", ""])


def in_lines(rows: Iterable[Mapping[str, Shown]]) -> list[dict[str, str]]:
    """Rows of values as texts, each in one line."""
    return [{name: shown.line for name, shown in row.items()} for row in rows]
