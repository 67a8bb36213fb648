"""From finished runs to what a paper prints: figures in PDF.

Requires what the figures themselves require. Makes export/PAPER/NAME.pdf below results/, or below results/PRESET/, and
nothing that is not asked for by name. Included last: it knows the names of all rules.
"""

from dpfedbench.experiments.targets import check_targets


rule export_figure:
    """Make a figure in PDF, to be included as it is."""
    input:
        PLANNED.files_of_runs(
            "metrics.json", "privacy.json", "training.json", "history.csv"
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


try:
    check_targets(
        # Snakemake itself tells targets only when the rules are read. Of a module, names are the other Snakefile's.
        [
            word
            for word in sys.argv[1:]
            if not (workflow.modifier.skip_configfile and word.isidentifier())
        ],
        REPORT,
        {place: item.kind == "table" for place, item in PLAN.items.items()},
        {rule.name for rule in workflow.rules},
    )
except BenchError as error:
    sys.exit(f"configuration: {error}")
