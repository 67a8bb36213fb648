"""Checks before the first job, and two commands about the results folder: `cost` and `verify`.

Requires common.smk. `cost` also needs the data sets and partitions of all runs. Makes results/format.json, cost.csv and
cost.md; with `--config only=NAME`, the latter two in experiments/NAME/.
"""

from dpfedbench.results_format import check_format, mark_format
from workflow_jobs import start

NICENESS = start.niceness_of(NICE)
try:
    check_format("results")
except BenchError as error:
    sys.exit(f"results: {error}")


# A dry run does not call `onstart`.
if workflow.output_settings.dryrun and workflow.exec_mode == ExecMode.DEFAULT:
    logger.addFilter(start.DryRunEstimate(workflow, DESCRIPTIONS))


onstart:
    start.lower_priority(NICENESS)
    if TERMINAL is not None:
        start.show_progress(workflow, TERMINAL, DESCRIPTIONS)
    start.order_jobs(workflow, DESCRIPTIONS, PLANNED.milestones())
    start.remove_default_rate_limit(workflow)
    start.continue_after_failed_library(workflow)
    if WARM_ALLOWED:
        start.allow_warm_process(workflow)
    try:
        start.check_trainings(workflow, run_of, MACHINE.processes)
    except BenchError as error:
        sys.exit(f"configuration: {error}")
    try:
        mark_format("results")
        start.check_cluster(workflow)
    except BenchError as error:
        sys.exit(f"cluster: {error}")


rule cost:
    """Estimate the hours that all trainings of the configuration take on this machine, by method."""
    input:
        images=PLANNED.data_to_time(*ONLY)[0],
        clients=PLANNED.data_to_time(*ONLY)[1],
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
        reports=lambda wildcards: PLANNED.cost_reports(*ONLY),
        cores=lambda wildcards: workflow.cores,
    script:
        "../scripts/cost.py"


rule verify:
    """Check a results folder: compare every file with its checksum, and compute every account again."""
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
