"""A figure in PDF, as a paper includes it."""

from collections.abc import Callable
from pathlib import Path

from dpfedbench.results import figure_style, figures
from dpfedbench.results.items import Item

Describe = Callable[[str], Item]


def test_a_figure_in_pdf_is_the_same_each_time(
    described: Describe, results: Path, published: Path, tmp_path: Path
) -> None:
    made = []
    for name in ("one", "two"):
        drawing, _ = figures.make(described("figure4b"), results, published)
        figure_style.save_pdf(drawing, tmp_path / name)
        made.append((tmp_path / name).read_bytes())
    assert made[0].startswith(b"%PDF-") and made[0] == made[1]
    assert b"/Type3" not in made[0] and b"/FontFile2" in made[0]
