"""Put what all frontiers show into one table."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from dpfedbench.files import write_text
from dpfedbench.jobs import job
from dpfedbench.reporting import frontier, values


def table(drawn: Sequence[str], *, command: str, csv: Path, markdown: Path) -> None:
    """Write the table as tidy CSV and as Markdown."""
    whole = pd.concat([pd.read_csv(path) for path in drawn])
    write_text(csv, values.csv_text(whole))
    write_text(markdown, frontier.to_markdown(whole, command))


if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with job(snakemake.log[0], "table of frontiers"):
        table(
            snakemake.input,
            command=snakemake.config["command"].replace("{target}", "frontier"),
            csv=Path(snakemake.output.csv),
            markdown=Path(snakemake.output.markdown),
        )
