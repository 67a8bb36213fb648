"""Write all frontiers' points as one table: tidy CSV, and Markdown for readers."""

from workflow_jobs.rule_job import rule_job

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(snakemake, "table of frontiers"):
        import pandas as pd

        from dpfedbench.files import write_text
        from dpfedbench.results import formats, frontier

        table = pd.concat([frontier.read_points(path) for path in snakemake.input])
        command = snakemake.config["command"].replace("{target}", "frontier")
        write_text(snakemake.output.csv, formats.csv_text(table))
        write_text(snakemake.output.markdown, frontier.listing(table).markdown(command))
