"""The numbers that papers print, from `config/published.csv`."""

from pathlib import Path

import pandas as pd

from dpfedbench.errors import BenchError

_TEXTS = ["dataset", "task", "method", "variant", "source"]


def read_published(path: str | Path, paper: str, item: str) -> pd.DataFrame:
    """Return the published numbers that one table or figure shows beside ours.

    Rows whose `quantity` is not empty are of other quantities (parameters, GPU days,
    epochs) and are left out: docs/fidelity.md compares them.

    Returns:
        Columns dataset, task, method, variant, source, and as numbers x (the place on a
        figure's axis, or NaN), value and spread (the printed ±, or NaN).

    Raises:
        BenchError: the file is missing, lacks a column, has a number that cannot be
            read, or two numbers for one thing.
    """
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
    except FileNotFoundError as error:
        raise BenchError(
            f"{path} is missing: restore it from the repository"
        ) from error
    needed = {"paper", "item", "x", "value", *_TEXTS}
    if missing := needed - set(table):
        raise BenchError(
            f"{path} has no column {sorted(missing)[0]}: its first line must name"
            f" {sorted(needed)}"
        )
    for name in ("quantity", "spread"):
        if name not in table:
            table[name] = ""
    table = table.fillna("")  # lines may be short
    of_item = (table["paper"] == paper) & (table["item"] == item)
    texts = table[of_item & (table["quantity"] == "")].reset_index(drop=True)
    numbers = texts[_TEXTS].copy()
    try:
        for name in ("x", "value", "spread"):
            numbers[name] = pd.to_numeric(texts[name]).astype(float)
    except ValueError as error:
        raise BenchError(
            f"a published number of {paper} {item} is not a number ({error})"
        ) from error
    repeated = numbers.duplicated(["dataset", "task", "method", "variant", "x"])
    if repeated.any():
        row = texts[repeated].iloc[0]
        cell = [row["dataset"], row["task"], row["method"], row["variant"]]
        cell.append(f"x {row['x']}" if row["x"] else "")
        raise BenchError(
            f"{path} has two numbers of {paper} {item} for"
            f" {', '.join(filter(None, cell))}: keep one of the lines"
        )
    return numbers
