"""Plugins: modules of a working folder, and a wheel that is built, installed and run.

Their code is that of the pages in docs.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.calls import CallSnakemake
from tests.pages import files_of_page
from tests.shipped import without_others
from tests.workflow.test_dag import jobs

ROOT = Path(__file__).resolve().parents[2]
INSIDE = "src/dpfedbench/"
METHOD = "anil|geometric|yogi"
PLUGINS = "dp_anil,geometric,yogi"


def write_code(folder: Path, *pages: str, pattern: str, package: str = "") -> Path:
    """Write the files of pages into one folder, as modules that import each other.

    `pattern` selects files by their paths. `package` is the prefix of their imports.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        Path(name): text
        for page in pages
        for name, text in files_of_page(page).items()
        if name.startswith(INSIDE) and re.search(pattern, name)
    }
    for path, text in files.items():
        for imported in files:
            module = ".".join(imported.with_suffix("").parts[1:])
            text = text.replace(f"from {module} ", f"from {package}{imported.stem} ")
        (folder / path.name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Make a working folder with the method and the parts of a page."""
    return write_code(tmp_path / "work", "add-a-part.md", pattern=METHOD)


def edit(path: Path) -> None:
    """Add a comment to a file."""
    path.write_text(path.read_text("utf-8") + "# edited\n", encoding="utf-8")


def run_code(
    code: str,
    *arguments: str,
    folder: Path,
    site: Path = ROOT,
    plugins: str = "",
) -> str:
    """Run code in a process of a folder; return its output, or its error's last line."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(site)]),
        "DPFEDBENCH_PLUGINS": plugins,
    }
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return done.stdout.strip()
    return done.stderr.splitlines()[-1].strip()


def ledger_of(run: Path) -> list[dict[str, object]]:
    lines = (run / "ledger.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


RUN = """
import sys
from pathlib import Path
from dpfedbench.papers import read_run
from dpfedbench.training.engine import train
run = read_run({
    "method": "dp-anil", "seed": 0, "dataset": "glyphs", "task": {"ways": 3, "shots": 1},
    "clients": {"count": 48, "examples_per_class": 4, "support_per_class": 1, "query_per_class": 2},
    "model": {"kind": "conv4", "filters": 4},
    "participation": {"kind": "one-pass", "cohort": 4, "rounds": 3},
    "clipping": {"kind": "geometric", "threshold": 0.5, "factor": 0.9},
    "noise": {"multiplier": 1.0},
    "budget": {"delta": 1e-3},
    "server": {"optimizer": {"kind": "yogi"}, "rate": 0.03},
})
"""
PRINT_IDENTITY = RUN + "print(run.made_by, run.key)"
TRAIN = f"""{RUN}
data, clients, folder = map(Path, sys.argv[1:])
train(run, data_dir=data, clients_dir=clients, run_dir=folder)
"""
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel('.')"


def install_wheel(repository: Path, site: Path) -> None:
    """Build the wheel of a repository and install it, without a network."""
    subprocess.run([sys.executable, "-c", BUILD], cwd=repository, check=True)
    (wheel,) = repository.glob("*.whl")
    command = [sys.executable, "-m", "pip", "install", "--quiet"]
    uv = shutil.which("uv")
    if uv:
        command = [uv, "pip", "install", "--offline", "--python", sys.executable]
    command += ["--no-deps", "--no-index", "--target", str(site), str(wheel)]
    subprocess.run(command, check=True)


def test_plugin_published_as_a_wheel_is_found_and_trained(
    federation: tuple[Path, Path], tmp_path: Path
) -> None:
    """The repository is that of docs/recipes.md, with the method of docs/add-a-part.md."""
    package = tmp_path / "published" / "src" / "dpfedbench_anil"
    write_code(package, "add-a-part.md", pattern=METHOD, package="dpfedbench_anil.")
    files = files_of_page("recipes.md")
    for name in ("pyproject.toml", "src/dpfedbench_anil/__init__.py"):
        (tmp_path / "published" / name).write_text(files[name], encoding="utf-8")
    site = tmp_path / "site"
    install_wheel(tmp_path / "published", site)
    arguments = [*map(str, federation), str(tmp_path / "run")]
    unknown = run_code(TRAIN, *arguments, folder=tmp_path)
    assert "a method of your own is in a module that plugins lists" in unknown
    off = run_code(TRAIN, *arguments, folder=tmp_path, site=site, plugins="no")
    assert off == unknown
    run_code(TRAIN, *arguments, folder=tmp_path, site=site)
    releases = ledger_of(tmp_path / "run")
    # The plugin's clipping rule has C = 0.5 * 0.9^t. One release a round, over the
    # gradients of 4 clients of one pass.
    thresholds = [event["threshold"] for event in releases]
    assert thresholds == pytest.approx([0.5, 0.45, 0.405])
    assert {event["name"] for event in releases} == {"query-gradient-sum"}


def test_plugin_edit_of_a_file_or_of_its_imports_makes_another_run(
    work: Path, tmp_path: Path
) -> None:
    """Other files, and the place of the folder, are not in the hash."""
    late = "\ndef late():\n    from helpers import rates\n"
    method = work / "dp_anil.py"
    method.write_text(method.read_text("utf-8") + late, encoding="utf-8")
    helpers = work / "helpers"
    helpers.mkdir()
    (helpers / "__init__.py").touch()
    (helpers / "rates.py").write_text("from .deeper import FACTOR\n")
    (helpers / "deeper.py").write_text("FACTOR = 2\n")
    (helpers / "unused.py").touch()

    def identity(folder: Path = work) -> str:
        return run_code(PRINT_IDENTITY, folder=folder, plugins=PLUGINS)

    first = identity()
    version, digest, key = first.split()
    assert version == "1"
    assert re.fullmatch("[0-9a-f]{12}", digest)
    edit(helpers / "unused.py")
    assert identity() == first
    assert identity(shutil.copytree(work, tmp_path / "elsewhere")) == first
    identities = {first}
    for name in ("geometric.py", "anil.py", "helpers/deeper.py"):
        edit(work / name)
        identities.add(identity())
    assert len(identities) == 4
    assert {line.split()[2] for line in identities} == {key}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "from dpsum.clipping import Constant\n"
            "class Mine(Constant):\n    kind = 'mine'\n    factor: float = 1.0\n",
            r"mine\.Mine has a key 'factor', but is not a dataclass: put",
        ),
        (
            "from dpfedbench.papers.dp_fedmeta import DpAgr\n"
            "class Mine(DpAgr):\n    name = 'dp-agr'\n    title = 'Mine'\n",
            r"the methods in dpfedbench\.papers\.dp_fedmeta and mine both",
        ),
    ],
    ids=["setting that would be ignored", "name of another method"],
)
def test_plugin_with_a_fault_is_refused(work: Path, text: str, error: str) -> None:
    (work / "mine.py").write_text(text, encoding="utf-8")
    output = run_code(PRINT_IDENTITY, folder=work, plugins=f"{PLUGINS},mine")
    assert re.search(error, output)


PARTITION = """
import numpy as np
from types import SimpleNamespace
from tests.dpfedbench.training.conftest import DIFFERENCE, make_config
clients = {"partition": "halving", "ratio": 3.0}
run = make_config({"method": "dp-fedavg", "clients": clients}, general=DIFFERENCE)
held = run.clients.deal(SimpleNamespace(splits={"train": np.arange(400)}), seed=0)
print(*map(len, held), sorted(np.concatenate(held)) == list(range(400)))
"""


def test_partition_of_the_page_deals_records(tmp_path: Path) -> None:
    folder = write_code(tmp_path, "add-a-part.md", pattern="partitions/halving")
    output = run_code(PARTITION, folder=folder, plugins="halving")
    assert output == "270 90 30 10 True"


ACCOUNTANT_AND_ATTACK = """
from dpsum.accounting.analyses.known_rounds import OnePassAccountant
from dpsum.clipping import Constant

RULE = Constant

class Mine(OnePassAccountant):
    pair = "mine", "one-pass"

def score(run, rule, *, records, first):
    return records
"""
USE_THEM = """
import dpfedbench.papers
from dpsum.accounting.analyses import find
from dpfedbench.audit.attacks import score_of
from dpsum.clipping import Constant
print(type(find("mine", "one-pass")).__module__)
print(score_of(None, Constant(threshold=1.0), records=7, first=1.0))
"""


def test_plugin_may_have_an_accountant_and_an_attack(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(ACCOUNTANT_AND_ATTACK, encoding="utf-8")
    assert run_code(USE_THEM, folder=tmp_path, plugins="mine") == "mine\n7"
    duplicate = ACCOUNTANT_AND_ATTACK.replace('"mine",', '"gaussian",')
    path.write_text(duplicate, encoding="utf-8")
    error = run_code(USE_THEM, folder=tmp_path, plugins="mine")
    assert error.endswith("are both for ('gaussian', 'one-pass'): keep one")


CONFIGURATION = """
seeds: [0]
plugins: [dp_anil, geometric, yogi, stripes]
datasets:
  stripes: {reader: stripes, licence: MIT, options: {directions: 6}}
experiments:
  own:
    title: Own code
    run:
      dataset: stripes
      task: {ways: 2, shots: 1}
      clients: {count: 8, examples_per_class: 4, support_per_class: 1, query_per_class: 2}
      model: {filters: 4}
      participation: {cohort: 4, rounds: 2}
      clipping: {kind: geometric, threshold: 0.5, factor: 0.9}
      server: {optimizer: {kind: yogi}, rate: 0.03}
      evaluation: {tasks: 4, steps: 1}
    tasks: {stripes: {}}
    tables:
      table1: {title: t, tasks: [stripes], series: {own: {method: dp-anil}, shipped: {method: random}}}
"""


def test_workflow_runs_plugins_and_an_edit_runs_them_again(
    snakemake: CallSnakemake, tmp_path: Path
) -> None:
    """The working folder has a reader, a method and parts. Jobs fork a warm process.

    The workflow makes and verifies the results, and plans them again after an edit.
    """
    pages = ("add-a-part.md", "add-a-data-set.md")
    folder = write_code(tmp_path, *pages, pattern=f"{METHOD}|stripes")
    configuration = without_others(CONFIGURATION)
    (tmp_path / "own.yaml").write_text(configuration, encoding="utf-8")
    table = "results/tables/own/table1.csv"

    def make(*arguments: str) -> dict[str, int]:
        done = snakemake(*arguments, "--configfile", str(tmp_path / "own.yaml"))
        assert done.returncode == 0, done.stderr
        output = done.stdout + done.stderr
        return jobs(output) if "Job stats" in output else {}

    assert make(table)["train"] == 2
    (run,) = (tmp_path / "results" / "runs" / "dp-anil").glob("stripes/*/*/seed0")
    thresholds = [event["threshold"] for event in ledger_of(run)]
    assert thresholds == pytest.approx([0.5, 0.45])
    assert make(table, "--dry-run") == {}
    make("verify")
    edit(folder / "geometric.py")
    assert make(table, "--dry-run")["train"] == 1
    edit(folder / "stripes.py")
    repeated = {"prepare": 1, "partition": 1, "train": 2}
    assert repeated.items() <= make(table, "--dry-run").items()
