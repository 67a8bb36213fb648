"""Make a table from finished runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpfedbench.files import write_text
from dpfedbench.jobs import job
from dpfedbench.reporting import tables


def table(
    description: Mapping[str, Any], *, results: Path, published: Path, command: str, csv: Path, markdown: Path
) -> None:
    """Write the table as tidy CSV and as Markdown."""
    rows = tables.read_rows(description, results)
    tidy = tables.tidy(description, rows, published)
    write_text(csv, tables.to_csv(tidy))
    write_text(markdown, tables.to_markdown(description, rows, tidy, command))


if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with job(snakemake.log[0], f"table {snakemake.wildcards.paper} {snakemake.wildcards.item}"):
        table(
            snakemake.params.description,
            results=Path("results"),
            published=Path(snakemake.input.published),
            command=snakemake.params.command,
            csv=Path(snakemake.output.csv),
            markdown=Path(snakemake.output.markdown),
        )
