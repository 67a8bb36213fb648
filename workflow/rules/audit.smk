"""From runs' mechanisms to lower bounds on their ε.

Requires the configurations and ledgers of trained runs; trains nothing. Adds audit.json to the folders of runs.
"""

AUDITED_WITH = digest(
    "src/dpfedbench/audit/*.py",
    "src/dpfedbench/accounting/**/*.py",
    "src/dpfedbench/privacy/*.py",
    "src/dpfedbench/federation/*.py",
)


rule audit:
    """Put canaries through the run's own rounds and bound ε by what its releases tell of them."""
    input:
        configs=rules.configure.output,
        ledgers=rules.train.output.ledger,
    output:
        f"{RUN}/audit.json",
    log:
        f"{RUN}/logs/audit.log",
    benchmark:
        f"{RUN}/benchmark/audit.tsv"
    conda:
        "../envs/dpfedbench.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=60,
        gpu=0,
    params:
        code=AUDITED_WITH,
    script:
        "../scripts/audit.py"


for name, folders in audits().items():

    rule:
        name:
            name
        input:
            configs=[f"results/runs/{folder}/config.yaml" for folder in folders],
            ledgers=[f"results/runs/{folder}/ledger.jsonl" for folder in folders],
        output:
            [f"results/runs/{folder}/audit.json" for folder in folders],
        log:
            f"{REPORT}/logs/{name}.log",
        benchmark:
            f"{REPORT}/benchmark/{name}.tsv"
        conda:
            "../envs/dpfedbench.yaml"
        threads: 1
        resources:
            mem_mb=2000,
            runtime=60 * len(folders),
            gpu=0,
        params:
            code=AUDITED_WITH,
        script:
            "../scripts/audit.py"


# As `ruleorder: audit_dp_agr_1 > … > audit` would, whose names are not known beforehand.
workflow.ruleorder(*audits(), "audit")
