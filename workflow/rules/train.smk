"""From a run's configuration to its meta-model.

Requires a partition. Makes a run's folder, results/runs/METHOD/DATASET/TASK/KEY/seedN/.
"""


# Writes sixty lines: not worth a place in a cluster's queue.
localrules:
    configure,


rule configure:
    """Write down the run's resolved configuration: what it is, and what it is known by."""
    output:
        f"{RUN}/config.yaml",
    log:
        f"{RUN}/logs/configure.log",
    conda:
        "../envs/dpfedbench.yaml"
    threads: 1
    resources:
        mem_mb=500,
        runtime=5,
        gpu=0,
    params:
        run=lambda wildcards: run_of(wildcards).plain(),
    script:
        "../scripts/configure.py"


# Of a training by several processes, for Slurm: it is one job of so many tasks, which the script has srun start.
TASKS = (
    {
        "mpi": "srun",
        "tasks": MACHINE.processes,
        "tasks_per_gpu": 1,
        "cpus_per_task": MACHINE.threads,
    }
    if MACHINE.processes > 1
    else {}
)


rule train:
    """Train one run, from its last checkpoint if it was interrupted.

    `version` is the method's: raising it trains that method's runs again and no others. So does another text of the file
    that a module of one's own is in. There is no benchmark file: how long a training took tells of secret cohorts.
    """
    input:
        config=rules.configure.output,
        images=rules.prepare.output.images,
        data=[rules.prepare.output.classes, rules.prepare.output.summary],
        clients=lambda wildcards: f"results/clients/{run_of(wildcards).clients_folder}/clients.npz",
        summary=lambda wildcards: f"results/clients/{run_of(wildcards).clients_folder}/summary.json",
        references=PLANNED.made_for,
    output:
        model=f"{RUN}/model.safetensors",
        history=f"{RUN}/history.csv",
        ledger=f"{RUN}/ledger.jsonl",
        training=f"{RUN}/training.json",
    log:
        f"{RUN}/logs/train.log",
    conda:
        "../envs/dpfedbench.yaml"
    threads: MACHINE.threads * MACHINE.processes
    resources:
        **TASKS,
        mem_mb=3000 + 1100 * (MACHINE.processes - 1),
        runtime=1440,
        gpu=0 if MACHINE.device == "cpu" else MACHINE.gpu * MACHINE.processes,
    params:
        version=lambda wildcards: run_of(wildcards).made_by,
    script:
        "../scripts/train.py"
