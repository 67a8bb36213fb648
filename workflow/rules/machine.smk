"""What surrounds the results: is the folder ours to write, is the cluster there, which runs can go.

Requires common.smk. Makes results/format.json, and removes runs on request.
"""

from dpfedbench.cluster import check_slurm
from dpfedbench.results_format import check_format, mark_format

try:
    check_format("results")
except BenchError as error:
    sys.exit(f"results: {error}")


onstart:
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


rule prune:
    """List the runs that no table or figure of any preset needs; --config prune=yes removes them."""
    log:
        "results/logs/prune.log",
    localrule: True
    conda:
        "../envs/dpfedbench.yaml"
    threads: 1
    resources:
        mem_mb=500,
        runtime=10,
        gpu=0,
    params:
        root=ROOT,
        current=list(PLAN.runs),
        delete=PRUNE,
    script:
        "../scripts/prune.py"
