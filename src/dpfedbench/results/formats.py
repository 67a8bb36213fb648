"""One format for accuracies, times and ε everywhere, and the writers of CSV and
Markdown.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

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
    value: float, form: str = ".3g", *, nothing: str = NOTHING, note: str = ""
) -> Formatted:
    """Format a number; `nothing` stands for NaN."""
    if math.isnan(value):
        return Formatted(text=nothing, note=note)
    text = "∞" if math.isinf(value) else f"{value:{form}}"
    return Formatted(text=text, note=note, key=float(value))


def format_range(low: float, high: float, note: str = "") -> Formatted:
    """Format a range, as one number where both ends read the same; sorted by its upper
    end.
    """
    first = format_number(low)
    last = format_number(high, note=note)
    if first.text == last.text:
        return last
    return dataclasses.replace(last, text=f"{first.text} to {last.text}")


def format_interval(
    value: float, low: float, high: float, form: str = ".1f", note: str = "no interval"
) -> Formatted:
    """Format a value with its interval; without one the note stands there."""
    if not math.isnan(low):
        note = f"{low:{form}} to {high:{form}}"
    return format_number(value, form, note=note)


def format_accuracy(row: Any, name: str = "accuracy") -> Formatted:
    """Format a percentage of a row and its interval, which is cut at 0 and 100 %."""
    value, low, high = (getattr(row, f"{name}{end}") for end in ("", "_low", "_high"))
    return format_interval(value, *np.clip([low, high], 0, 100))


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
    low = getattr(row, f"epsilon_{name}_low")
    high = row.epsilon_claimed if name == "claimed" else row.epsilon_proven_high
    if math.isnan(high):
        return format_text("")
    status = status_of(row, name)
    return format_range(low, high, note="" if status == "proved" else status)


def format_duration(seconds: float) -> Formatted:
    """Format a time in the unit that suits it."""
    if math.isnan(seconds):
        return format_text("")
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
    counts = list(counts)
    if min(counts) == max(counts):
        return counts[0]
    return f"{min(counts)} to {max(counts)}"


def notice_sentences(
    names: Iterable[str], notices: Iterable[Sequence[str]]
) -> list[str]:
    """Return the notices of private runs as sentences.

    Args:
        names: of the cells.
        notices: of each cell. A notice that not all private cells have begins with the
            names of those that do.
    """
    private = [pair for pair in zip(names, notices, strict=True) if pair[1]]
    sentences = []
    for notice in dict.fromkeys(text for _, texts in private for text in texts):
        sharing = [name for name, texts in private if notice in texts]
        if len(sharing) == len(private):
            sentences.append(f"{notice[:1].upper()}{notice[1:]}.")
        else:
            sentences.append(f"{', '.join(dict.fromkeys(sharing))}: {notice}.")
    return sentences


def csv_text(table: pd.DataFrame, nothing: str = "") -> str:
    """Return CSV text: six significant digits, "inf" for no bound, true and false in
    lower case.

    A text that a spreadsheet would take for a formula is defused (`files.defused`).
    """

    def cell(value: object) -> object:
        return str(value).lower() if isinstance(value, bool) else defused(value)

    texts = table.select_dtypes(exclude="number").astype(object).map(cell)
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
