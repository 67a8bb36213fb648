"""Draw a figure from finished runs, and write its numbers as CSV."""

from workflow_jobs.rule_job import rule_job

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(
        snakemake, f"figure {snakemake.wildcards.paper} {snakemake.wildcards.item}"
    ):
        from dpfedbench.files import atomic_path, write_text
        from dpfedbench.results import figure_style, figures, formats
        from dpfedbench.results.items import Item

        item = Item(**snakemake.params.description)
        figure, numbers = figures.make(item, "results", snakemake.input.published)
        with atomic_path(snakemake.output.image) as temporary:
            figure_style.save_png(figure, temporary)
        write_text(snakemake.output.csv, formats.csv_text(numbers))
