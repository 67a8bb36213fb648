"""Write the rows of other libraries as one table: tidy CSV, and Markdown for readers.

The table compares what a library claims with what is proven.
"""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from dpfedbench.files import read_json, write_text
from dpfedbench.results.formats import (
    Formatted,
    Listing,
    csv_text,
    format_number,
    format_text,
)
from workflow_jobs.rule_job import rule_job

NOTES = (
    (
        "Each row is a run of the library itself, as its package index has it, watched"
        " by its adapter of dpsum, with the samplers, thresholds, noise, rounds and"
        " accountants of the tutorial or example that it names. Data and models are"
        " small random stand-ins, on which no ε depends. NVFlare has no adapter: what is"
        " proven of its filters is by hand, from their source; 2.9.0 has no Gaussian"
        " filter. The settings of jax_privacy's and NVFlare's rows are our own."
    ),
    (
        "The claimed ε is what the library's own accountant says. The proven ε is the"
        " upper end that is proved for what ran; ∞: nothing finite is. The audited ε is a"
        " lower bound at 95 % confidence, by attacks on the code that clips, adds up and"
        " adds noise, but not on the sampling."
    ),
    (
        "Under zero-out a unit's contribution becomes zero, under replace-one any other;"
        " the number of units is public. A claim for add-or-remove is compared with"
        " zero-out, and holds only where that number is public: what the libraries run"
        " follows it."
    ),
    (
        "A quotation is an assumption that the library documents and the run breaks, or"
        " that explains the number."
    ),
    (
        "What is proven is of the models alone. Metrics that a library shows without"
        " noise are taken to stay with the server, except where a row says otherwise."
    ),
)


def read_rows(paths: Iterable[str | Path]) -> pd.DataFrame:
    """Return a frame with one row for each run of each library.

    Args:
        paths: the files that `rows.py` wrote.

    Returns:
        The rows in the order of the files. `proven` is the upper end of epsilon, inf
        where nothing finite is proved. `claimed` and `audited` are empty where there is
        none.

    Raises:
        BenchError: a file is missing or damaged.
    """
    missing_values = {"claimed": math.nan, "audited": math.nan, "proven": math.inf}
    files = [read_json(Path(path)) for path in paths]
    return pd.DataFrame(
        {"library": f"{file['package']} {file['version']}"}
        | {
            name: missing_values.get(name) if value is None else value
            for name, value in row.items()
        }
        for file in files
        for row in file["rows"]
    )


def listing(table: pd.DataFrame) -> Listing:
    """Return the table for readers.

    Args:
        table: the frame that `read_rows` returns.
    """
    rows = [_format_row(row) for row in table.to_dict("records")]
    return Listing(
        title="What libraries claim and what is proven", rows=rows, notes=NOTES
    )


def _format_row(row: dict[Any, Any]) -> dict[str, Formatted]:
    """Return the cells of a row for readers, by column."""
    audited = format_number(row["audited"])
    quote = f" The library: “{row['quote']}”" if row["quote"] else ""
    return {
        "run": format_text(f"{row['what']} ({row['library']})"),
        "claimed ε": format_number(row["claimed"]),
        "claimed for": format_text(row["claimed_adjacency"] or "–"),
        "proven ε": format_number(
            row["proven"], ".3g" if row["proven"] < 1000 else ",.0f"
        ),
        "proven for": format_text(row["adjacency"]),
        "audited ε": (
            format_text(f"≥ {audited.text}") if audited.key is not None else audited
        ),
        "δ": format_number(row["delta"], "g"),
        "why": format_text(row["why"] + quote),
        "settings": format_text(row["source"]),
    }


if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(snakemake, "table of libraries"):
        table = read_rows(snakemake.input)
        command = snakemake.config["command"].replace("{target}", "libraries")
        write_text(snakemake.output.csv, csv_text(table))
        write_text(snakemake.output.markdown, listing(table).markdown(command))
