"""A figure in PDF, as a paper includes it."""

from collections.abc import Callable
from pathlib import Path

from dpfedbench.results import figure_style, figures
from dpfedbench.results.items import Item

Describe = Callable[[str], Item]


def test_pdf_of_a_figure_has_the_same_bytes_each_time(
    described: Describe, results: Path, published: Path, tmp_path: Path
) -> None:
    contents = []
    for name in ("one", "two"):
        drawing, _ = figures.make(described("figure4b"), results, published)
        figure_style.save_pdf(drawing, tmp_path / name)
        contents.append((tmp_path / name).read_bytes())
    assert contents[0].startswith(b"%PDF-") and contents[0] == contents[1]
    assert b"/Type3" not in contents[0] and b"/FontFile2" in contents[0]
