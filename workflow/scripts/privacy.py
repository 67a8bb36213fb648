"""Make the table of privacy and its figure from finished runs, and the answer that they
give for each paper.
"""

from dpfedbench.files import atomic_path, write_text
from dpfedbench.manifest import rule_job

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(snakemake, "table of privacy"):
        from dpfedbench.reporting import answer, privacy, privacy_figure, values
        from dpfedbench.reporting.described import Private

        made, papers = snakemake.output, snakemake.params.papers
        command = snakemake.config["command"].replace("{target}", made.csv)
        entries = [Private.read(entry) for entry in snakemake.params.entries]
        rows = privacy.read(entries, "results", snakemake.input.published)
        answers = answer.read(rows)
        write_text(made.answer, values.csv_text(answer.tidy(answers)))
        write_text(
            made.answer_markdown, answer.listing(answers, papers).markdown(command)
        )
        with atomic_path(made.image) as temporary:
            privacy_figure.draw(rows, papers).savefig(temporary)
        write_text(made.csv, values.csv_text(privacy.tidy(rows), "none"))
        write_text(made.drawn, values.csv_text(privacy.drawn(rows), "none"))
        write_text(made.markdown, privacy.listing(rows).markdown(command))
