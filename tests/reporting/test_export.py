"""What a paper includes: LaTeX and PDF have what the table and the figure have."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from dpfedbench.reporting import export, figures, tables
from dpfedbench.reporting.described import Item

Describe = Callable[[str], Item]


def test_a_table_in_latex_has_the_tables_rows(
    described: Describe, results: Path, published: Path
) -> None:
    table = tables.read(described("table2"), results, published)
    text = export.latex(table, "snakemake --cores all results/x_y.tex")
    code = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    assert code.isascii(), "signs that plain pdfLaTeX does not know"
    assert code.startswith("\\begin{table}[tbp]\n\\caption{") and code.endswith(
        "\\end{table}"
    )
    assert r"\label{tab:dp-fedmeta-table2}" in code and code.count(
        r"\begin{"
    ) == code.count(r"\end{")
    for rule in ("toprule", "midrule", "bottomrule"):
        assert code.count(f"\\{rule}\n") == 1
    heading, *lines = [
        re.split(r"(?<!\\) & ", line[:-3])
        for line in code.splitlines()
        if line.endswith(r"\\")
    ]
    assert len(lines) == len(table.rows) and {len(line) for line in lines} == {
        len(heading)
    }
    assert (
        r"$\varepsilon$ that holds" in heading
        and r"accuracy, \% (95 \% interval)" in heading
    )
    row = next(
        dict(zip(heading, line, strict=True))
        for line in lines
        if line[heading.index("method")] == "DP-AGR"
    )
    assert (row["data"], row["task"], row[r"$\varepsilon$ that holds"]) == (
        "glyphs",
        "5-way 1-shot",
        "4.89",
    )
    agr = next(found for found in table.rows if found.cell.series == "dp-agr")
    assert row[r"accuracy, \% (95 \% interval)"].startswith(f"{agr.value.mean:.1f} (")
    assert (
        "% Made by: snakemake --cores all results/x_y.tex\n" in text
        and agr.cell.group in text
    )


def test_what_latex_would_read_is_escaped(
    described: Describe, results: Path, published: Path
) -> None:
    item = described("table2")
    spec = {**item.spec, "title": r"50 % of R&D_1 #2 \input{x} ε = ∞"}
    cells = tuple(
        dataclasses.replace(cell, variant="a_b & 5%") for cell in item.cells[:1]
    )
    table = tables.read(
        dataclasses.replace(item, spec=spec, cells=cells), results, published
    )
    text = export.latex(table, "snakemake")
    assert (
        r"\caption{50 \% of R\&D\_1 \#2 \textbackslash input\{x\} $\varepsilon$ ="
        r" $\infty$}" in text
    )
    assert r"a\_b \& 5\%" in text


def test_a_figure_in_pdf_is_the_same_each_time(
    described: Describe, results: Path, published: Path, tmp_path: Path
) -> None:
    made = []
    for name in ("one", "two"):
        drawing, _ = figures.make(described("figure4b"), results, published)
        export.save_pdf(drawing, tmp_path / name)
        made.append((tmp_path / name).read_bytes())
    assert made[0].startswith(b"%PDF-") and made[0] == made[1]
    assert b"/Type3" not in made[0] and b"/FontFile2" in made[0]


@pytest.mark.parametrize("sign", ["ε", "δ", "∞", "–"])
def test_signs_have_a_name_in_latex(sign: str) -> None:
    assert sign.translate(export._SIGNS).isascii()
