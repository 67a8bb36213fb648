"""Write a table in LaTeX, or a figure in PDF, from finished runs."""

from pathlib import Path

from dpfedbench.files import atomic_path, write_text
from dpfedbench.manifest import rule_job

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(
        snakemake, f"export {snakemake.wildcards.paper} {snakemake.wildcards.item}"
    ):
        from dpfedbench.reporting import export, figures, tables
        from dpfedbench.reporting.described import Item

        item, made = Item.read(snakemake.params.description), Path(snakemake.output[0])
        if item.kind == "table":
            command = snakemake.config["command"].replace("{target}", made.as_posix())
            write_text(
                made,
                export.latex(
                    tables.read(item, "results", snakemake.input.published), command
                ),
            )
        else:
            with atomic_path(made) as temporary:
                export.save_pdf(
                    figures.make(item, "results", snakemake.input.published)[0],
                    temporary,
                )
