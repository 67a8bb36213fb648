"""A figure as PDF, for a paper to include unchanged."""

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure


def save_pdf(figure: Figure, path: Path) -> None:
    """Write a figure as PDF, with fonts as publishers want them (TrueType), and no
    date: the same bytes each time.
    """
    with matplotlib.rc_context({"pdf.fonttype": 42}):
        figure.savefig(path, format="pdf", metadata={"CreationDate": None})
