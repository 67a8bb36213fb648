"""Files that a paper can include unchanged: a table in LaTeX, a figure in PDF."""

from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

from dpfedbench.reporting.tables import Table, notes

# Signs of our texts that LaTeX has by another name; pandas escapes those that LaTeX
# itself gives a meaning.
_SIGNS: dict[int, str] = str.maketrans(
    {
        "ε": r"$\varepsilon$",
        "δ": r"$\delta$",
        "σ": r"$\sigma$",
        "α": r"$\alpha$",
        "∞": r"$\infty$",
        "×": r"$\times$",
        "≥": r"$\geq$",
        "≤": r"$\leq$",
        "–": "--",
        "−": "$-$",
        "\u00a0": "~",
    }
)


def latex(table: Table, command: str) -> str:
    r"""The table as a LaTeX `table` with booktabs' rules; its notes and where its
    numbers are from are comments.

    Columns in which no row has anything are left out. Needs `\usepackage{booktabs}`,
    and UTF-8 for other signs.
    """
    frame = pd.DataFrame(
        [
            {name: shown.line for name, shown in table.fields(row).items()}
            for row in table.rows
        ]
    )
    frame = frame.loc[:, [bool((frame[name] != "–").any()) for name in frame]]
    caption = (
        pd.DataFrame({table.item.spec["title"]: [""]})
        .to_latex(index=False, escape=True)
        .splitlines()[2]
    )
    text = frame.to_latex(
        index=False,
        escape=True,
        caption=caption.removesuffix(r" \\"),
        label=f"tab:{table.item.paper}-{table.item.name}",
        position="tbp",
    )
    said = [
        f"Made by: {command}",
        "Runs (results/runs/): "
        + ", ".join(dict.fromkeys(row.cell.group for row in table.rows)),
    ]
    comments = "".join(
        f"% {' '.join(line.split())}\n" for line in (*said, *notes(table))
    )
    return comments + text.translate(_SIGNS)


def save_pdf(figure: Figure, path: Path) -> None:
    """Write a figure as PDF, with fonts as publishers want them (TrueType), and no
    date: the same bytes each time.
    """
    with matplotlib.rc_context({"pdf.fonttype": 42}):
        figure.savefig(path, format="pdf", metadata={"CreationDate": None})
