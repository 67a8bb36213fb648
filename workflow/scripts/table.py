"""Make a table from finished runs: tidy CSV, and Markdown for people."""

from dpfedbench.files import write_text
from dpfedbench.manifest import rule_job

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(
        snakemake, f"table {snakemake.wildcards.paper} {snakemake.wildcards.item}"
    ):
        from dpfedbench.reporting import tables, values
        from dpfedbench.reporting.described import Item

        made, command = (
            snakemake.output,
            snakemake.config["command"].replace("{target}", snakemake.output.csv),
        )
        table = tables.read(
            Item.read(snakemake.params.description),
            "results",
            snakemake.input.published,
        )
        write_text(made.csv, values.csv_text(tables.tidy(table)))
        write_text(made.markdown, tables.to_markdown(table, command))
