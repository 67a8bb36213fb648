"""Write a table from finished runs: tidy CSV, and Markdown for readers."""

from workflow_jobs.rule_job import rule_job

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(
        snakemake, f"table {snakemake.wildcards.paper} {snakemake.wildcards.item}"
    ):
        from dpfedbench.files import write_text
        from dpfedbench.results import formats, tables
        from dpfedbench.results.items import Item

        csv = snakemake.output.csv
        markdown = snakemake.output.markdown
        command = snakemake.config["command"].replace("{target}", csv)
        item = Item(**snakemake.params.description)
        table = tables.read(item, "results", snakemake.input.published)
        write_text(csv, formats.csv_text(tables.tidy(table)))
        write_text(markdown, tables.listing(table).markdown(command))
