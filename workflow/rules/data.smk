"""Data: from the name of a data set to its clients, and to fixed features of its records.

Real data need a network or a local folder (data.local_dir, DPFEDBENCH_DATA).
Makes results/data/DATASET/, results/clients/DATASET/PARTITION/ and results/features/DATASET/KEY/.
"""


rule prepare:
    """Draw, download or unpack a data set: an array of images, a list of classes, a summary."""
    output:
        images=f"{DATA}/images.npy",
        classes=f"{DATA}/classes.csv",
        summary=f"{DATA}/summary.json",
    log:
        f"{DATA}/logs/prepare.log",
    conda:
        "../envs/dpfedbench.yaml"
    threads: 1
    resources:
        mem_mb=4000,
        runtime=120,
        gpu=0,
    params:
        version=lambda wildcards: DATASETS[wildcards.dataset],
    script:
        "../scripts/prepare.py"


rule partition:
    """Assign classes and examples to clients. Runs with equal client settings and seed share a partition."""
    input:
        rules.prepare.output,
    output:
        clients=f"{CLIENTS}/clients.npz",
        summary=f"{CLIENTS}/summary.json",
    log:
        f"{CLIENTS}/logs/partition.log",
    conda:
        "../envs/dpfedbench.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=30,
        gpu=0,
    params:
        drawn_from=lambda wildcards: partition_of(wildcards).drawn_from,
        text=lambda wildcards: partition_of(wildcards).clients.text,
        seed=lambda wildcards: partition_of(wildcards).seed,
    script:
        "../scripts/partition.py"


rule features:
    """Compute fixed features of all records, once for all runs that use the same features."""
    input:
        rules.prepare.output,
    output:
        features=f"{FEATURES}/features.npy",
        summary=f"{FEATURES}/features.json",
    log:
        f"{FEATURES}/logs/features.log",
    conda:
        "../envs/dpfedbench.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=60,
        gpu=0,
    script:
        "../scripts/features.py"
