"""Training: from a run's configuration to its meta-model.

Requires a partition. Makes the run's folder, results/runs/METHOD/DATASET/TASK/KEY/seedN/.
"""


# A cluster would queue this longer than it takes: it writes sixty lines.
localrules:
    configure,


rule configure:
    """Write the run's resolved configuration, and the key that identifies it."""
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


# For Slurm, a training by several processes is one job with several tasks. Its script starts them with srun.
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

    `version` is the version of the run's method. Raising it trains the runs of that method again, and so does a changed
    file of a plugin. There is no benchmark file, because the duration of a training reveals the sizes of secret cohorts.
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
