"""Draw a figure from finished runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpfedbench.files import atomic_path, write_text
from dpfedbench.jobs import job
from dpfedbench.reporting import figures


def figure(description: Mapping[str, Any], *, results: Path, published: Path, image: Path, csv: Path) -> None:
    """Write the figure as an image and what was drawn as CSV."""
    drawing, drawn = figures.make(description, results, published)
    with atomic_path(image) as temporary:
        drawing.savefig(temporary)
    write_text(csv, figures.to_csv(drawn))


if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with job(snakemake.log[0], f"figure {snakemake.wildcards.paper} {snakemake.wildcards.item}"):
        figure(
            snakemake.params.description,
            results=Path("results"),
            published=Path(snakemake.input.published),
            image=Path(snakemake.output.image),
            csv=Path(snakemake.output.csv),
        )
