"""One format for accuracies, times and ε everywhere, and the writers of CSV and
Markdown.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from dpfedbench.files import defused

NOTHING = "–"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Formatted:
    """A value for readers: its text, a note in small print, and the key that it is
    sorted by (None comes last).
    """

    text: str
    note: str = ""
    key: float | str | None = None

    @property
    def line(self) -> str:
        """Text and note in one line."""
        if self.note:
            return f"{self.text} ({self.note})"
        return self.text


@dataclasses.dataclass(frozen=True, kw_only=True)
class Listing:
    """A table for readers: in each row a value for each heading, and notes below.

    `numeric` are the headings of numbers, which the page aligns to the right, and
    `sources` the rows that were formatted.
    """

    title: str
    rows: Sequence[Mapping[str, Formatted]]
    notes: Sequence[str]
    numeric: frozenset[str] = frozenset()
    sources: Sequence[Any] = ()

    def markdown(self, command: str) -> str:
        """Return the table in Markdown, with the command that makes it; without rows
        only the notes.
        """
        texts = [[value.line for value in row.values()] for row in self.rows]
        table = []
        if self.rows:
            table = [*markdown_table(list(self.rows[0]), texts), ""]
        notes = [
            f"- {escaped(note)}" for note in (*self.notes, f"Made by `{command}`.")
        ]
        return "\n".join([f"# {escaped(self.title)}", "", *table, *notes, ""])


def format_text(text: str, note: str = "") -> Formatted:
    """Format a text, which is sorted by itself."""
    return Formatted(
        text=text or NOTHING,
        note=note,
        key=text or None,
    )


def format_number(value: float, form: str = ".3g", note: str = "") -> Formatted:
    """Format a number."""
    if math.isnan(value):
        return Formatted(text=NOTHING, note=note)
    text = f"{value:{form}}"
    if math.isinf(value):
        text = "∞"
    return Formatted(
        text=text,
        note=note,
        key=float(value),
    )


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
    value: float,
    low: float,
    high: float,
    form: str = ".3g",
    *,
    limit: float = math.inf,
    note: str = "",
) -> Formatted:
    """Format a number and its interval, which is cut at 0 and at the limit."""
    if math.isnan(value):
        return format_text("")
    interval = "no interval"
    if not math.isnan(low):
        interval = f"{max(low, 0):{form}} to {min(high, limit):{form}}"
    return format_number(value, form, note=note or interval)


def format_costs(rounds: float, clients: float, note: str = "") -> Formatted:
    """Format what a training costs: its rounds times the clients of a round, sorted by
    their product.
    """
    if not rounds or math.isnan(clients):
        return Formatted(text="no training", note=note, key=0.0)
    return Formatted(
        text=f"{rounds:,.0f} × {plural(f'{clients:,.0f}', 'client')}",
        note=note,
        key=float(rounds * clients),
    )


def with_epsilon_texts(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows with `claimed_text` and `proven_text`, the status of each ε with what
    its audit says against it; and as a note of the ε unless it is just proved.
    """
    for name in ("claimed", "proven"):
        excess = rows[f"{name}_excess"]
        text = rows[f"{name}_status"] + (", " + excess).where(excess != "", "")
        note = text.replace({"proved": "", "none": ""})
        rows = rows.assign(**{f"{name}_text": text, f"{name}_note": note})
    return rows.copy()


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
    cells = pd.DataFrame({"name": list(names), "notice": list(notices)})
    private = cells[cells["notice"].str.len() > 0]
    sentences = []
    for notice, sharing in private.explode("notice").groupby("notice", sort=False):
        text = str(notice)
        if len(sharing) == len(private):
            sentences.append(f"{text[:1].upper()}{text[1:]}.")
        else:
            sentences.append(f"{', '.join(sharing['name'].unique())}: {text}.")
    return sentences


def csv_text(table: pd.DataFrame, nothing: str = "") -> str:
    """Return CSV text: six significant digits, "inf" for no bound, true and false in
    lower case.

    A text that a spreadsheet would take for a formula is defused (`files.defused`).
    """

    def cell(value: object) -> object:
        if isinstance(value, bool):
            return str(value).lower()
        return defused(value)

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
