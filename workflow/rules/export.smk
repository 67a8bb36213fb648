"""From finished runs to what is shared: figures in PDF, and all results without models as one archive.

Requires what the figures themselves require. Makes export/PAPER/NAME.pdf and results.zip below results/, or below
results/PRESET/, and nothing that is not asked for by name.
"""


rule export_figure:
    """Make a figure in PDF, to be included as it is."""
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
    """Pack frames, tables, figures, page and provenance into one archive, for `dpfedbench compare`."""
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
        code=code_of("archive"),
    script:
        "../scripts/archive.py"
