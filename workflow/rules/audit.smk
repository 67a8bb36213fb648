"""Audit: from the mechanisms of trained runs to lower bounds on their ε.

Requires the configurations and ledgers of trained runs. It trains nothing. Adds audit.json to each run's folder.
"""


# A cluster would queue this longer than it takes: it copies two small files.
localrules:
    audited,


rule audit:
    """Insert canaries into the rounds of a batch of runs, and bound ε from below by how well releases reveal them."""
    input:
        configs=PLANNED.files_of_batch("config.yaml"),
        ledgers=PLANNED.files_of_batch("ledger.jsonl"),
        trainings=PLANNED.files_of_batch("training.json"),
    output:
        folder=directory(f"{REPORT}/audits/{{method}}-{{batch}}"),
        checksums=f"{REPORT}/audits/checksums/{{method}}-{{batch}}.sha256",
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
        code=code_of("audit"),
    script:
        "../scripts/audit.py"


rule audited:
    """Copy a run's audit and its manifest from the folder of its batch into the run's folder.

    Snakemake compares the contents of files, but not of folders. The batch's file of checksums tells it whether the batch
    has changed, even if the results were copied without modification times.
    """
    input:
        checksums=PLANNED.checksums_of_batch,
        folder=ancient(PLANNED.batch_of),
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
        "cp -R {input.folder}/{wildcards.key}-seed{wildcards.seed}/. $(dirname {output}) 2> {log}"
