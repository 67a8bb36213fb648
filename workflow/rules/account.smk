"""Accounting: from a run's ledger to its claimed and proven ε.

Requires the ledger of a trained run, and the partition of a private run whose clients share images. The rule never reads
the training code. Adds privacy.json to the run's folder.
"""


rule account:
    """Read the ledger under each accounting profile."""
    input:
        config=rules.configure.output,
        ledger=rules.train.output.ledger,
        training=rules.train.output.training,
        clients=PLANNED.partition_for_account,
        references=PLANNED.references_of,
    output:
        f"{RUN}/privacy.json",
    log:
        f"{RUN}/logs/account.log",
    conda:
        "../envs/dpfedbench.yaml"
    threads: 1
    resources:
        mem_mb=3000,
        runtime=60,
        gpu=0,
    params:
        search=lambda wildcards: PLANNED.search_for(run_of(wildcards)),
        code=code_of("account"),
    script:
        "../scripts/account.py"
