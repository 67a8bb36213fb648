"""Put the rows of other libraries into one table: tidy CSV, and Markdown for people."""

from dpfedbench.files import write_text
from workflow_jobs.manifests import rule_job

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(snakemake, "table of libraries"):
        from dpfedbench.results import formats, libraries

        table = libraries.read(snakemake.input)
        command = snakemake.config["command"].replace("{target}", "libraries")
        write_text(snakemake.output.csv, formats.csv_text(table))
        write_text(
            snakemake.output.markdown, libraries.listing(table).markdown(command)
        )
