"""What surrounds the results: is the folder ours to write, is the cluster there, what do runs cost.

Requires common.smk, and for what runs cost data sets and partitions. Makes results/format.json and cost.md, and checks a
folder.
"""

from workflow_jobs.cluster import check_slurm
from dpfedbench.parts.compatibility import check_processes
from dpfedbench.results_format import check_format, mark_format
from workflow_jobs.warm import FEWEST

try:
    check_format("results")
except BenchError as error:
    sys.exit(f"results: {error}")


onstart:
    # Snakemake limits jobs to 100 a second by a timer that looks at all ready jobs again and is set anew at each look;
    # each job that ends adds one (9.27), which came to 40 % of a core after 200 jobs. A limit of one's own is kept.
    limit = workflow.scheduling_settings.max_jobs_per_timespan
    if limit and (limit.max_jobs, limit.timespan) == (100, 1):
        workflow.scheduler.job_rate_limiter = None
    if WARM_ALLOWED and len(list(workflow.dag.needrun_jobs())) >= FEWEST:
        os.environ[WARM] = "yes"
    # A library that cannot be had leaves the others their rows.
    if any(
        job.rule.name.startswith("library_") for job in workflow.dag.needrun_jobs()
    ):
        workflow.scheduler.keepgoing = True
    try:
        for job in workflow.dag.needrun_jobs():
            if job.rule.name == "train":
                check_processes(run_of(job.wildcards), MACHINE.processes)
                if job.resources.get("gpu") not in (0, MACHINE.processes):
                    raise BenchError(
                        "machine.gpu is 1, a GPU for each of a training's processes: allow as many with "
                        f"--resources gpu={MACHINE.processes}"
                    )
    except BenchError as error:
        sys.exit(f"configuration: {error}")
    try:
        mark_format("results")
        if workflow.executor_plugin.name == "slurm":
            sent = [job for job in workflow.dag.needrun_jobs() if not job.is_local]
            for asked in {
                tuple(
                    map(
                        job.resources.get,
                        ("slurm_partition", "slurm_account", "gpu"),
                    )
                )
                for job in sent
            }:
                check_slurm(*asked)
    except BenchError as error:
        sys.exit(f"cluster: {error}")


rule cost:
    """Say what the configuration's runs will cost on this machine: runs, how much they train on, hours, by method."""
    input:
        images=[
            f"{DATA.format(dataset=name)}/images.npy"
            for name in sorted({run.dataset for run in PLAN.runs.values()})
        ],
        clients=[
            f"results/clients/{folder}/clients.npz" for folder in PLANNED.partitions
        ],
    log:
        "results/logs/cost.log",
    localrule: True
    conda:
        "../envs/dpfedbench.yaml"
    threads: MACHINE.threads
    resources:
        mem_mb=3000,
        runtime=60,
        gpu=0 if MACHINE.device == "cpu" else MACHINE.gpu,
    params:
        runs=lambda wildcards: [run.plain() for run in PLAN.runs.values()],
        report=lambda wildcards: REPORT,
        cores=lambda wildcards: workflow.cores,
    script:
        "../scripts/cost.py"


rule verify:
    """Check a whole results folder, also one that somebody sent: every file as written, every account computed again."""
    log:
        "results/logs/verify.log",
    localrule: True
    conda:
        "../envs/dpfedbench.yaml"
    threads: 1
    resources:
        mem_mb=3000,
        runtime=600,
        gpu=0,
    params:
        searches={folder: PLANNED.search_for(run) for folder, run in PLAN.runs.items()},
    script:
        "../scripts/verify.py"
