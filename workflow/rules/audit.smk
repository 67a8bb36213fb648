"""Audit: from the mechanism of a trained run to a lower bound on its ε.

Requires the configuration and the ledger of a trained run. It trains nothing. Adds audit.json to the run's folder.
"""


rule audit:
    """Insert canaries into the rounds of a run, and bound ε from below by how well releases reveal them."""
    input:
        config=rules.configure.output,
        ledger=rules.train.output.ledger,
        training=rules.train.output.training,
    output:
        f"{RUN}/audit.json",
    log:
        f"{RUN}/logs/audit.log",
    conda:
        "../envs/dpfedbench.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=60,
        gpu=0,
    params:
        code=code_of("audit"),
    script:
        "../scripts/audit.py"
