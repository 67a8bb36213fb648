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
    """Put a run's audit into its folder, and its manifest, which tells whether the copy is the audit.

    Snakemake compares the contents of files and not of folders. So the checksums say whether the batch has changed,
    also where the results were copied without their times.
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
