"""Privacy: claimed, proven and audited ε of every private run, and the answer for each paper.

Requires metrics, accounts and audits of all private runs that tables and figures show. Makes tables/privacy.csv and
tables/answer.csv, both also as .md, and figures/privacy.png below results/ or results/PRESET/. The same files of one
paper lie in the paper's folders.
"""


rule privacy:
    """Make the privacy table, its figure, and the answer for each paper."""
    input:
        PLANNED.files_of_private,
        published=ROOT / "config/published.csv",
    output:
        csv=report(
            f"{REPORT}/tables/{{of}}privacy.csv",
            caption="../report/privacy.rst",
            category="Privacy",
            labels={
                "name": "privacy",
                "title": "Three ε beside every private number",
            },
        ),
        markdown=f"{REPORT}/tables/{{of}}privacy.md",
        image=report(
            f"{REPORT}/figures/{{of}}privacy.png",
            caption="../report/privacy.rst",
            category="Privacy",
            labels={
                "name": "privacy",
                "title": "Three ε beside every private number",
            },
        ),
        drawn=f"{REPORT}/figures/{{of}}privacy.csv",
        answer=report(
            f"{REPORT}/tables/{{of}}answer.csv",
            caption="../report/answer.rst",
            category="Privacy",
            labels={
                "name": "answer",
                "title": "What papers claim, and what is proven",
            },
        ),
        answer_markdown=f"{REPORT}/tables/{{of}}answer.md",
    log:
        f"{REPORT}/tables/{{of}}logs/privacy.log",
    conda:
        "../envs/dpfedbench.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=10,
        gpu=0,
    params:
        cells=PLANNED.private_cells,
        papers=lambda wildcards: {
            name: CONFIGURATION.experiments[name].title for name in PAPERS
        },
        code=code_of("privacy"),
    script:
        "../scripts/privacy.py"
