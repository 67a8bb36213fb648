"""Report: from finished runs to tables, figures, their provenance, and the page that shows them.

Requires metrics, accounts and histories of the runs that are shown. Makes tables/, figures/, provenance.json and
index.html below results/ or results/PRESET/. What shows one experiment alone lies in experiments/NAME/: its page, data
frames and provenance. While papers are missing, index.html shows those that are finished, and so-far/N/ says which.
"""


report: "../report/workflow.rst"


rule table:
    """Make a table as tidy CSV, and as Markdown for readers."""
    input:
        PLANNED.files_of_runs(
            "config.yaml", "metrics.json", "privacy.json", "training.json"
        ),
        PLANNED.tests_of_runs,
        published=ROOT / "config/published.csv",
    output:
        csv=report(
            f"{REPORT}/tables/{{paper}}/{{item}}.csv",
            caption="../report/table.rst",
            category=PLANNED.category_of,
            subcategory="tables",
            labels=PLANNED.labels_of,
        ),
        markdown=f"{REPORT}/tables/{{paper}}/{{item}}.md",
    log:
        f"{REPORT}/tables/{{paper}}/logs/{{item}}.log",
    wildcard_constraints:
        item=item_names(tables=True),
    conda:
        "../envs/dpfedbench.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=10,
        gpu=0,
    params:
        description=PLANNED.described,
        code=code_of("table"),
    script:
        "../scripts/table.py"


rule figure:
    """Draw a figure, and write the numbers that it shows to a CSV file."""
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
        image=report(
            f"{REPORT}/figures/{{paper}}/{{item}}.png",
            caption="../report/figure.rst",
            category=PLANNED.category_of,
            subcategory="figures",
            labels=PLANNED.labels_of,
        ),
        csv=f"{REPORT}/figures/{{paper}}/{{item}}.csv",
    log:
        f"{REPORT}/figures/{{paper}}/logs/{{item}}.log",
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
        code=code_of("figure"),
    script:
        "../scripts/figure.py"


rule frontier_table:
    """Combine the points of all frontier figures into one table."""
    input:
        PLANNED.frontiers("csv"),
    output:
        csv=report(
            f"{REPORT}/tables/frontier.csv",
            caption="../report/frontier.rst",
            category="Privacy",
            labels={
                "name": "frontier",
                "title": "The frontier: accuracy over the proven ε",
            },
        ),
        markdown=f"{REPORT}/tables/frontier.md",
    log:
        f"{REPORT}/tables/logs/frontier.log",
    conda:
        "../envs/dpfedbench.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=10,
        gpu=0,
    params:
        code=code_of("frontier"),
    script:
        "../scripts/frontier.py"


rule collect:
    """Collect all runs in one data frame, and all cells of tables and figures with their runs in another."""
    input:
        PLANNED.files_to_collect(),
    output:
        runs=f"{REPORT}/runs.parquet",
        csv=f"{REPORT}/runs.csv",
        cells=f"{REPORT}/cells.parquet",
    log:
        f"{REPORT}/logs/collect.log",
    conda:
        "../envs/dpfedbench.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=10,
        gpu=0,
    params:
        runs=sorted(PLAN.runs),
        cells=PLANNED.cell_records(),
        papers={name: METHODS[name].paper for name in sorted(METHODS)},
        audited_runs=PLANNED.audited_runs[""],
        code=code_of("collect"),
    script:
        "../scripts/collect.py"


use rule collect as collect_of_paper with:
    input:
        lambda wildcards: PLANNED.files_to_collect(wildcards.paper),
    output:
        runs=f"{REPORT}/experiments/{{paper}}/runs.parquet",
        csv=f"{REPORT}/experiments/{{paper}}/runs.csv",
        cells=f"{REPORT}/experiments/{{paper}}/cells.parquet",
    log:
        f"{REPORT}/experiments/{{paper}}/logs/collect.log",
    params:
        runs=lambda wildcards: sorted(PLAN.runs_of(wildcards.paper)),
        cells=lambda wildcards: PLANNED.cell_records(wildcards.paper),
        papers={name: METHODS[name].paper for name in sorted(METHODS)},
        audited_runs=lambda wildcards: PLANNED.audited_runs[wildcards.paper],
        code=code_of("collect"),


rule provenance:
    """Record the versions, machine and revision that made the tables and figures."""
    input:
        PLANNED.targets(),
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
        preset=CONFIGURATION.preset,
        stand_ins=PLANNED.stand_ins(),
    script:
        "../scripts/provenance.py"


use rule provenance as provenance_of_paper with:
    input:
        lambda wildcards: PLANNED.targets(wildcards.paper),
    output:
        f"{REPORT}/experiments/{{paper}}/provenance.json",
    log:
        f"{REPORT}/experiments/{{paper}}/logs/provenance.log",
    params:
        preset=CONFIGURATION.preset,
        stand_ins=lambda wildcards: PLANNED.stand_ins(wildcards.paper),


use rule provenance as provenance_so_far with:
    input:
        PLANNED.so_far(PLANNED.targets),
    output:
        f"{REPORT}/so-far/{{finished}}/provenance.json",
    log:
        f"{REPORT}/so-far/{{finished}}/logs/provenance.log",
    params:
        preset=CONFIGURATION.preset,
        stand_ins=lambda wildcards: PLANNED.stand_ins(
            *PLANNED.finished_papers(wildcards)
        ),


rule page:
    """Make the page of results, one HTML file that needs no server.

    The page so far stays until this one is complete (`update`).
    """
    input:
        PLANNED.targets(),
        PLANNED.files_for_page(),
        PLANNED.milestones(),
        provenance=rules.provenance.output,
        published=ROOT / "config/published.csv",
        datasets=DATASETS_TABLE,
    output:
        update(f"{REPORT}/index.html"),
    log:
        f"{REPORT}/logs/page.log",
    conda:
        "../envs/dpfedbench.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=10,
        gpu=0,
    params:
        shown=PLANNED.page_items(),
        cells=PLANNED.cell_records(),
        papers=PLANNED.page_papers(*PAPERS),
        folder=lambda wildcards: REPORT,
        code=code_of("page"),
    script:
        "../scripts/page.py"


use rule page as page_of_paper with:
    input:
        lambda wildcards: PLANNED.targets(wildcards.paper),
        lambda wildcards: PLANNED.files_for_page(wildcards.paper),
        provenance=rules.provenance_of_paper.output,
        published=ROOT / "config/published.csv",
        datasets=DATASETS_TABLE,
    output:
        f"{REPORT}/experiments/{{paper}}/index.html",
    log:
        f"{REPORT}/experiments/{{paper}}/logs/page.log",
    params:
        shown=lambda wildcards: PLANNED.page_items(wildcards.paper),
        cells=lambda wildcards: PLANNED.cell_records(wildcards.paper),
        papers=lambda wildcards: PLANNED.page_papers(wildcards.paper),
        folder=lambda wildcards: REPORT,
        code=code_of("page"),


use rule page as page_so_far with:
    input:
        PLANNED.so_far(PLANNED.targets),
        PLANNED.files_so_far,
        provenance=rules.provenance_so_far.output,
        published=ROOT / "config/published.csv",
        datasets=DATASETS_TABLE,
    output:
        f"{REPORT}/so-far/{{finished}}/page.json",
    log:
        f"{REPORT}/so-far/{{finished}}/logs/page.log",
    params:
        shown=PLANNED.so_far(PLANNED.page_items),
        cells=PLANNED.so_far(PLANNED.cell_records),
        papers=lambda wildcards: PLANNED.page_papers(
            *PLANNED.finished_papers(wildcards)
        ),
        missing=PLANNED.missing_titles,
        folder=lambda wildcards: REPORT,
        code=code_of("page"),
