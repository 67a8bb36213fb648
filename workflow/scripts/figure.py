"""Draw a figure from finished runs."""

from pathlib import Path

from dpfedbench.files import atomic_path, write_text
from dpfedbench.manifest import rule_job
from dpfedbench.reporting.described import Item


def figure(item: Item, *, results: Path, published: Path, image: Path, csv: Path) -> None:
    """Write the figure as an image and what was drawn as CSV."""
    from dpfedbench.reporting import figures, values

    drawing, drawn = figures.make(item, results, published)
    with atomic_path(image) as temporary:
        drawing.savefig(temporary)
    write_text(csv, values.csv_text(drawn))


if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(snakemake, f"figure {snakemake.wildcards.paper} {snakemake.wildcards.item}"):
        figure(
            Item.read(snakemake.params.description),
            results=Path("results"),
            published=Path(snakemake.input.published),
            image=Path(snakemake.output.image),
            csv=Path(snakemake.output.csv),
        )
