"""Make a table from finished runs."""

from pathlib import Path

from dpfedbench.files import write_text
from dpfedbench.manifest import rule_job
from dpfedbench.reporting.described import Item


def table(item: Item, *, results: Path, published: Path, command: str, csv: Path, markdown: Path) -> None:
    """Write the table as tidy CSV and as Markdown."""
    from dpfedbench.reporting import tables, values

    read = tables.read(item, results, published)
    write_text(csv, values.csv_text(tables.tidy(read)))
    write_text(markdown, tables.to_markdown(read, command))


if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(snakemake, f"table {snakemake.wildcards.paper} {snakemake.wildcards.item}"):
        table(
            Item.read(snakemake.params.description),
            results=Path("results"),
            published=Path(snakemake.input.published),
            command=snakemake.config["command"].replace("{target}", snakemake.output.csv),
            csv=Path(snakemake.output.csv),
            markdown=Path(snakemake.output.markdown),
        )
