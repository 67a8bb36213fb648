"""Write the privacy table, its figure and each paper's table of answers."""

from workflow_jobs.rule_job import rule_job

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(snakemake, "table of privacy"):
        from dpfedbench.files import atomic_path, write_text
        from dpfedbench.results import answer, figure_style, privacy, privacy_figure
        from dpfedbench.results.configurations import read_configurations
        from dpfedbench.results.formats import csv_text
        from dpfedbench.results.table_columns import csv_columns

        output = snakemake.output
        papers = snakemake.params.papers
        command = snakemake.config["command"].replace("{target}", output.csv)
        rows = privacy.explain(
            read_configurations(snakemake.params.cells, "results"),
            "results",
            snakemake.input.published,
        )
        answers = answer.read(rows)
        listing = answer.listing(answers, papers)
        write_text(output.answer, csv_text(csv_columns(answers, "answer")))
        write_text(output.answer_markdown, listing.markdown(command))
        with atomic_path(output.image) as temporary:
            figure_style.save_png(privacy_figure.draw(rows, papers), temporary)
        table = csv_columns(rows, "privacy")
        write_text(output.csv, csv_text(table, "none"))
        drawn = csv_columns(privacy.rows_of_figure(rows), "privacy figure")
        write_text(output.drawn, csv_text(drawn, "none"))
        write_text(output.markdown, privacy.listing(rows).markdown(command))
