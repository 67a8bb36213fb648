"""Draw a figure from finished runs, and write down what was drawn as CSV."""

from dpfedbench.files import atomic_path, write_text
from dpfedbench.manifest import rule_job

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(
        snakemake, f"figure {snakemake.wildcards.paper} {snakemake.wildcards.item}"
    ):
        from dpfedbench.reporting import figures, values
        from dpfedbench.reporting.described import Item

        item = Item.read(snakemake.params.description)
        figure, drawn = figures.make(item, "results", snakemake.input.published)
        with atomic_path(snakemake.output.image) as temporary:
            figure.savefig(temporary)
        write_text(snakemake.output.csv, values.csv_text(drawn))
