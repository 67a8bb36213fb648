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
def test_csv_text_defuses_formulas(text):
    frame = pd.DataFrame({"variant": [text, "z\r\n= 1"], "value": [-1.5, 2.0]})
    read = read_back(frame)
    assert read["variant"].tolist() == [f"'{text}", "z = 1"]
    assert read["value"].tolist() == [-1.5, 2.0]


def test_csv_text_leaves_numbers_and_texts_of_numbers_as_they_are():
    frame = pd.DataFrame({"a": [-1.5, float("-inf")], "b": ["-3", "+1e3"]})
    read = read_back(frame)
    assert read["a"].tolist() == [-1.5, float("-inf")]
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


def test_notice_sentences_name_the_cells_of_a_notice_that_not_all_have():
    public = "simulated privacy: the noise seed is public"
    notices = [(public,), (public, "reads raw norms"), ()]
    assert formats.notice_sentences("abc", notices) == [
        "Simulated privacy: the noise seed is public.",
        "b: reads raw norms.",
    ]
