"""The plan of the configuration, and what the rules need to know of it."""

import hashlib

from dpfedbench.config import typed
from dpfedbench.errors import BenchError
from dpfedbench.experiments import make_plan, read_datasets
from dpfedbench.methods import METHODS

ROOT = Path(workflow.basedir)
DATA = "results/data/{dataset}"
CLIENTS = "results/clients/{dataset}/{clients}"
RUN = "results/runs/{method}/{dataset}/{task}/{key}/seed{seed}"

config.update(typed(config))
try:
    DATASETS = read_datasets(ROOT / "config/datasets.tsv")
    PLAN = make_plan(
        config,
        method_defaults={name: method.DEFAULTS for name, method in METHODS.items()},
        datasets=DATASETS,
    )
except BenchError as error:
    # One line on stderr and exit code 1; an exception would be shown with Snakemake's own stack.
    sys.exit(f"configuration: {error}")

REPORT = f"results/{config['preset']}" if config["preset"] else "results"
PAPERS = list(dict.fromkeys(paper for paper, _ in PLAN.items))
PARTITIONS = {run.clients_folder: run for run in PLAN.runs.values()}


wildcard_constraints:
    method="|".join(METHODS),
    dataset="|".join(DATASETS),
    task=r"\d+way-\d+shot|\d+class",
    clients=r"\d+way-\d+clients-\d+examples-[a-z]+-seed\d+|\d+clients-\d+fragments-seed\d+",
    key="[0-9a-f]{10}",
    seed=r"\d+",
    paper="|".join(PAPERS),
    item="|".join({name: None for _, name in PLAN.items}),


def targets(paper=None):
    """The tables and figures of one paper, or of all."""
    tables = [
        f"{REPORT}/tables/{item.paper}/{item.name}" for item in PLAN.tables(paper)
    ]
    figures = [
        f"{REPORT}/figures/{item.paper}/{item.name}" for item in PLAN.figures(paper)
    ]
    return [f"{path}.{kind}" for path in tables for kind in ("csv", "md")] + [
        f"{path}.{kind}" for path in figures for kind in ("png", "csv")
    ]


def run_of(wildcards):
    """The run whose folder the wildcards name."""
    return PLAN.runs[RUN.removeprefix("results/runs/").format(**wildcards)]


def partition_of(wildcards):
    """A run that uses the partition that the wildcards name; those who share it agree on it."""
    return PARTITIONS[f"{wildcards.dataset}/{wildcards.clients}"]


def partition_for_account(wildcards):
    """The partition that says which clients use which image, where the account is of that."""
    run = run_of(wildcards)
    if run.by_record or not run.private:
        return []
    folder = f"results/clients/{run.clients_folder}"
    return [f"{folder}/clients.npz", f"{folder}/summary.json"]


def item_of(wildcards):
    """The table or figure that the wildcards name."""
    return PLAN.items[wildcards.paper, wildcards.item]


def described(wildcards):
    """The table or figure as plain data, for its script."""
    return item_of(wildcards).describe(
        {name: method.TITLE for name, method in METHODS.items()}
    )


def files_of_runs(*names):
    """An input function: these files of every run that the table or figure shows."""

    def find(wildcards):
        return [
            f"results/runs/{run}/{name}"
            for run in item_of(wildcards).runs
            for name in names
        ]

    return find


def digest(*patterns):
    """A hash of source files, as a parameter of rules that are cheap to run again when those change.

    Training has none: it goes by the version that its method states, so that a comment retrains nothing.
    """
    files = sorted(path for pattern in patterns for path in ROOT.glob(pattern))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[
        :12
    ]


def command_of(target):
    """The command that makes a target, for its reader."""
    preset = (
        f" --configfile config/presets/{config['preset']}.yaml"
        if config["preset"]
        else ""
    )
    # The target goes first: --configfile takes every word after it for a file of its own.
    return f"uv run snakemake --cores all {target}{preset}"
