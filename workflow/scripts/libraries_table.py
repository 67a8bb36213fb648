"""Put the rows of other libraries into one table."""

from collections.abc import Sequence
from pathlib import Path

from dpfedbench.files import write_text
from dpfedbench.manifest import rule_job


def table(made: Sequence[str], *, command: str, csv: Path, markdown: Path) -> None:
    """Write the table as tidy CSV and as Markdown."""
    from dpfedbench.reporting import libraries, values

    rows = libraries.read(made)
    write_text(csv, values.csv_text(rows))
    write_text(markdown, libraries.to_markdown(rows, command))


if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(snakemake, "table of libraries"):
        table(
            snakemake.input,
            command=snakemake.config["command"].replace("{target}", "libraries"),
            csv=Path(snakemake.output.csv),
            markdown=Path(snakemake.output.markdown),
        )
