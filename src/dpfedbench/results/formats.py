"""One format for accuracies, times and ε everywhere, and the writers of CSV and
Markdown.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from dpfedbench.evaluation.intervals import Interval
from dpfedbench.files import defused

NOTHING = "–"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Formatted:
    """A value for readers: its text, a note in small print, the key that it is sorted
    by (None comes last), and links behind the text, which only the page shows.
    """

    text: str
    note: str = ""
    key: float | str | None = None
    links: Sequence[tuple[str, str]] = ()

    @property
    def line(self) -> str:
        """Text and note in one line."""
        return f"{self.text} ({self.note})" if self.note else self.text


@dataclasses.dataclass(frozen=True, kw_only=True)
class Listing:
    """A table for readers: in each row a value for each heading, and notes below."""

    title: str
    rows: Sequence[Mapping[str, Formatted]]
    notes: Sequence[str]

    def markdown(self, command: str) -> str:
        """Return the table in Markdown, with the command that makes it; without rows
        only the notes.
        """
        texts = [[value.line for value in row.values()] for row in self.rows]
        table = [*markdown_table(list(self.rows[0]), texts), ""] if self.rows else []
        notes = [
            f"- {escaped(note)}" for note in (*self.notes, f"Made by `{command}`.")
        ]
        return "\n".join([f"# {escaped(self.title)}", "", *table, *notes, ""])


def format_text(text: str, note: str = "") -> Formatted:
    """Format a text, which is sorted by itself."""
    return Formatted(text=text or NOTHING, note=note, key=text or None)


def format_number(
    value: float | None, form: str = ".3g", *, nothing: str = NOTHING, note: str = ""
) -> Formatted:
    """Format a number; `nothing` stands for None and NaN."""
    if value is None or math.isnan(value):
        key = None if nothing == NOTHING else nothing
        return Formatted(text=nothing, note=note, key=key)
    text = "∞" if math.isinf(value) else f"{value:{form}}"
    return Formatted(text=text, note=note, key=float(value))


def format_range(
    low: float,
    high: float,
    form: str = ".3g",
    *,
    nothing: str = NOTHING,
    note: str = "",
) -> Formatted:
    """Format a range, as one number where both ends read the same; sorted by its upper
    end.
    """
    first = format_number(low, form, nothing=nothing)
    last = format_number(high, form, nothing=nothing, note=note)
    if first.text == last.text:
        return last
    return dataclasses.replace(last, text=f"{first.text} to {last.text}")


def status_of(row: Any, name: str) -> str:
    """Return the status of an ε of a row, `claimed` or `proven`, with what its audit
    says against it.
    """
    status = getattr(row, f"{name}_status")
    excess = getattr(row, f"{name}_excess")
    return f"{status}, {excess}" if excess else str(status)


def format_epsilon(row: Any, name: str) -> Formatted:
    """Format an ε of a row, `claimed` or `proven`: both ends where they differ, and its
    status unless it is proved and no audit exceeds it.
    """
    ends = {
        "claimed": ("epsilon_claimed_low", "epsilon_claimed"),
        "proven": ("epsilon_proven_low", "epsilon_proven_high"),
    }
    low, high = (getattr(row, end) for end in ends[name])
    if math.isnan(high):
        return Formatted(text=NOTHING)
    status = status_of(row, name)
    return format_range(low, high, note="" if status == "proved" else status)


def format_accuracy(interval: Interval) -> Formatted:
    """Format a percentage and its interval, which is cut at 0 and 100 %."""
    if math.isnan(interval.low):
        return format_number(interval.mean, ".1f", note="no interval")
    low = max(0.0, interval.low)
    high = min(100.0, interval.high)
    return format_number(interval.mean, ".1f", note=f"{low:.1f} to {high:.1f}")


def format_milliseconds(interval: Interval) -> Formatted:
    """Format a time and its interval."""
    if math.isnan(interval.low):
        return format_number(interval.mean, note="one seed")
    spread = f"{max(interval.low, 0.0):.3g} to {interval.high:.3g}"
    return format_number(interval.mean, note=spread)


def format_duration(seconds: float) -> Formatted:
    """Format a time in the unit that suits it."""
    if math.isnan(seconds):
        return Formatted(text=NOTHING)
    if seconds >= 5400:
        text = f"{seconds / 3600:.1f} h"
    elif seconds >= 90:
        text = f"{seconds / 60:.0f} min"
    else:
        text = f"{seconds:.0f} s"
    return Formatted(text=text, key=float(seconds))


def plural(count: int | str, noun: str) -> str:
    """Return e.g. "1 seed", "3 seeds", "1 to 3 seeds"."""
    return f"{count} {noun}{'' if str(count) == '1' else 's'}"


def span(counts: Iterable[int]) -> int | str:
    """Return the lowest and the highest of some counts, as one where they are equal."""
    ordered = sorted(counts)
    if ordered[0] == ordered[-1]:
        return ordered[0]
    return f"{ordered[0]} to {ordered[-1]}"


def notice_sentences(named: Iterable[tuple[str, Sequence[str]]]) -> list[str]:
    """Return the notices of private runs as sentences.

    Args:
        named: names of the cells, with their notices. A notice that not all private
            cells have begins with the names of those that do.
    """
    private = [(name, notices) for name, notices in named if notices]
    sentences = []
    for notice in dict.fromkeys(text for _, notices in private for text in notices):
        names = [name for name, notices in private if notice in notices]
        if len(names) == len(private):
            sentences.append(f"{notice[:1].upper()}{notice[1:]}.")
        else:
            sentences.append(f"{', '.join(dict.fromkeys(names))}: {notice}.")
    return sentences


def csv_text(table: pd.DataFrame, nothing: str = "") -> str:
    """Return CSV text: six significant digits, "inf" for no bound, true and false in
    lower case.

    A text that a spreadsheet would take for a formula is defused (`files.defused`).
    """

    def cell(value: object) -> object:
        return str(value).lower() if isinstance(value, bool) else defused(value)

    texts = {
        str(name): table[name].map(cell)
        for name in table.select_dtypes(exclude="number")
    }
    return str(
        table.assign(**texts).to_csv(
            index=False, na_rep=nothing, float_format="%.6g", lineterminator="\n"
        )
    )


def escaped(text: str) -> str:
    """Return a text for Markdown, in one line, in which no HTML can begin."""
    return " ".join(text.split()).replace("<", "&lt;")


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table in Markdown."""
    lines = [f"| {' | '.join(headings)} |", f"|{' --- |' * len(headings)}"]
    for fields in rows:
        safe = [escaped(text).replace("|", r"\|") for text in fields]
        lines.append(f"| {' | '.join(safe)} |")
    return lines
