"""From a run's mechanism to a lower bound on its ε.

Requires a trained run's configuration and ledger; trains nothing. Adds audit.json to the run's folder.
"""


rule audit:
    """Put canaries through the run's own rounds and bound ε by what its releases tell of them."""
    input:
        config=rules.configure.output,
        ledger=rules.train.output.ledger,
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
        code=digest(
            "src/dpfedbench/audit/*.py",
            "src/dpfedbench/privacy/*.py",
            "src/dpfedbench/federation/*.py",
        ),
    script:
        "../scripts/audit.py"
