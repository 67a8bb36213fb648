"""From accounts and audits to the table of privacy: three epsilons beside every private number; and to the answer.

Requires metrics, accounts and audits of all private runs that the configuration's tables and figures show. Makes
tables/privacy.csv, tables/answer.csv, both as .md, and figures/privacy.png below results/, or below results/PRESET/; of
one paper the same in its folders.
"""


rule privacy:
    """Make the table of privacy, its figure, and the answer for each paper."""
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
