"""Make the table of privacy and its figure from finished runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpfedbench.files import atomic_path, write_text
from dpfedbench.jobs import job
from dpfedbench.reporting import privacy


def table_and_figure(
    entries: Sequence[Mapping[str, Any]],
    *,
    results: Path,
    published: Path,
    command: str,
    csv: Path,
    markdown: Path,
    image: Path,
    drawn: Path,
) -> None:
    """Write the table as CSV and Markdown, and the figure."""
    table = privacy.read(entries, results, published)
    drawing = privacy.draw(table, entries)
    with atomic_path(image) as temporary:
        drawing.savefig(temporary)
    write_text(csv, privacy.to_csv(table))
    write_text(drawn, privacy.to_csv(privacy.drawn(table, entries)))
    write_text(markdown, privacy.to_markdown(table, command))


if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with job(snakemake.log[0], "table of privacy"):
        table_and_figure(
            snakemake.params.entries,
            results=Path("results"),
            published=Path(snakemake.input.published),
            command=snakemake.params.command,
            csv=Path(snakemake.output.csv),
            markdown=Path(snakemake.output.markdown),
            image=Path(snakemake.output.image),
            drawn=Path(snakemake.output.drawn),
        )
