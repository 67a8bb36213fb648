"""The plan of the configuration, and what the rules need to know of it."""

import functools
import os

from snakemake.settings.types import DeploymentMethod

from dpfedbench import use_code
from dpfedbench.errors import BenchError
from dpfedbench.imports import digest, of_stage
from dpfedbench.jobs import mark_workflow, own_sources_first
from dpfedbench.warm import WARM
from dpfedbench.whose import said_of
from dpfedbench.yaml_files import with_place

DATA = "results/data/{dataset}"
CLIENTS = "results/clients/{dataset}/{clients}"
FEATURES = "results/features/{dataset}/{key}"
RUN = "results/runs/{method}/{dataset}/{task}/{key}/seed{seed}"

own_sources_first(ROOT / "src")
mark_workflow()
# Whether jobs may have a warm process; a cluster's job that is told so by this process's environment has none.
WARM_ALLOWED = os.environ.pop(WARM, "") != "no"


def asked(name):
    """A yes or no that is no part of the configuration: it says what a target of machine.smk does."""
    said = str(config.pop(name, "no")).lower()
    if said not in ("yes", "true", "1", "no", "false", "0"):
        sys.exit(f"configuration: {name} is {said}: expected yes or no")
    return said in ("yes", "true", "1")


PRUNE, DEEP = asked("prune"), asked("deep")
# Nor is this: which libraries libraries.smk has in its table.
LIBRARIES = {
    path.stem: path for path in sorted(ROOT.glob("workflow/scripts/libraries/*.py"))
}
LIBRARIES_CHOSEN = str(config.pop("libraries", ",".join(LIBRARIES))).split(",")
if not {*LIBRARIES_CHOSEN} <= {*LIBRARIES}:
    sys.exit(
        f"configuration: libraries is {','.join(LIBRARIES_CHOSEN)}: expected some of {','.join(LIBRARIES)}"
    )
try:
    use_code(config.get("code_folder"))
    # In here, since a fault in a method's or a part's module is reported as one of the configuration.
    from dpfedbench.experiments.configuration import (
        Configuration,
        check_folder,
        check_names,
        given,
    )
    from dpfedbench.data import DATASETS_TABLE
    from dpfedbench.experiments.datasets import known_datasets, read_holdings
    from dpfedbench.experiments.expand import make_plan
    from dpfedbench.experiments.targets import own_command
    from dpfedbench.methods import METHODS

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
    sys.exit(f"configuration: {with_place(str(error), GIVEN)}")
except Exception as error:
    # So is what a method or a part of one's own raises while the plan is made.
    if not (said := said_of(error)):
        raise
    sys.exit(f"configuration: {said}")

# Scripts get numbers where `--config` gave text.
config.update(given(CONFIGURATION))
MACHINE = CONFIGURATION.machine
config["machine"], config["data"] = MACHINE.plain(), CONFIGURATION.data.plain()
REPORT = f"results/{CONFIGURATION.preset}" if CONFIGURATION.preset else "results"
FRONTIERS = [
    f"{REPORT}/figures/{item.paper}/{item.name}"
    for item in PLAN.items.values()
    if item.kind == "frontier"
]
PAPERS = list(dict.fromkeys(paper for paper, _ in PLAN.items))
TESTS = PLAN.tests
SEARCHES = PLAN.searches
# Of all papers together ("") and of each: the private configurations that it shows.
PRIVATE_OF = {paper: PLAN.private(paper or None) for paper in ("", *PAPERS)}
PRIVATE = PRIVATE_OF[""]
# For whose table of privacy a run is audited: that of all papers, and of some.
AUDITED = {}
for paper, entries in PRIVATE_OF.items():
    for entry in entries:
        AUDITED.setdefault(entry["audited"], []).append(paper)
PARTITIONS = {run.clients_folder: run for run in PLAN.runs.values()}


wildcard_constraints:
    method="|".join(METHODS),
    dataset="|".join(DATASETS),
    task=r"\d+way-\d+shot|\d+class",
    clients=r"[^/]*\d+clients-[^/]+-seed\d+",
    key="[0-9a-f]{10}",
    test=r"\d+shot-\d+steps-[0-9.e-]+rate-\d+tasks-\d+query",
    seed=r"\d+",
    paper="|".join(PAPERS),
    item="|".join({name: None for _, name in PLAN.items}),
    of="(%s)?" % "|".join(f"{paper}/" for paper in PAPERS),
    batch=r"\d+|[0-9a-f]{10}-seed\d+",


def targets(paper=None):
    """The tables and figures of one paper, or of all, with the table of privacy and its figure."""
    of = f"{paper}/" if paper else ""
    tables = [
        f"{REPORT}/tables/{item.paper}/{item.name}" for item in PLAN.tables(paper)
    ]
    figures = [
        f"{REPORT}/figures/{item.paper}/{item.name}" for item in PLAN.figures(paper)
    ]
    if PRIVATE_OF[paper or ""]:
        tables += [f"{REPORT}/tables/{of}answer", f"{REPORT}/tables/{of}privacy"]
        figures.append(f"{REPORT}/figures/{of}privacy")
    if paper is None and FRONTIERS:
        tables.append(f"{REPORT}/tables/frontier")
    return [f"{path}.{kind}" for path in tables for kind in ("csv", "md")] + [
        f"{path}.{kind}" for path in figures for kind in ("png", "csv")
    ]


def frontiers():
    """The figures of frontiers, and their table."""
    figures = [f"{path}.{kind}" for path in FRONTIERS for kind in ("png", "csv")]
    tables = [f"{REPORT}/tables/frontier.{kind}" for kind in ("csv", "md")]
    return figures + tables if FRONTIERS else []


def page_items(paper=None):
    """The tables and figures for a page: of those among the targets, with what is configured."""
    items = []
    for target in targets(paper):
        path = Path(target).relative_to(REPORT)
        if (path.parts[0], path.suffix) in (("tables", ".csv"), ("figures", ".png")):
            item = PLAN.items.get((path.parent.name, path.stem))
            items.append(
                {
                    "path": path.as_posix(),
                    "item": item and item.describe().plain(),
                }
            )
    return items


def entries_of(wildcards):
    """The private configurations of the paper that the wildcards name, or of all."""
    return PRIVATE_OF[wildcards.of.rstrip("/")]


def files_of_private(wildcards):
    """The files of their runs, and of their audits: seeds share one, and some configurations too."""
    names = ("metrics.json", "privacy.json", "training.json", "ledger.jsonl")
    found = {
        f"{folder}/{name}": None
        for entry in entries_of(wildcards)
        for folder in entry["folders"]
        for name in names
    }
    audits = {f"{entry['audited']}/audit.json" for entry in entries_of(wildcards)}
    return [f"results/runs/{file}" for file in (*found, *sorted(audits))]


def privacy_labels(wildcards):
    """What `snakemake --report` says of the table of privacy in its list."""
    data = sorted({entry["dataset"] for entry in entries_of(wildcards)})
    title = "Three ε beside every private number"
    return {"name": "privacy", "title": title, "data": ", ".join(data)}


def answer_labels(wildcards):
    """What `snakemake --report` says of the answer in its list."""
    title = "What papers claim, and what holds"
    return privacy_labels(wildcards) | {"name": "answer", "title": title}


def frontier_labels(wildcards):
    """What `snakemake --report` says of the table of frontiers in its list."""
    shown = [item for item in PLAN.items.values() if item.kind == "frontier"]
    data = sorted({cell.runs[0].dataset for item in shown for cell in item.cells})
    title = "The frontier: accuracy over the ε that holds"
    return {"name": "frontier", "title": title, "data": ", ".join(data)}


def files_for_page(paper=None):
    """The files of runs that a page shows, of one paper or of all."""
    items = [
        item for item in PLAN.items.values() if paper is None or item.paper == paper
    ]
    runs = PLAN.runs if paper is None else {run for item in items for run in item.runs}
    names = (
        "config.yaml",
        "history.csv",
        "ledger.jsonl",
        "metrics.json",
        "privacy.json",
        "training.json",
    )
    audits = {f"{entry['audited']}/audit.json" for entry in PRIVATE_OF[paper or ""]}
    files = [
        *(f"{run}/{name}" for run in sorted(runs) for name in names),
        *sorted(audits),
    ]
    return [f"results/runs/{file}" for file in files]


def stand_ins():
    """What was measured in place of which data set that is published on, where the configuration has such."""
    return {
        cell.published_dataset: cell.runs[0].dataset
        for item in PLAN.items.values()
        for cell in item.cells
        if cell.published_dataset != cell.runs[0].dataset
    }


def run_of(wildcards):
    """The run whose folder the wildcards name."""
    return PLAN.runs[RUN.removeprefix("results/runs/").format(**wildcards)]


def test_of(wildcards):
    """What the meta-test that the wildcards name, none of their run's own, has in place of the run's values."""
    test = TESTS[run_of(wildcards).folder, wildcards.test]
    rules = ("shots", "steps", "rate", "tasks", "query_per_class")
    values = {"shots": test.task.shots} | test.evaluation.plain()
    return {key: values[key] for key in rules}


def search_of(wildcards):
    """The search for settings that the run that the wildcards name is one of."""
    return search_for(run_of(wildcards))


def search_for(run):
    """The search for settings that the run is one of, else what the configuration declares for its method."""
    return SEARCHES.get(run.folder, config.get("tuning", {}).get(run.method))


def references_of(wildcards):
    """The files of other runs that the run that the wildcards name needs."""
    others = run_of(wildcards).references
    return [f"results/runs/{other.folder}/{file}" for file, other in others.items()]


def made_for(wildcards):
    """The files of other jobs that the model of the run that the wildcards name is trained and tested with."""
    folder = run_of(wildcards).features_folder
    names = ("features.npy", "features.json") if folder else ()
    return references_of(wildcards) + [f"results/features/{folder}/{name}" for name in names]


def batches():
    """The runs whose audits a table of privacy needs, up to eight of one method a batch, by method and number.

    To start Python and torch takes longer than most audits. A batch is for one set of papers, so that no paper's target
    waits for another paper's runs.
    """
    groups, found, together = {}, {}, 8
    for folder, papers in AUDITED.items():
        key = (PLAN.runs[folder].method, tuple(dict.fromkeys(papers)))
        groups.setdefault(key, []).append(folder)
    for (method, _), folders in groups.items():
        for start in range(0, len(folders), together):
            number = 1 + sum(name == method for name, _ in found)
            found[method, str(number)] = folders[start : start + together]
    return found


BATCHES = batches()
BATCH_OF = {
    folder: f"{REPORT}/audits/{method}-{number}"
    for (method, number), folders in BATCHES.items()
    for folder in folders
}


def audited_together(wildcards):
    """The runs of a batch of audits: of those for the table of privacy, or one that is asked for by itself."""
    name = (wildcards.method, wildcards.batch)
    if name in BATCHES:
        return BATCHES[name]
    key, _, seed = wildcards.batch.partition("-seed")
    return [
        folder
        for folder, run in PLAN.runs.items()
        if (run.method, run.key, str(run.seed)) == (wildcards.method, key, seed)
    ]


def batch_of(wildcards):
    """The batch that a run is audited in."""
    folder = run_of(wildcards).folder
    alone = f"{REPORT}/audits/{wildcards.method}-{wildcards.key}-seed{wildcards.seed}"
    return BATCH_OF.get(folder, alone)


def files_of_batch(name):
    """An input function: this file of every run of a batch of audits."""
    return lambda wildcards: [
        f"results/runs/{folder}/{name}" for folder in audited_together(wildcards)
    ]


def partition_of(wildcards):
    """A run that uses the partition that the wildcards name; those who share it agree on it."""
    return PARTITIONS[f"{wildcards.dataset}/{wildcards.clients}"]


def partition_for_account(wildcards):
    """The partition that says which clients use which image, where the account is of that."""
    run = run_of(wildcards)
    if not run.accounts_images:
        return []
    folder = f"results/clients/{run.clients_folder}"
    return [f"{folder}/clients.npz", f"{folder}/summary.json"]


def item_of(wildcards):
    """The table or figure that the wildcards name."""
    return PLAN.items[wildcards.paper, wildcards.item]


def described(wildcards):
    """The table or figure as plain data, for its script."""
    return item_of(wildcards).describe().plain()


def category_of(wildcards):
    """Where `snakemake --report` lists a table or figure: under its paper."""
    return CONFIGURATION.experiments[wildcards.paper].title


def labels_of(wildcards):
    """What `snakemake --report` says of a table or figure in its list."""
    item = item_of(wildcards)
    cells = [cell.runs[0] for cell in item.cells]
    return {
        "name": item.name,
        "title": item.spec["title"],
        "data": ", ".join(sorted({run.dataset for run in cells})),
    }


def files_of_runs(*names):
    """An input function: these files of every run that the table or figure shows."""

    def find(wildcards):
        return [
            f"results/runs/{run}/{name}"
            for run in item_of(wildcards).runs
            for name in names
        ]

    return find


def tests_of_runs(wildcards):
    """An input function: the meta-tests that the figure shows and that are not the runs' own."""
    return [
        f"results/runs/{run}/tests/{test}.json"
        for run, test in item_of(wildcards).tests
    ]


@functools.cache
def code(script, *modules, more=()):
    """A hash of all that a script imports, as a parameter of rules that are cheap to run again when that changes.

    Of methods and their parts, which are found by place, these modules are looked into: those of the runs that the rule
    is of. Training has no such hash: it goes by the version that its method states, so that a comment retrains nothing.
    """
    found = of_stage(ROOT / f"workflow/scripts/{script}.py", modules)
    return digest([*found, *(path for pattern in more for path in ROOT.glob(pattern))])


def code_for(script, folders=lambda wildcards: [run_of(wildcards).folder], more=()):
    """A parameter: the code of a stage of some runs, those that the wildcards name if none are said."""

    def find(wildcards):
        modules = {
            name for run in folders(wildcards) for name in PLAN.runs[run].modules
        }
        return code(script, *sorted(modules), more=more)

    return find


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
# Likewise one of the runs that read the same features, for the job that makes them: their key stands for what it reads.
config["features"] = {
    run.features_folder: run.plain()
    for run in PLAN.runs.values()
    if run.features_folder
}
