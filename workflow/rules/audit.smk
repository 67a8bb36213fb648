"""From runs' mechanisms to lower bounds on their ε.

Requires the configurations and ledgers of trained runs; trains nothing. Adds audit.json to the folders of runs.
"""


# Copies two small files: not worth a place in a cluster's queue.
localrules:
    audited,


rule audit:
    """Put canaries through the runs' own rounds and bound ε by what their releases tell of them; a batch of runs."""
    input:
        configs=PLANNED.files_of_batch("config.yaml"),
        ledgers=PLANNED.files_of_batch("ledger.jsonl"),
        trainings=PLANNED.files_of_batch("training.json"),
    output:
        directory(f"{REPORT}/audits/{{method}}-{{batch}}"),
    log:
        f"{REPORT}/audits/logs/{{method}}-{{batch}}.log",
    conda:
        "../envs/dpfedbench.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=lambda wildcards: 60 * len(PLANNED.audited_together(wildcards)),
        gpu=0,
    params:
        code=PLANNED.code_for("audit", PLANNED.audited_together),
    script:
        "../scripts/audit.py"


rule audited:
    """Put a run's audit into its folder, and its manifest, which tells whether the copy is the audit."""
    input:
        PLANNED.batch_of,
    output:
        f"{RUN}/audit.json",
    log:
        f"{RUN}/logs/audit.log",
    conda:
        "../envs/dpfedbench.yaml"
    threads: 1
    resources:
        mem_mb=100,
        runtime=1,
        gpu=0,
    shell:
        "cp -R {input}/{wildcards.key}-seed{wildcards.seed}/. $(dirname {output}) 2> {log}"
