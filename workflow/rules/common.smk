"""The plan of the configuration, and what the rules need to know of it."""

import os
import traceback

from snakemake.settings.types import DeploymentMethod

from dpfedbench.errors import BenchError
from workflow_jobs.jobs import mark_workflow, own_sources_first
from dpfedbench.plugins import use_configured
from workflow_jobs.warm import WARM

DATA = "results/data/{dataset}"
CLIENTS = "results/clients/{dataset}/{clients}"
FEATURES = "results/features/{dataset}/{key}"
RUN = "results/runs/{method}/{dataset}/{task}/{key}/seed{seed}"

own_sources_first(ROOT / "src")
mark_workflow()
# Whether jobs may have a warm process; a cluster's job that is told so by this process's environment has none.
WARM_ALLOWED = os.environ.pop(WARM, "") != "no"


# No part of the configuration: which libraries libraries.smk has in its table.
LIBRARIES = {
    path.stem: path for path in sorted(ROOT.glob("workflow/scripts/libraries/*.py"))
}
LIBRARIES_CHOSEN = str(config.pop("libraries", ",".join(LIBRARIES))).split(",")
if not {*LIBRARIES_CHOSEN} <= {*LIBRARIES}:
    sys.exit(
        f"configuration: libraries is {','.join(LIBRARIES_CHOSEN)}: expected some of {','.join(LIBRARIES)}"
    )
try:
    use_configured(config)
    # In here, since they read the plugins' methods and parts.
    from dpfedbench.experiments.configuration import (
        Configuration,
        check_folder,
        check_names,
        explicit_values,
    )
    from dpfedbench.data import DATASETS_TABLE
    from dpfedbench.experiments.code_hash import hash_with_scripts
    from dpfedbench.experiments.datasets import known_datasets, read_holdings
    from dpfedbench.experiments.expand import make_plan
    from dpfedbench.experiments.planned import Planned
    from dpfedbench.experiments.targets import own_command
    from dpfedbench.papers import METHODS

    CONFIGURATION = Configuration.read(config)
    check_folder(CONFIGURATION.experiments_folder)
    check_names(SHIPPED, GIVEN)
    DATASETS = known_datasets(DATASETS_TABLE, CONFIGURATION)
    PLAN = make_plan(
        CONFIGURATION,
        datasets=DATASETS,
        holdings=read_holdings(DATASETS_TABLE),
    )
except BenchError as error:
    # One line on stderr and exit code 1; an exception would be shown with Snakemake's own stack.
    sys.exit(f"configuration: {error}")
except Exception:
    # Python's own traceback has the file and line of a fault in a plugin. Snakemake's would leave most of it out.
    traceback.print_exc()
    sys.exit(1)

# Scripts get numbers where `--config` gave text.
config.update(explicit_values(CONFIGURATION))
MACHINE = CONFIGURATION.machine
config["machine"], config["data"] = MACHINE.plain(), CONFIGURATION.data.plain()
PLANNED = Planned(CONFIGURATION, PLAN)
REPORT, PAPERS = PLANNED.report, PLANNED.papers
run_of, partition_of = PLANNED.run_of, PLANNED.partition_of
# The hash of what a cheap rule depends on: packages, its script, and further files.
code_of = hash_with_scripts(ROOT / "workflow" / "scripts")


wildcard_constraints:
    method="|".join(METHODS),
    dataset="|".join(DATASETS),
    task=r"\d+way-\d+shot|\d+class",
    clients=r"[^/]*\d+clients-[^/]+-seed\d+",
    key="[0-9a-f]{10}",
    test=r"\d+shot-\d+steps-[0-9.e-]+rate-\d+tasks-\d+query(-[a-z0-9.-]+)?",
    seed=r"\d+",
    paper="|".join(PAPERS),
    item="|".join({name: None for _, name in PLAN.items}),
    of="(%s)?" % "|".join(f"{paper}/" for paper in PAPERS),
    batch=r"\d+|[0-9a-f]{10}-seed\d+",


# How the caller calls the workflow. It is no parameter of a rule, and so no reason to make anything again: what a job is
# told, its script gets by `config`.
config["command"] = own_command(
    through_uv="UV_RUN_RECURSION_DEPTH" in os.environ,
    through_conda=DeploymentMethod.CONDA
    in workflow.deployment_settings.deployment_method,
    files=workflow.config_settings.configfiles,
    values=workflow.config_settings.config_args or (),
    root=ROOT,
)
# Likewise the files of --configfile that Snakemake read, for the provenance.
config["configuration_files"] = [
    os.path.relpath(path, ROOT if Path(path).is_relative_to(ROOT) else Path.cwd())
    for path in workflow.config_settings.configfiles
]
# Likewise one of the runs that read the same features, for the job that makes them: their key stands for what it reads.
config["features"] = {
    run.features_folder: run.plain()
    for run in PLAN.runs.values()
    if run.features_folder
}
