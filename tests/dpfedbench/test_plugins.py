"""Plugins, as modules of a working folder and as a wheel, and the wheel of dpfedbench.

The plugins' code is that of the pages in docs.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.calls import CallSnakemake
from tests.pages import files_of_page
from tests.shipped import without_others
from tests.workflow.test_dag import jobs

ROOT = Path(__file__).resolve().parents[2]
METHOD = "anil|geometric|yogi"
PLUGINS = "dp_anil,geometric,yogi"


def write_code(folder: Path, *pages: str, pattern: str, package: str = "") -> Path:
    """Write the files of pages into one folder, as modules that import each other.

    `pattern` selects files by their paths. `package` is the prefix of their imports.
    """
    folder.mkdir(parents=True, exist_ok=True)
    selected = re.compile(f"src/dpfedbench/.*({pattern})")
    files = {
        Path(name): text
        for page in pages
        for name, text in files_of_page(page).items()
        if selected.match(name)
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
    return write_code(tmp_path / "work", "your-method.md", pattern=METHOD)


def edit(path: Path, text: str = "# edited\n") -> None:
    """Add a text to a file."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(text)


def run_code(
    code: str, *arguments: str, folder: Path, site: Path = ROOT, plugins: str = ""
) -> str:
    """Run code in a process of a folder; return its output, or its error's last line."""
    path = os.pathsep.join([str(ROOT / "src"), str(site)])
    environment = os.environ | {"PYTHONPATH": path, "DPFEDBENCH_PLUGINS": plugins}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True
    )
    if done.returncode == 0:
        return done.stdout.strip()
    return done.stderr.splitlines()[-1].strip()


def thresholds_of(run: Path) -> list[float]:
    """Return the thresholds of a run, each of a sum of query gradients."""
    lines = (run / "ledger.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    assert {event["name"] for event in events} == {"query-gradient-sum"}
    return [event["threshold"] for event in events]


RUN = """
import sys
from pathlib import Path
from dpfedbench.papers import read_run
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
from dpfedbench.training.engine import train
data, clients, folder = map(Path, sys.argv[1:])
train(run, data_dir=data, clients_dir=clients, run_dir=folder)
"""
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel('.')"


def test_plugin_published_as_a_wheel_is_found_and_trained(
    federation: tuple[Path, Path], tmp_path: Path
) -> None:
    """The repository is that of docs/recipes.md, with the method of docs/your-method.md.

    Each of three rounds of one pass has one release, over the gradients of 4 clients.
    """
    repository = tmp_path / "published"
    package = repository / "src" / "dpfedbench_anil"
    write_code(package, "your-method.md", pattern=METHOD, package="dpfedbench_anil.")
    files = files_of_page("recipes.md")
    for name in ("pyproject.toml", "src/dpfedbench_anil/__init__.py"):
        (repository / name).write_text(files[name], encoding="utf-8")
    subprocess.run([sys.executable, "-c", BUILD], cwd=repository, check=True)
    (wheel,) = repository.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    arguments = [*map(str, federation), str(tmp_path / "run")]
    folders = {"folder": tmp_path, "site": tmp_path / "site"}
    unknown = run_code(TRAIN, *arguments, folder=tmp_path)
    assert "a method of your own is in a module that plugins lists" in unknown
    assert run_code(TRAIN, *arguments, **folders, plugins="no") == unknown
    run_code(TRAIN, *arguments, **folders)
    # The plugin's clipping rule has C = 0.5 * 0.9^t.
    assert thresholds_of(tmp_path / "run") == pytest.approx([0.5, 0.45, 0.405])


def test_plugin_edit_of_a_file_or_of_its_imports_makes_another_run(
    work: Path, tmp_path: Path
) -> None:
    """Other files, and the place of the folder, are not in the hash."""
    (work / "helpers").mkdir()
    for name, text in {
        "dp_anil.py": "\ndef late():\n    from helpers import rates\n",
        "helpers/__init__.py": "",
        "helpers/rates.py": "from .deeper import FACTOR\n",
        "helpers/deeper.py": "FACTOR = 2\n",
        "helpers/unused.py": "",
    }.items():
        edit(work / name, text)

    def identity(folder: Path = work) -> str:
        return run_code(PRINT_IDENTITY, folder=folder, plugins=PLUGINS)

    first = identity()
    version, digest, key = first.split()
    assert version == "1"
    assert re.fullmatch("[0-9a-f]{12}", digest)
    edit(work / "helpers/unused.py")
    assert identity() == first
    assert identity(shutil.copytree(work, tmp_path / "elsewhere")) == first
    identities = {first}
    for name in ("geometric.py", "anil.py", "helpers/deeper.py"):
        edit(work / name)
        identities.add(identity())
    assert len(identities) == 4
    assert {line.split()[2] for line in identities} == {key}


PRINT_FILES = """
from pathlib import Path
import dpfedbench.plugins
from dpfedbench.experiments.configuration import shipped_files
for preset in (None, "smoke", "other"):
    files = shipped_files(Path("benchmark"), preset)
    own = [file for file in files if "further" not in file.parts]
    print(*(file.relative_to(Path.cwd()) if file.is_absolute() else file for file in own))
"""


def test_plugin_package_brings_experiments_and_overlays_of_presets(
    tmp_path: Path,
) -> None:
    """Experiments are in the order of their names; the overlay is the preset's alone."""
    for name in (
        "brings/__init__.py",
        "brings/config/experiments/b.yaml",
        "brings/config/presets/smoke.yaml",
        "benchmark/experiments/a.yaml",
        "benchmark/experiments/c.yaml",
        "benchmark/presets/smoke.yaml",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}\n", encoding="utf-8")
    output = run_code(PRINT_FILES, folder=tmp_path, plugins="brings")
    experiments = (
        "benchmark/config.yaml benchmark/experiments/a.yaml"
        " brings/config/experiments/b.yaml benchmark/experiments/c.yaml"
        " benchmark/small.yaml"
    )
    overlay = "brings/config/presets/smoke.yaml"
    assert output.splitlines() == [experiments, f"{experiments} {overlay}", experiments]
    without = run_code(PRINT_FILES, folder=tmp_path)
    assert "brings" not in without


PROJECT = """
[project]
name = "dpfedbench-own"
[project.entry-points."dpfedbench.plugins"]
own = "own_methods"
"""
PRINT_PLUGINS = """
import sys
from pathlib import Path
from dpfedbench import plugins
plugins.CHECKOUT = Path.cwd()
plugins.load()
print(*(module.__name__ for module in plugins.modules()))
"""


def test_project_of_a_checkout_is_found_without_an_installation(tmp_path: Path) -> None:
    project = tmp_path / "packages" / "own"
    (project / "src").mkdir(parents=True)
    (project / "src" / "own_methods.py").touch()
    (project / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    assert run_code(PRINT_PLUGINS, folder=tmp_path) == "own_methods"
    assert run_code(PRINT_PLUGINS, folder=tmp_path, plugins="no") == ""


IGNORED_SETTING = """
from dpsum.clipping import Constant
class Mine(Constant):
    kind = "mine"
    factor: float = 1.0
"""
TAKEN_NAME = """
from dpfedbench.papers.dp_fedmeta import DpAgr
class Mine(DpAgr):
    name = "dp-agr"
    title = "Mine"
"""


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (IGNORED_SETTING, "mine.Mine has a key 'factor', but is not a dataclass: put"),
        (TAKEN_NAME, "the methods in dpfedbench.papers.dp_fedmeta and mine both"),
    ],
)
def test_plugin_with_a_fault_is_refused(work: Path, text: str, error: str) -> None:
    (work / "mine.py").write_text(text, encoding="utf-8")
    assert error in run_code(PRINT_IDENTITY, folder=work, plugins=f"{PLUGINS},mine")


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
from dpfedbench import plugins
plugins.load()
from dpsum.accounting.analyses import find
print(type(find("mine", "one-pass")).__module__)
import numpy as np
from types import SimpleNamespace
from dpfedbench.audit.attacks import score_of
from dpsum.clipping import Constant
from tests.dpfedbench.training.conftest import DIFFERENCE, make_config
print(score_of(None, Constant(threshold=1.0), records=7, first=1.0))
clients = {"partition": "halving", "ratio": 3.0}
run = make_config({"method": "dp-fedavg", "clients": clients}, general=DIFFERENCE)
held = run.clients.deal(SimpleNamespace(splits={"train": np.arange(400)}), seed=0)
print(*map(len, held), sorted(np.concatenate(held)) == list(range(400)))
"""


def test_plugin_may_have_accountants_attacks_and_partitions(tmp_path: Path) -> None:
    write_code(tmp_path, "your-method.md", pattern="partitions/halving")
    path = tmp_path / "mine.py"
    path.write_text(ACCOUNTANT_AND_ATTACK, encoding="utf-8")
    output = run_code(USE_THEM, folder=tmp_path, plugins="halving,mine")
    assert output == "mine\n7\n270 90 30 10 True"
    path.write_text(ACCOUNTANT_AND_ATTACK.replace('"mine"', '"gaussian"'), "utf-8")
    error = run_code(USE_THEM, folder=tmp_path, plugins="halving,mine")
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


# Faster: test_plugin_edit_of_a_file_or_of_its_imports_makes_another_run, and the page
# of tests/test_fedrep_page.py.
@pytest.mark.slow
def test_workflow_runs_plugins_and_an_edit_runs_them_again(
    snakemake: CallSnakemake, tmp_path: Path
) -> None:
    """The working folder has a reader, a method and parts. Jobs fork a warm process.

    The workflow makes and verifies the results, and plans them again after an edit.
    """
    pages = ("your-method.md", "your-data-and-model.md")
    folder = write_code(tmp_path, *pages, pattern=f"{METHOD}|stripes")
    (tmp_path / "own.yaml").write_text(without_others(CONFIGURATION), "utf-8")
    table = "results/tables/own/table1.csv"

    def make(*arguments: str) -> dict[str, int]:
        options = ("--configfile", str(tmp_path / "own.yaml"))
        done = snakemake(*arguments, *options, "--config", "terminal=snakemake")
        assert done.returncode == 0, done.stderr
        output = done.stdout + done.stderr
        return jobs(output) if "Job stats" in output else {}

    assert make(table)["train"] == 2
    (run,) = (tmp_path / "results" / "runs" / "dp-anil").glob("stripes/*/*/seed0")
    assert thresholds_of(run) == pytest.approx([0.5, 0.45])
    assert make(table, "--dry-run") == {}
    make("verify")
    edit(folder / "geometric.py")
    assert make(table, "--dry-run")["train"] == 1
    edit(folder / "stripes.py")
    repeated = {"prepare": 1, "partition": 1, "train": 2}
    assert repeated.items() <= make(table, "--dry-run").items()


# The wheel of dpfedbench has all files that the library reads


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a wheel without a network, and return the folder of its content.

    The build backend is in uv's cache since the environment was made.
    """
    uv = shutil.which("uv")
    folder = tmp_path_factory.mktemp("wheel")
    if uv is None:
        pytest.skip("uv is not on the path")
    command = [uv, "build", "--wheel", "--offline", "--quiet", "--out-dir"]
    command += [str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode and "network was disabled" in done.stderr:
        pytest.skip("the build backend is not in uv's cache")
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    zipfile.ZipFile(built).extractall(folder / "content")
    return folder / "content"


def test_wheel_has_every_file_of_the_packages(wheel: Path) -> None:
    source = ROOT / "src"
    for path in [*source.rglob("*.py"), *(source / "dpfedbench").rglob("*.txt")]:
        assert (wheel / path.relative_to(source)).is_file(), path


COMMAND = "import sys; from dpfedbench.command import main; sys.exit(main())"
DATASETS = """
datasets:
  mine: {{reader: text-folder, licence: MIT, options: {{folder: '{folder}', words: 3}}}}
"""


# Faster: test_plugin_published_as_a_wheel_is_found_and_trained.
@pytest.mark.slow
def test_wheel_runs_its_workflow_with_its_package(wheel: Path, tmp_path: Path) -> None:
    """In an empty folder the wheel's files alone plan every job, and the script of a job
    imports the wheel's library, not that of a checkout.
    """
    environment = os.environ | {"PYTHONPATH": str(wheel), "PYTHONDONTWRITEBYTECODE": ""}
    environment.pop("SNAKEMAKE_PROFILE", None)

    def call(*words: str) -> str:
        """Call `dpfedbench run` of the wheel alone; return what it prints."""
        command = [sys.executable, "-c", COMMAND, "run", *words]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    jobs = call("--preset", "smoke", "--dry-run", "--quiet", "rules")
    planned = dict(re.findall(r"^(\w+) +(\d+)$", jobs, flags=re.MULTILINE))
    assert int(planned["train"]) > 10
    assert planned["train"] == planned["account"]
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text(f"two words {number}", encoding="utf-8")
    (tmp_path / "own.yaml").write_text(DATASETS.format(folder=tmp_path), "utf-8")
    call("results/data/mine/summary.json", "--configfile", "own.yaml")
    assert (tmp_path / "results" / "data" / "mine" / "images.npy").exists()
    compiled = wheel / "dpfedbench" / "data" / "__pycache__"
    assert list(compiled.glob("text_folder.*.pyc"))
    (entry,) = wheel.glob("*.dist-info/entry_points.txt")
    assert "dpfedbench = dpfedbench.command:main" in entry.read_text(encoding="utf-8")
