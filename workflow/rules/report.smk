"""From finished runs to tables, figures and a note of what made them.

Requires metrics, accounts and histories of the runs shown. Makes tables/ and figures/ below results/, or below
results/PRESET/.
"""


rule table:
    """Make a table: tidy CSV, and Markdown for people."""
    input:
        files_of_runs("metrics.json", "privacy.json", "training.json"),
        published=ROOT / "config/published.csv",
    output:
        csv=report(
            f"{REPORT}/tables/{{paper}}/{{item}}.csv",
            caption="../report/table.rst",
            category="{paper}",
            subcategory="tables",
            labels={"table": "{item}", "as": "CSV"},
        ),
        markdown=f"{REPORT}/tables/{{paper}}/{{item}}.md",
    log:
        f"{REPORT}/tables/{{paper}}/logs/{{item}}.log",
    conda:
        "../envs/dpfedbench.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=10,
        gpu=0,
    params:
        description=described,
        command=lambda wildcards, output: command_of(output.csv),
        code=digest(
            "src/dpfedbench/reporting/*.py", "src/dpfedbench/evaluation/intervals.py"
        ),
    script:
        "../scripts/table.py"


rule figure:
    """Draw a figure, and write down the numbers that were drawn."""
    input:
        files_of_runs("metrics.json", "privacy.json", "training.json", "history.csv"),
        published=ROOT / "config/published.csv",
    output:
        image=report(
            f"{REPORT}/figures/{{paper}}/{{item}}.png",
            caption="../report/figure.rst",
            category="{paper}",
            subcategory="figures",
            labels={"figure": "{item}", "as": "image"},
        ),
        csv=f"{REPORT}/figures/{{paper}}/{{item}}.csv",
    log:
        f"{REPORT}/figures/{{paper}}/logs/{{item}}.log",
    conda:
        "../envs/dpfedbench.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=10,
        gpu=0,
    params:
        description=described,
        code=digest(
            "src/dpfedbench/reporting/*.py", "src/dpfedbench/evaluation/intervals.py"
        ),
    script:
        "../scripts/figure.py"


rule provenance:
    """Note the versions, the machine and the revision that made the tables and figures."""
    input:
        targets(),
    output:
        f"{REPORT}/provenance.json",
    log:
        f"{REPORT}/logs/provenance.log",
    conda:
        "../envs/dpfedbench.yaml"
    threads: 1
    resources:
        mem_mb=500,
        runtime=5,
        gpu=0,
    params:
        command=command_of("").strip(),
    script:
        "../scripts/provenance.py"
