"""Plugins: modules of a working folder, and a wheel that is built, installed and run.

Their code is that of the pages in docs.
"""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dpfedbench.config.plugin_sources import digest_module
from tests.calls import CallSnakemake
from tests.pages import files_of_page
from tests.shipped import without_others
from tests.workflow.test_dag import jobs

ROOT = Path(__file__).resolve().parents[2]
INSIDE = "src/dpfedbench/"
METHOD = "anil|geometric|yogi"
MODULES = ("dp_anil", "geometric", "yogi")


def write_code(folder: Path, *pages: str, pattern: str = "", package: str = "") -> Path:
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


def edit(path: Path) -> str:
    """Add a comment to a file, and return the text before."""
    text = path.read_text(encoding="utf-8")
    path.write_text(f"{text}# edited\n", encoding="utf-8")
    return text


def run_code(
    code: str,
    *arguments: str,
    folder: Path,
    site: Path | None = None,
    plugins: str = "",
) -> str:
    """Run code in a process of a folder; return its output, or its error's last line."""
    paths = [ROOT / "src"]
    if site:
        paths.append(site)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
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


RUN = """
import sys
from dpfedbench.papers import read_run
run = {"method": "dp-anil", "seed": 0, "dataset": "glyphs", "task": {"ways": 3, "shots": 1}, "budget": {"delta": 1e-3}}
run["clients"] = {"count": 48, "examples_per_class": 4, "support_per_class": 1, "query_per_class": 2}
run |= {"model": {"kind": "conv4", "filters": 4}, "participation": {"kind": "one-pass", "cohort": 4, "rounds": 3}}
run |= {"clipping": {"kind": "geometric", "threshold": 0.5, "factor": 0.9}, "noise": {"multiplier": 1.0}}
run |= {"server": {"optimizer": {"kind": "yogi"}, "rate": 0.03}}
run = read_run(run)
"""
PRINT_IDENTITY = RUN + "print(run.made_by, run.key)"
TRAIN = (
    RUN
    + """
from pathlib import Path
from dpfedbench.training.engine import train
train(run, data_dir=Path(sys.argv[1]), clients_dir=Path(sys.argv[2]), run_dir=Path(sys.argv[3]))
"""
)
PLUGINS = ",".join(MODULES)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the repository of docs/recipes.md, with the method of docs/add-a-part.md."""
    folder = tmp_path_factory.mktemp("published")
    package = folder / "src" / "dpfedbench_anil"
    write_code(package, "add-a-part.md", pattern=METHOD, package="dpfedbench_anil.")
    files = files_of_page("recipes.md")
    for name in ("pyproject.toml", "src/dpfedbench_anil/__init__.py"):
        (folder / name).write_text(files[name], encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def installed(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of that repository without a network; return where it is installed."""
    build = (
        "import sys; from setuptools import build_meta;"
        " build_meta.build_wheel(sys.argv[1])"
    )
    wheels = tmp_path_factory.mktemp("wheels")
    site = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-c", build, wheels],
        cwd=repository,
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = wheels.glob("*.whl")
    uv = shutil.which("uv")
    command = [sys.executable, "-m", "pip", "install", "--quiet"]
    if uv:
        command = [uv, "pip", "install", "--offline", "--quiet"]
        command += ["--python", sys.executable]
    done = subprocess.run(
        [*command, "--no-deps", "--no-index", "--target", site, wheel],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return site


def test_plugin_published_as_a_wheel_is_found_and_trained(
    installed: Path,
    federation: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    arguments = [*map(str, federation), str(tmp_path / "run")]
    unknown = run_code(TRAIN, *arguments, folder=tmp_path)
    assert re.search(
        r"DpsumError: method is 'dp-anil': no method has this name, the nearest is"
        r" '[\w-]+'; a method of your own is in a module that plugins lists",
        unknown,
    )
    disabled = run_code(
        TRAIN, *arguments, folder=tmp_path, site=installed, plugins="no"
    )
    assert disabled == unknown
    assert not (tmp_path / "run").exists()
    run_code(TRAIN, *arguments, folder=tmp_path, site=installed)
    lines = (tmp_path / "run" / "ledger.jsonl").read_text(encoding="utf-8").splitlines()
    releases = [json.loads(line) for line in lines]
    # The plugin's clipping rule has C = 0.5 * 0.9^t. One release a round, over the
    # gradients of 4 clients of one pass.
    thresholds = [event["threshold"] for event in releases]
    assert thresholds == pytest.approx([0.5, 0.45, 0.405])
    assert {event["name"] for event in releases} == {"query-gradient-sum"}
    assert {event["sampler"]["kind"] for event in releases} == {"one-pass"}
    training = json.loads(
        (tmp_path / "run" / "training.json").read_text(encoding="utf-8")
    )
    assert training["rounds_run"] == 3


def test_plugin_edit_of_a_class_file_makes_another_run(tmp_path: Path) -> None:
    """The hash covers the files of the run's plugin classes, and their imports.

    Other files and the files of our packages are not in it.
    """
    folder = write_code(tmp_path / "work", "add-a-part.md", pattern=METHOD)
    first = run_code(PRINT_IDENTITY, folder=folder, plugins=PLUGINS)
    version, digest, key = first.split()
    assert version == "1"
    assert re.fullmatch("[0-9a-f]{12}", digest)
    assert re.fullmatch("[0-9a-f]{10}", key)
    (folder / "notes.py").write_text("no class", encoding="utf-8")
    repeated = run_code(PRINT_IDENTITY, folder=folder, plugins=f"yogi, {PLUGINS}")
    assert repeated == first
    moved = shutil.copytree(folder, tmp_path / "elsewhere")
    assert run_code(PRINT_IDENTITY, folder=moved, plugins=PLUGINS) == first
    identities = {first}
    for name in ("geometric.py", "anil.py"):
        before = edit(folder / name)
        identity = run_code(PRINT_IDENTITY, folder=folder, plugins=PLUGINS)
        assert identity.split()[2] == key
        identities.add(identity)
        (folder / name).write_text(before, encoding="utf-8")
    assert len(identities) == 3
    shipped = PRINT_IDENTITY.replace("geometric", "constant")
    shipped = shipped.replace(', "factor": 0.9', "")
    shipped = shipped.replace("dp-anil", "dp-agr").replace("yogi", "adam")
    assert len(run_code(shipped, folder=folder, plugins=PLUGINS).split()) == 2


@pytest.mark.parametrize(
    "line", ["import helpers.rates", "def late():\n    from helpers import rates\n"]
)
def test_plugin_edit_of_an_imported_file_makes_another_run(
    tmp_path: Path, line: str
) -> None:
    folder = write_code(tmp_path / "work", "add-a-part.md", pattern=METHOD)
    alone = run_code(PRINT_IDENTITY, folder=folder, plugins=PLUGINS)
    method = folder / "dp_anil.py"
    method.write_text(f"{method.read_text('utf-8')}\n{line}\n", encoding="utf-8")
    helpers = folder / "helpers"
    helpers.mkdir()
    (helpers / "__init__.py").write_text("", encoding="utf-8")
    (helpers / "rates.py").write_text("from helpers.deeper import FACTOR\n", "utf-8")
    (helpers / "deeper.py").write_text("FACTOR = 2\n", encoding="utf-8")
    (helpers / "unused.py").write_text("", encoding="utf-8")
    first = run_code(PRINT_IDENTITY, folder=folder, plugins=PLUGINS)
    assert first.split()[1] != alone.split()[1]
    edit(helpers / "unused.py")
    assert run_code(PRINT_IDENTITY, folder=folder, plugins=PLUGINS) == first
    (helpers / "deeper.py").write_text("FACTOR = 3\n", encoding="utf-8")
    edited = run_code(PRINT_IDENTITY, folder=folder, plugins=PLUGINS)
    assert edited.split()[1] != first.split()[1]
    assert edited.split()[2] == first.split()[2]


def test_digest_module_counts_relative_imports_within_an_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another installed module, which the package imports, does not count."""
    site = tmp_path / "site-packages"
    package = site / "mine_installed"
    package.mkdir(parents=True)
    (site / "other_installed.py").write_text("VALUE = 1\n", encoding="utf-8")
    (package / "__init__.py").write_text("from . import reader\n", encoding="utf-8")
    (package / "reader.py").write_text(
        "import other_installed\nfrom .rates import FACTOR\n", encoding="utf-8"
    )
    (package / "rates.py").write_text("FACTOR = 2\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(site))
    reader = importlib.import_module("mine_installed.reader")
    first = digest_module(reader)
    (site / "other_installed.py").write_text("VALUE = 2\n", encoding="utf-8")
    assert digest_module(reader) == first
    (package / "rates.py").write_text("FACTOR = 3\n", encoding="utf-8")
    assert digest_module(reader) != first


@pytest.mark.parametrize(
    ("text", "error"),
    [
        pytest.param(
            "",
            r"DpsumError: the plugin mine \(.*mine\.py\) defines no class that",
            id="nothing",
        ),
        pytest.param(
            "import no_such",
            "ModuleNotFoundError: No module named 'no_such'",
            id="failing import",
        ),
        pytest.param(
            "from dpfedbench.parts.optimizers.optimizer import Optimizer\n"
            "class Mine(Optimizer):\n    begin: int = 1\n",
            r"TypeError: mine\.Mine has a key 'begin', which shadows",
            id="key that shadows a method",
        ),
        pytest.param(
            "from dpsum.clipping import Constant\n"
            "class Mine(Constant):\n    kind = 'mine'\n    factor: float = 1.0\n",
            r"DpsumError: mine\.Mine has a key 'factor', but is not a dataclass: put",
            id="no dataclass",
        ),
        pytest.param(
            "from dpfedbench.papers.dp_fedmeta import DpAgr\n"
            "class Mine(DpAgr):\n    name = 'dp-agr'\n    title = 'Mine'\n",
            r"DpsumError: the methods in dpfedbench\.papers\.dp_fedmeta and mine both",
            id="name of another method",
        ),
    ],
)
def test_plugin_with_a_fault_is_refused(tmp_path: Path, text: str, error: str) -> None:
    folder = write_code(tmp_path / "work", "add-a-part.md", pattern=METHOD)
    (folder / "mine.py").write_text(text, encoding="utf-8")
    output = run_code(PRINT_IDENTITY, folder=folder, plugins=f"{PLUGINS},mine")
    assert re.search(error, output)


def test_use_plugins_works_after_methods_were_read_and_after_a_failure(
    tmp_path: Path,
) -> None:
    """A notebook calls `use_plugins` late: methods and families have been read."""
    folder = write_code(tmp_path / "work", "add-a-part.md", pattern=METHOD)
    code = """
import dpfedbench
from dpfedbench.papers import METHODS
from dpsum.clipping import ClippingRule
from dpfedbench.config.part import kinds_of
before = set(kinds_of(ClippingRule)), set(METHODS)
try:
    dpfedbench.use_plugins("none")
except dpfedbench.plugins.BenchError:
    pass
dpfedbench.use_plugins("dp_anil", "geometric")
dpfedbench.use_plugins("yogi", "yogi")
print(set(kinds_of(ClippingRule)) - before[0], set(METHODS) - before[1], list(METHODS) == sorted(METHODS))
"""
    known, identity = run_code(f"{code}{PRINT_IDENTITY}", folder=folder).splitlines()
    assert known == "{'geometric'} {'dp-anil'} True"
    assert identity == run_code(PRINT_IDENTITY, folder=folder, plugins=PLUGINS)


ACCOUNTANT = """
from dpsum.accounting.analyses.known_rounds import OnePassAccountant


class Mine(OnePassAccountant):
    pair = "mine", "one-pass"
"""
ATTACK = """
from dpsum.clipping import Constant

RULE = Constant


def score(run, rule, *, records, first):
    return records
"""


def test_plugin_may_have_an_accountant_and_an_attack(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(ACCOUNTANT + ATTACK, encoding="utf-8")
    code = """
import dpsum
from dpsum.accounting.analyses import find, known
print(known("mine", "one-pass"))
import dpfedbench.papers
print(known("mine", "one-pass"), type(find("mine", "one-pass")).__module__)
from dpfedbench.audit.attacks import score_of
from dpsum.clipping import Constant
print(score_of(None, Constant(threshold=1.0), records=7, first=1.0))
"""
    output = run_code(code, folder=tmp_path, plugins="mine")
    assert output.splitlines() == ["False", "True mine", "7"]
    duplicate = ACCOUNTANT.replace('"mine",', '"gaussian",')
    (tmp_path / "mine.py").write_text(duplicate, encoding="utf-8")
    error = run_code(code, folder=tmp_path, plugins="mine")
    assert error.endswith("are both for ('gaussian', 'one-pass'): keep one")


JOB = """
from pathlib import Path
from workflow_jobs.jobs import job
with job(Path(sys.argv[3]) / "logs" / "job.log", "it"):
"""
TRAIN_JOB = (
    RUN
    + JOB
    + """
    from dpfedbench.training.engine import train
    train(run, data_dir=Path(sys.argv[1]), clients_dir=Path(sys.argv[2]), run_dir=Path(sys.argv[3]))
"""
)
PREPARE_JOB = (
    "import sys"
    + JOB
    + """
    from dpfedbench.data.registry import prepare
    prepare("mine", sys.argv[3], own={"mine": {"reader": "stripes", "options": {"directions": 6}}})
"""
)


@pytest.mark.parametrize(
    ("file", "failing_line", "code"),
    [
        ("geometric.py", '        state["threshold"] = ', TRAIN_JOB),
        ("stripes.py", "    classes = 3 * directions", PREPARE_JOB),
    ],
)
def test_plugin_error_in_a_job_is_shown_with_its_file_and_line(
    federation: tuple[Path, Path],
    tmp_path: Path,
    file: str,
    failing_line: str,
    code: str,
) -> None:
    """The line divides by zero before it does anything else."""
    pages = ("add-a-part.md", "add-a-data-set.md")
    folder = write_code(tmp_path / "work", *pages, pattern=f"{METHOD}|stripes")
    text = (folder / file).read_text(encoding="utf-8")
    before, _ = text.split(failing_line)
    statement = failing_line.lstrip()
    text = text.replace(statement, f"1 / 0; {statement}")
    (folder / file).write_text(text, encoding="utf-8")
    number = before.count("\n") + 1
    (tmp_path / "run").mkdir()
    arguments = [*map(str, federation), str(tmp_path / "run")]
    error = run_code(code, *arguments, folder=folder, plugins=f"{PLUGINS},stripes")
    log = tmp_path / "run" / "logs" / "job.log"
    message = f"it: ZeroDivisionError: division by zero (the traceback is in {log})"
    assert error == message
    assert f'File "{folder / file}", line {number}, in ' in log.read_text("utf-8")


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

    The workflow makes and verifies the results, and makes them again after an edit.
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
    lines = (run / "ledger.jsonl").read_text(encoding="utf-8").splitlines()
    thresholds = [json.loads(line)["threshold"] for line in lines]
    assert thresholds == pytest.approx([0.5, 0.45])
    assert (run / "manifest").is_dir()
    assert make(table, "--dry-run") == {}
    make("verify")
    for name, repeated_jobs in (
        ("geometric.py", {"train": 1}),
        ("dp_anil.py", {"train": 1}),
        ("stripes.py", {"prepare": 1, "partition": 1, "train": 2}),
    ):
        before = edit(folder / name)
        planned_jobs = make(table, "--dry-run")
        assert repeated_jobs.items() <= planned_jobs.items(), name
        (folder / name).write_text(before, encoding="utf-8")
    assert make(table, "--dry-run") == {}
