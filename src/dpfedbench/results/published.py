"""The numbers that papers print, from `config/published.csv`."""

from pathlib import Path

import pandas as pd

from dpfedbench.errors import BenchError
from dpfedbench.files import convert_numbers, read_csv

_TEXTS = [
    "paper",
    "item",
    "dataset",
    "task",
    "method",
    "variant",
    "source",
    "quantity",
]
_KEYS = ["dataset", "task", "method", "variant"]
_NUMBERS = ["x", "value", "spread"]
_REMEDY = "correct the file"


def read_published(path: str | Path, paper: str, item: str) -> pd.DataFrame:
    """Return the published numbers that one table or figure shows beside ours.

    Rows whose `quantity` is not empty are of other quantities (parameters, GPU days,
    epochs) and are left out: docs/fidelity.md compares them.

    Returns:
        Columns dataset, task, method, variant, source, and as numbers x (the place on a
        figure's axis, or NaN), value and spread (the printed ±, or NaN).

    Raises:
        BenchError: the file has two numbers for one thing, or cannot be read.
    """
    table = read_csv(path, [*_TEXTS, *_NUMBERS], remedy=_REMEDY)
    of_item = (table["paper"] == paper) & (table["item"] == item)
    numbers = table[of_item & (table["quantity"] == "")].reset_index(drop=True)
    numbers = convert_numbers(numbers, _NUMBERS, f"{path}", remedy=_REMEDY)
    numbers[_NUMBERS] = numbers[_NUMBERS].astype(float)
    repeated = numbers[numbers.duplicated([*_KEYS, "x"])]
    for cell in repeated[_KEYS].to_numpy():
        raise BenchError(
            f"{path} has two numbers of {paper} {item} for"
            f" {', '.join(filter(None, cell))}: keep one of the lines"
        )
    return numbers[[*_KEYS, "source", *_NUMBERS]]
