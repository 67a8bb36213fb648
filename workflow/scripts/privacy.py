"""Make the table of privacy and its figure from finished runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from dpfedbench.files import atomic_path, write_text
from dpfedbench.manifest import rule_job
from dpfedbench.reporting.described import Private


def table_and_figure(
    entries: Sequence[Private],
    *,
    results: Path,
    published: Path,
    command: str,
    csv: Path,
    markdown: Path,
    image: Path,
    drawn: Path,
    papers: Mapping[str, str],
    answers: Path,
    answers_markdown: Path,
) -> None:
    """Write the table as CSV and Markdown, the figure, and what both come to for each paper."""
    from dpfedbench.reporting import answer, privacy, privacy_figure, values

    rows = privacy.read(entries, results, published)
    found = answer.read(rows)
    write_text(answers, values.csv_text(answer.tidy(found)))
    write_text(answers_markdown, answer.to_markdown(found, papers, command))
    with atomic_path(image) as temporary:
        privacy_figure.draw(rows, papers).savefig(temporary)
    write_text(csv, values.csv_text(privacy.tidy(rows), "none"))
    write_text(drawn, values.csv_text(privacy.drawn(rows), "none"))
    write_text(markdown, privacy.to_markdown(rows, command))


if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(snakemake, "table of privacy"):
        table_and_figure(
            [Private.read(entry) for entry in snakemake.params.entries],
            results=Path("results"),
            published=Path(snakemake.input.published),
            command=snakemake.config["command"].replace("{target}", snakemake.output.csv),
            csv=Path(snakemake.output.csv),
            markdown=Path(snakemake.output.markdown),
            image=Path(snakemake.output.image),
            drawn=Path(snakemake.output.drawn),
            papers=snakemake.params.papers,
            answers=Path(snakemake.output.answer),
            answers_markdown=Path(snakemake.output.answer_markdown),
        )
