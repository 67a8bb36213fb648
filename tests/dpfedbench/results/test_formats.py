"""Texts for people and spreadsheets: no HTML of a title, no formula of a text."""

import dataclasses
import io

import pandas as pd
import pytest

from dpfedbench.results import formats, tables

from .conftest import changed_cells


def read_back(frame):
    return pd.read_csv(io.StringIO(formats.csv_text(frame), newline=""))


@pytest.mark.parametrize(
    "text", ["=cmd|' /C calc'!A0", "+1+cmd", "-2+3+cmd", "@SUM(A1)", "\tx"]
)
def test_csv_text_defuses_formulas_and_leaves_numbers_as_they_are(text):
    values = {"variant": [text, "z\r\n= 1"], "value": [-1.5, float("-inf")]}
    read = read_back(pd.DataFrame(values | {"b": ["-3", "+1e3"]}))
    assert read["variant"].tolist() == [f"'{text}", "z = 1"]
    assert read["value"].tolist() == values["value"]
    assert read["b"].tolist() == [-3.0, 1000.0]


def test_markdown_shows_html_as_text(described, results, published):
    hostile = "<img src=x onerror=alert(1)>\n\n<script>|alert(1)</script>"
    item = changed_cells(described("table2"), variant=hostile)
    item = dataclasses.replace(item, spec=item.spec | {"title": hostile})
    text = tables.listing(tables.read(item, results, published)).markdown("snakemake")
    assert "<img" not in text
    assert "<script" not in text
    assert text.startswith("# &lt;img src=x onerror=alert(1)> &lt;script>|alert(1)")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({row.replace(r"\|", "").count("|") for row in rows}) == 1
