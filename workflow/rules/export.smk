"""From finished runs to what a paper prints: figures in PDF.

Requires what the figures themselves require. Makes export/PAPER/NAME.pdf below results/, or below results/PRESET/, and
nothing that is not asked for by name.
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
