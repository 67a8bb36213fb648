"""The columns of every table, as CSV and for readers, from `table_columns.csv`.

A line has the table; the column's name in the CSV and its heading for readers, either
of which may be empty; the columns of a row that it shows; the column that stands beside
them in small print; how they are formatted; and the option with which a table has it,
if not always.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from dpfedbench.results.formats import (
    Formatted,
    Listing,
    format_costs,
    format_interval,
    format_number,
    format_range,
    format_text,
)
from dpfedbench.results.summary import each_row

_LINES = pd.read_csv(Path(__file__).with_suffix(".csv"), keep_default_na=False)


def csv_columns(rows: pd.DataFrame, table: str, *options: str) -> pd.DataFrame:
    """Return the columns of rows that the CSV of a table has, by their names there."""
    lines = _lines(table, options, "csv")
    columns = lines["column"].str.split().str[0]
    return rows.reindex(columns=columns).set_axis(csv_names(table, *options), axis=1)


def csv_names(table: str, *options: str) -> list[str]:
    """Return the names of the columns that the CSV of a table has."""
    names: list[str] = _lines(table, options, "csv")["csv"].to_list()
    return names


def listing_of(
    rows: pd.DataFrame,
    table: str,
    *options: str,
    title: str,
    notes: Sequence[str],
    **words: str,
) -> Listing:
    """Return rows as a table for readers.

    Args:
        rows: the rows.
        table: the name of the table in `table_columns.csv`.
        options: those with which further columns are shown.
        title: the title of the table.
        notes: what stands below it.
        words: what stands in headings for {names} in braces.
    """
    lines = _lines(table, options, "heading")
    headings = lines["heading"].map(lambda heading: heading.format(**words))
    lines = lines.assign(heading=headings)
    columns = list(each_row(lines))
    sources = list(each_row(rows))
    listed = [
        {column.heading: _formatted(row, column) for column in columns}
        for row in sources
    ]
    return Listing(
        title=title,
        rows=listed,
        notes=notes,
        numeric=frozenset(lines.loc[lines["format"] != "text", "heading"]),
        sources=sources,
    )


def _lines(table: str, options: Iterable[str], shown: str) -> pd.DataFrame:
    """Return the lines of a table that have a name in the CSV, or a heading."""
    is_shown = _LINES["option"].isin(["", *options]) & (_LINES[shown] != "")
    return _LINES[(_LINES["table"] == table) & is_shown]


_FORMATS: dict[str, Callable[..., Formatted]] = {
    "text": format_text,
    "range": format_range,
    "percent interval": functools.partial(
        format_interval,
        form=".1f",
        limit=100,
    ),
    "time interval": format_interval,
    "costs": format_costs,
}


def _formatted(row: Any, line: Any) -> Formatted:
    values = [getattr(row, name) for name in line.column.split()]
    note = getattr(row, line.note) if line.note else ""
    if line.format in _FORMATS:
        return _FORMATS[line.format](*values, note=note)
    return format_number(values[0], line.format, note=note)
