"""Export: figures as PDF files, and an archive of all results without models.

Requires the same files as the figures. Makes export/PAPER/NAME.pdf, results.zip and experiments/PAPER/results.zip below
results/ or results/PRESET/. Only the last is part of a target that has a name, that of the experiment.
"""


rule export_figure:
    """Draw a figure as a PDF file, ready to be included in a text."""
    input:
        PLANNED.files_of_runs(
            "config.yaml",
            "metrics.json",
            "privacy.json",
            "training.json",
            "history.csv",
        ),
        PLANNED.tests_of_runs,
        published=ROOT / "config/published.csv",
    output:
        f"{REPORT}/export/{{paper}}/{{item}}.pdf",
    log:
        f"{REPORT}/export/{{paper}}/logs/{{item}}.log",
    wildcard_constraints:
        item=item_names(tables=False),
    conda:
        "../envs/dpfedbench.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=10,
        gpu=0,
    params:
        description=PLANNED.described,
        code=code_of("export_figure"),
    script:
        "../scripts/export_figure.py"


rule archive:
    """Pack data frames, tables, figures, page and provenance into one archive, for `dpfedbench compare`."""
    input:
        PLANNED.targets(),
        rules.collect.output,
        rules.page.output,
        rules.provenance.output,
    output:
        f"{REPORT}/results.zip",
    log:
        f"{REPORT}/logs/archive.log",
    conda:
        "../envs/dpfedbench.yaml"
    threads: 1
    resources:
        mem_mb=500,
        runtime=5,
        gpu=0,
    params:
        folder=lambda wildcards: REPORT,
        code=code_of("archive"),
    script:
        "../scripts/archive.py"


use rule archive as archive_of_paper with:
    input:
        lambda wildcards: PLANNED.targets(wildcards.paper),
        rules.collect_of_paper.output,
        rules.page_of_paper.output,
        rules.provenance_of_paper.output,
    output:
        f"{REPORT}/experiments/{{paper}}/results.zip",
    log:
        f"{REPORT}/experiments/{{paper}}/logs/archive.log",
