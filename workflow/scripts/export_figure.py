"""Write a figure in PDF from finished runs."""

from pathlib import Path

from workflow_jobs.rule_job import rule_job

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(
        snakemake, f"export {snakemake.wildcards.paper} {snakemake.wildcards.item}"
    ):
        from dpfedbench.files import atomic_path
        from dpfedbench.results import figure_style, figures
        from dpfedbench.results.items import Item

        item = Item(**snakemake.params.description)
        figure, _ = figures.make(item, "results", snakemake.input.published)
        with atomic_path(Path(snakemake.output[0])) as temporary:
            figure_style.save_pdf(figure, temporary)
