"""What is written for people and spreadsheets: no HTML of a title, no formula of a
text.
"""

import dataclasses
import io
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from dpfedbench.results import formats, tables
from dpfedbench.results.items import Item

from .conftest import changed_cells


@pytest.mark.parametrize(
    "text", ["=cmd|' /C calc'!A0", "+1+cmd", "-2+3+cmd", "@SUM(A1)", "\tx"]
)
def test_csv_text_defuses_formulas(text: str) -> None:
    frame = pd.DataFrame({"variant": [text, "z\r\n= 1"], "value": [-1.5, 2.0]})
    read = pd.read_csv(io.StringIO(formats.csv_text(frame), newline=""))
    assert read["variant"].tolist() == [f"'{text}", "z = 1"]
    assert read["value"].tolist() == [-1.5, 2.0]


def test_csv_text_leaves_numbers_as_they_are() -> None:
    """Numbers, and texts that are numbers, are what they were."""
    frame = pd.DataFrame(
        {"a": [-1.5, float("-inf")], "b": ["-3", "+1e3"], "c": [-1, "-x"]}
    )
    read = pd.read_csv(io.StringIO(formats.csv_text(frame)))
    assert read["a"].tolist() == [-1.5, float("-inf")] and read["b"].tolist() == [
        -3.0,
        1000.0,
    ]
    assert read["c"].tolist() == ["-1", "'-x"]


def test_markdown_shows_html_as_text(
    described: Callable[..., Item], results: Path, published: Path
) -> None:
    item = described("table2")
    hostile = "<img src=x onerror=alert(1)>\n\n<script>|alert(1)</script>"
    item = changed_cells(item, variant=hostile)
    item = dataclasses.replace(item, spec=item.spec | {"title": hostile})
    text = tables.listing(tables.read(item, results, published)).markdown("snakemake")
    assert "<img" not in text and "<script" not in text
    assert (
        text.splitlines()[0]
        == "# &lt;img src=x onerror=alert(1)> &lt;script>|alert(1)&lt;/script>"
    )
    rows = [
        line.replace(r"\|", "") for line in text.splitlines() if line.startswith("|")
    ]
    assert len({row.count("|") for row in rows}) == 1
