"""The plan of the configuration, the paths of results, and the lookups that rules share."""

import os
import traceback

from snakemake.settings.types import DeploymentMethod
from snakemake_interface_executor_plugins.settings import ExecMode

from dpfedbench.errors import BenchError
from workflow_jobs.folder_lock import wait_for_other_calls
from workflow_jobs.jobs import mark_workflow, own_sources_first
from workflow_jobs.hand_over import WARM

DATA = "results/data/{dataset}"
CLIENTS = "results/clients/{dataset}/{clients}"
FEATURES = "results/features/{dataset}/{key}"
RUN = "results/runs/{method}/{dataset}/{task}/{key}/seed{seed}"

own_sources_first(*source_folders(ROOT))
mark_workflow()
if workflow.exec_mode == ExecMode.DEFAULT:
    wait_for_other_calls(Path(".snakemake"), sys.argv[1:])
# Whether jobs may share a warm process. The variable is removed, so that jobs of a cluster do not inherit it.
WARM_ALLOWED = os.environ.pop(WARM, "") != "no"


# `--config libraries=opacus,pfl` selects rows of the libraries' table. It does not belong to the configuration.
LIBRARIES = {
    path.stem: path for path in sorted(ROOT.glob("workflow/scripts/libraries/*.py"))
}
# These are of terminal.smk and machine.smk; each configfile brings them back.
config.pop("terminal", None)
NICE = config.pop("nice", None)
# `--config only=mine,theirs` restricts the default target and `cost` to these experiments; `only=own` to those that the
# user's files make. It does not belong to the configuration either.
only = str(config.pop("only", ""))
LIBRARIES_CHOSEN = str(config.pop("libraries", ",".join(LIBRARIES))).split(",")
if not {*LIBRARIES_CHOSEN} <= {*LIBRARIES}:
    sys.exit(
        f"configuration: libraries is {','.join(LIBRARIES_CHOSEN)}: expected some of {','.join(LIBRARIES)}"
    )
try:
    # These imports read the methods and parts of plugins, which files.smk has imported.
    from dpfedbench.experiments.configuration import (
        Configuration,
        check_folder,
        check_names,
        choose_experiments,
        explicit_values,
    )
    from dpfedbench.data import DATASETS_TABLE
    from dpfedbench.experiments.code_hash import code_hash
    from dpfedbench.experiments.datasets import (
        known_datasets,
        read_holdings,
        read_owned,
    )
    from dpfedbench.experiments.expand import make_plan
    from dpfedbench.experiments.job_descriptions import (
        REFERENCE_RATES,
        JobDescriptions,
    )
    from dpfedbench.experiments.paper_order import order_papers
    from dpfedbench.experiments.planned import Planned
    from dpfedbench.experiments.targets import own_command
    from dpfedbench.papers import METHODS

    CONFIGURATION = Configuration.read(config)
    check_folder(CONFIGURATION.experiments_folder)
    check_names(SHIPPED, GIVEN)
    DATASETS = known_datasets(CONFIGURATION)
    PLAN = make_plan(
        CONFIGURATION,
        datasets=DATASETS,
        holdings=read_holdings(CONFIGURATION),
        files=[DEFAULTS, *SHIPPED, *GIVEN],
        owned=read_owned(CONFIGURATION),
    )
    if workflow.exec_mode == ExecMode.DEFAULT:
        for notice in PLAN.notices:
            print(f"notice: {notice}", file=sys.stderr)
    ONLY = choose_experiments(only, GIVEN, [paper for paper, _ in PLAN.items])
except BenchError as error:
    # One line on stderr and exit code 1. Snakemake would show an exception with its own stack.
    sys.exit(f"configuration: {error}")
except Exception:
    # Python's own traceback has the file and line of a fault in a plugin. Snakemake would shorten it.
    traceback.print_exc()
    sys.exit(1)

# Values of `--config` are text; scripts get them with their types.
config.update(explicit_values(CONFIGURATION))
MACHINE = CONFIGURATION.machine
config["machine"], config["data"] = MACHINE.plain(), CONFIGURATION.data.plain()
TITLES = {
    name: paper.title
    for name, paper in CONFIGURATION.experiments.items()
    if paper is not None
}
# The reference's times, not this machine's: `cost` must not change the order, and with it the pages so far.
ORDER = order_papers(PLAN, JobDescriptions(PLAN, TITLES, (REFERENCE_RATES,)).seconds)
PLANNED = Planned(CONFIGURATION, PLAN, ORDER)
REPORT, PAPERS = PLANNED.report, PLANNED.papers
run_of, partition_of = PLANNED.run_of, PLANNED.partition_of
# Texts and times of jobs, for the line of progress.
DESCRIPTIONS = JobDescriptions(PLAN, TITLES, [*PLANNED.rate_files(), REFERENCE_RATES])


def code_of(rule, *files):
    """Return a hash of the packages, script and further files that a cheap rule depends on."""
    return code_hash(rule, [ROOT / "workflow" / "scripts" / f"{rule}.py", *files])


def item_names(tables):
    """Return a pattern of the names of all tables, or of all figures."""
    items = PLAN.items.values()
    return "|".join(
        {item.name: None for item in items if (item.kind == "table") == tables}
    )


wildcard_constraints:
    method="|".join(METHODS),
    dataset="|".join(DATASETS),
    task=r"\d+way-\d+shot|\d+class",
    clients=r"[^/]*\d+clients-[^/]+-seed\d+",
    key="[0-9a-f]{10}",
    test=r"\d+shot-\d+steps-[0-9.e-]+rate-\d+tasks-\d+query(-[a-z0-9.-]+)?",
    seed=r"\d+",
    paper="|".join(PAPERS),
    finished=r"\d+",
    of="(%s)?" % "|".join(f"{paper}/" for paper in PAPERS),


# The command that the user called, for tables to quote. Scripts read it from `config`, because a parameter of a rule
# would make Snakemake run the rule again when the command changes.
config["command"] = own_command(
    through_uv="UV_RUN_RECURSION_DEPTH" in os.environ,
    through_conda=DeploymentMethod.CONDA
    in workflow.deployment_settings.deployment_method,
    files=workflow.config_settings.configfiles,
    values=workflow.config_settings.config_args or (),
    root=ROOT,
)
# The files of --configfile, for the provenance; in `config` for the same reason.
config["configuration_files"] = [
    os.path.relpath(path, ROOT if Path(path).is_relative_to(ROOT) else Path.cwd())
    for path in workflow.config_settings.configfiles
]
# For each folder of features, one of the runs that read it; the folder's key identifies the features.
config["features"] = {
    run.features_folder: run.plain()
    for run in PLAN.runs.values()
    if run.features_folder
}
