"""A finished run, made by the rules' own scripts. The fixtures `finished_run` and
`results_copy` of tests/conftest.py have it.

Paths are relative: a test changes to the folder that holds `results`.
"""

import json
import runpy
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dpfedbench.files import read_json, write_json
from dpfedbench.method import Method
from dpfedbench.verification import check_accounts, check_files
from dpsum.ledger import chain_of
from tests.dpfedbench.training.conftest import make_config
from workflow_jobs.manifests import seal

SCRIPTS = Path(__file__).resolve().parents[1] / "workflow" / "scripts"
RUN = make_config({"participation": {"rounds": 4}, "validation": {"every": 2}})
RUN_FOLDER = Path("results/runs", RUN.folder)
MACHINE = {"kernels": "auto", "checkpoint_seconds": 1e9, "device": "cpu"}


class FileList(list):
    """Stand-in for Snakemake's lists of files: paths, some of which have names."""

    def __init__(self, *paths: Any, **named_paths: Any) -> None:
        for name, value in named_paths.items():
            is_list = isinstance(value, list)
            setattr(self, name, list(map(str, value)) if is_list else str(value))
        for value in (*paths, *named_paths.values()):
            self.extend(map(str, value if isinstance(value, list) else [value]))
        self.get = self.__dict__.get


class Params(SimpleNamespace):
    """Stand-in for Snakemake's parameters."""

    def get(self, name: str) -> Any:
        return getattr(self, name, None)


def script_context(
    rule: str, inputs: FileList, outputs: FileList, **changes: Any
) -> SimpleNamespace:
    """Return the object `snakemake` that a script of a rule finds."""
    folder = Path(outputs[0]).parent if outputs else Path("results")
    values = {
        "log": [str(folder / "logs" / f"{rule}.log")],
        "params": Params(),
        "resources": {},
        "threads": 1,
        "config": {"machine": MACHINE},
    }
    return SimpleNamespace(rule=rule, input=inputs, output=outputs, **values | changes)


def run_script(rule: str, inputs: FileList, outputs: FileList, **changes: Any) -> None:
    """Run a rule's script as Snakemake does."""
    context = script_context(rule, inputs, outputs, **changes)
    runpy.run_path(str(SCRIPTS / f"{rule}.py"), {"snakemake": context}, "__main__")


def folder_of(run: Method) -> Path:
    return Path("results/runs", run.folder)


def inputs_of(run: Method) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the files of a run's data set and of its clients, by name."""
    data = Path("results/data", run.dataset)
    clients = Path("results/clients", run.clients_folder)
    tables = [*sorted(data.glob("*.csv")), data / "summary.json"]
    images = {"images": data / "images.npy", "data": tables}
    summary = clients / "summary.json"
    return images, {"clients": clients / "clients.npz", "summary": summary}


def configure(run: Method = RUN) -> None:
    output = FileList(folder_of(run) / "config.yaml")
    run_script("configure", FileList(), output, params=Params(run=run.plain()))


def train_run(run: Method = RUN, **changes: Any) -> None:
    folder = folder_of(run)
    images, clients = inputs_of(run)
    inputs = FileList(config=[folder / "config.yaml"], **images, **clients)
    outputs = FileList(
        model=folder / "model.safetensors",
        history=folder / "history.csv",
        ledger=folder / "ledger.jsonl",
        training=folder / "training.json",
    )
    run_script("train", inputs, outputs, **changes)


def account(run: Method = RUN, search: dict[str, Any] | None = None) -> None:
    folder = folder_of(run)
    _, clients = inputs_of(run)
    shared = list(clients.values()) if run.client_data == "tasks" else []
    inputs = FileList(
        config=[folder / "config.yaml"],
        ledger=folder / "ledger.jsonl",
        training=folder / "training.json",
        clients=shared,
    )
    output = FileList(folder / "privacy.json")
    run_script("account", inputs, output, params=Params(search=search))


def meta_test(run: Method = RUN, **params: Any) -> None:
    folder = folder_of(run)
    images, _ = inputs_of(run)
    inputs = FileList(
        config=[folder / "config.yaml"], model=folder / "model.safetensors", **images
    )
    output = FileList(folder / "metrics.json")
    run_script("meta_test", inputs, output, params=Params(**params))


def audit() -> None:
    inputs = FileList(
        config=[RUN_FOLDER / "config.yaml"],
        ledger=RUN_FOLDER / "ledger.jsonl",
        training=RUN_FOLDER / "training.json",
    )
    run_script("audit", inputs, FileList(RUN_FOLDER / "audit.json"))


def verify() -> None:
    params = Params(searches={RUN.folder: None})
    run_script("verify", FileList(), FileList(), params=params)


def find_faults() -> list[str]:
    """Return the faults of the results folder, one line each."""
    results = Path("results")
    checks = [*check_files(results), *check_accounts(results, {RUN.folder: None})]
    lines = [fault for fault in checks if fault]
    assert all("\n" not in line for line in lines)
    return lines


def rewrite_ledger(
    folder: Path,
    change: Callable[[dict[str, Any]], Any],
    lines_kept: int = 4,
    update_training: bool = True,
) -> None:
    """Change each of the first lines of a ledger, and its chain so that it fits.

    With `update_training`, training.json has the new end of the chain.
    """
    path = folder / "ledger.jsonl"
    lines = list[str]()
    for line in path.read_text().splitlines()[:lines_kept]:
        values = json.loads(line)
        change(values)
        previous = chain_of(lines)["head"]
        lines.append(json.dumps(values | {"previous": previous}) + "\n")
    path.write_text("".join(lines))
    if update_training:
        training = folder / "training.json"
        write_json(training, read_json(training) | {"ledger": chain_of(lines)})


def copy_inputs(run: Method, data: Path, clients: Path) -> None:
    """Copy a data set and its clients into the results folder, and seal them."""
    folders = {
        data: Path("results/data", run.dataset),
        clients: Path("results/clients", run.clients_folder),
    }
    for source, target in folders.items():
        shutil.copytree(source, target)
        seal("rule", sorted(path for path in target.iterdir() if path.is_file()))


def make_finished_run(root: Path, data: Path, clients: Path) -> Path:
    """Make the run's files below `root`, from a data set and its clients."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        copy_inputs(RUN, data, clients)
        for stage in (configure, train_run, meta_test, account, audit):
            stage()
    return root
