"""From accounts and audits to the table of privacy, three epsilons beside every private number, and to each paper's answer.

Requires metrics, accounts and audits of all private runs that the configuration's tables and figures show. Makes
tables/privacy.csv, tables/answer.csv, both as .md, and figures/privacy.png below results/, or below results/PRESET/.
"""

PRIVACY_LABELS = {
    "name": "privacy",
    "title": "Three ε beside every private number",
    "data": ", ".join(sorted({entry["dataset"] for entry in PRIVATE})),
}


rule privacy:
    """Make the table of privacy, its figure, and the answer for each paper."""
    input:
        [
            f"results/runs/{folder}/{name}"
            for entry in PRIVATE
            for folder in entry["folders"]
            for name in (
                "metrics.json",
                "privacy.json",
                "training.json",
                "ledger.jsonl",
            )
        ],
        # The audit is of the mechanism, which seeds have in common, and some configurations too.
        sorted({f"results/runs/{entry['audited']}/audit.json" for entry in PRIVATE}),
        published=ROOT / "config/published.csv",
    output:
        csv=report(
            f"{REPORT}/tables/privacy.csv",
            caption="../report/privacy.rst",
            category="Privacy",
            labels=PRIVACY_LABELS,
        ),
        markdown=f"{REPORT}/tables/privacy.md",
        image=report(
            f"{REPORT}/figures/privacy.png",
            caption="../report/privacy.rst",
            category="Privacy",
            labels=PRIVACY_LABELS,
        ),
        drawn=f"{REPORT}/figures/privacy.csv",
        answer=f"{REPORT}/tables/answer.csv",
        answer_markdown=f"{REPORT}/tables/answer.md",
    log:
        f"{REPORT}/tables/logs/privacy.log",
    conda:
        "../envs/dpfedbench.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=10,
        gpu=0,
    params:
        entries=PRIVATE,
        papers=lambda wildcards: {
            name: CONFIGURATION.experiments[name].title for name in PAPERS
        },
        command=lambda wildcards, output: command_of(output.csv),
        code=digest(
            "src/dpfedbench/methods/*.py",
            "src/dpfedbench/reporting/answer.py",
            "src/dpfedbench/reporting/described.py",
            "src/dpfedbench/reporting/privacy.py",
            "src/dpfedbench/reporting/figures.py",
            "src/dpfedbench/reporting/results.py",
            "src/dpfedbench/reporting/values.py",
            "src/dpfedbench/evaluation/intervals.py",
            "src/dpfedbench/privacy/ledger.py",
        ),
    script:
        "../scripts/privacy.py"
