"""Plugins: modules of a working folder, and a wheel that is built, installed and run.

The code is that of the pages in docs, file by file as it is printed there.
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

from dpfedbench.settings.plugin_sources import digest_module
from tests.shipped import without_others
from tests.workflow.conftest import federation, snakemake  # noqa: F401
from tests.workflow.test_dag import Call, jobs

ROOT = Path(__file__).resolve().parents[2]
INSIDE = "src/dpfedbench/"
METHOD = "anil|geometric|yogi"
MODULES = ("dp_anil", "geometric", "yogi")


def printed(page: str) -> dict[str, str]:
    """The files that a page prints, by their paths."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return dict(
        re.findall(r"^```\w+ (\S+)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    )


def put(folder: Path, *pages: str, wanted: str = "", package: str = "") -> Path:
    """Write the code of pages into one folder, as modules that import one another by
    their names there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        Path(name): text
        for page in pages
        for name, text in printed(page).items()
        if name.startswith(INSIDE) and re.search(wanted, name)
    }
    for path, text in files.items():
        for other in files:
            module = ".".join(other.with_suffix("").parts[1:])
            text = text.replace(f"from {module} ", f"from {package}{other.stem} ")
        (folder / path.name).write_text(text, encoding="utf-8")
    return folder


def call(
    code: str, *arguments: str, folder: Path, site: Path | None = None, named: str = ""
) -> str:
    """What a script prints in a process of a folder; the last line of its error if it
    fails.
    """
    places = [ROOT / "src", *([site] if site else [])]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, places)),
        "DPFEDBENCH_PLUGINS": named,
    }
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return (
        done.stdout if done.returncode == 0 else done.stderr.splitlines()[-1]
    ).strip()


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
TELL = RUN + "print(run.made_by, run.key)"
TRAIN = (
    RUN
    + """
from pathlib import Path
from dpfedbench.federation.engine import train
train(run, data_dir=Path(sys.argv[1]), clients_dir=Path(sys.argv[2]), run_dir=Path(sys.argv[3]))
"""
)
NAMED = ",".join(MODULES)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small repository of docs/recipes.md, with the method of
    docs/add-a-part.md.
    """
    folder = tmp_path_factory.mktemp("published")
    package = folder / "src" / "dpfedbench_anil"
    put(package, "add-a-part.md", wanted=METHOD, package="dpfedbench_anil.")
    for name in ("pyproject.toml", "src/dpfedbench_anil/__init__.py"):
        (folder / name).write_text(printed("recipes.md")[name], encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def installed(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the wheel of that repository is installed: built with the setuptools that
    is here, and no network.
    """
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
    command = (
        [uv, "pip", "install", "--offline", "--quiet", "--python", sys.executable]
        if uv
        else []
    )
    command = command or [sys.executable, "-m", "pip", "install", "--quiet"]
    done = subprocess.run(
        [*command, "--no-deps", "--no-index", "--target", site, wheel],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return site


def test_plugin_published_as_a_wheel_is_found_and_trained(
    installed: Path,
    federation: tuple[Path, Path],  # noqa: F811
    tmp_path: Path,
) -> None:
    arguments = [*map(str, federation), str(tmp_path / "run")]
    unknown = call(TRAIN, *arguments, folder=tmp_path)
    assert re.search(
        r"DpsumError: method is 'dp-anil': there is no such method, the nearest is"
        r" '[\w-]+'; a method of your own is in a module that plugins lists",
        unknown,
    )
    off = call(TRAIN, *arguments, folder=tmp_path, site=installed, named="no")
    assert off == unknown
    assert not (tmp_path / "run").exists()
    call(TRAIN, *arguments, folder=tmp_path, site=installed)
    lines = (tmp_path / "run" / "ledger.jsonl").read_text(encoding="utf-8").splitlines()
    releases = [json.loads(line) for line in lines]
    # The thresholds of its own rule, C = 0.5 * 0.9^t; one release a round, over the
    # gradients of 4 clients of one pass.
    assert [event["threshold"] for event in releases] == pytest.approx(
        [0.5, 0.45, 0.405]
    )
    assert {event["name"] for event in releases} == {"query-gradient-sum"}
    assert {event["sampler"]["kind"] for event in releases} == {"one-pass"}
    training = json.loads(
        (tmp_path / "run" / "training.json").read_text(encoding="utf-8")
    )
    assert training["rounds_run"] == 3


def test_plugin_edit_of_a_class_file_makes_another_run(tmp_path: Path) -> None:
    """The hash is of the files of the run's own classes and what they import: not of
    other files, nor of what lies in our packages.
    """
    folder = put(tmp_path / "work", "add-a-part.md", wanted=METHOD)
    first = call(TELL, folder=folder, named=NAMED)
    version, digest, key = first.split()
    assert version == "1"
    assert re.fullmatch("[0-9a-f]{12}", digest)
    assert re.fullmatch("[0-9a-f]{10}", key)
    (folder / "notes.py").write_text("no class", encoding="utf-8")
    assert call(TELL, folder=folder, named=f"yogi, {NAMED}") == first
    moved = shutil.copytree(folder, tmp_path / "elsewhere")
    assert call(TELL, folder=moved, named=NAMED) == first
    seen = {first}
    for name in ("geometric.py", "anil.py"):
        before = (folder / name).read_text(encoding="utf-8")
        (folder / name).write_text(before + "# edited\n", encoding="utf-8")
        found = call(TELL, folder=folder, named=NAMED)
        assert found.split()[2] == key
        seen.add(found)
        (folder / name).write_text(before, encoding="utf-8")
    assert len(seen) == 3
    shipped = TELL.replace("geometric", "constant").replace(', "factor": 0.9', "")
    shipped = shipped.replace("dp-anil", "dp-agr").replace("yogi", "adam")
    assert len(call(shipped, folder=folder, named=NAMED).split()) == 2


@pytest.mark.parametrize(
    "line", ["import helpers.rates", "def late():\n    from helpers import rates\n"]
)
def test_plugin_edit_of_an_imported_file_makes_another_run(
    tmp_path: Path, line: str
) -> None:
    folder = put(tmp_path / "work", "add-a-part.md", wanted=METHOD)
    alone = call(TELL, folder=folder, named=NAMED)
    method = folder / "dp_anil.py"
    method.write_text(f"{method.read_text('utf-8')}\n{line}\n", encoding="utf-8")
    helpers = folder / "helpers"
    helpers.mkdir()
    (helpers / "__init__.py").write_text("", encoding="utf-8")
    (helpers / "rates.py").write_text("from helpers.deeper import FACTOR\n", "utf-8")
    (helpers / "deeper.py").write_text("FACTOR = 2\n", encoding="utf-8")
    (helpers / "unused.py").write_text("", encoding="utf-8")
    first = call(TELL, folder=folder, named=NAMED)
    assert first.split()[1] != alone.split()[1]
    (helpers / "unused.py").write_text("# edited\n", encoding="utf-8")
    assert call(TELL, folder=folder, named=NAMED) == first
    (helpers / "deeper.py").write_text("FACTOR = 3\n", encoding="utf-8")
    edited = call(TELL, folder=folder, named=NAMED)
    assert edited.split()[1] != first.split()[1]
    assert edited.split()[2] == first.split()[2]


def test_digest_module_counts_relative_imports_within_an_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not what else is installed: `other` lies beside the package."""
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
    ("text", "said"),
    [
        ("", r"DpsumError: the plugin mine \(.*mine\.py\) defines nothing that"),
        ("import no_such", "ModuleNotFoundError: No module named 'no_such'"),
        (
            "from dpfedbench.parts.optimizers.optimizer import Optimizer\n"
            "class Mine(Optimizer):\n    begin: int = 1\n",
            r"TypeError: mine\.Mine has a key 'begin', which shadows",
        ),
        (
            "from dpsum.clipping import Constant\n"
            "class Mine(Constant):\n    kind = 'mine'\n    factor: float = 1.0\n",
            r"DpsumError: mine\.Mine has a key 'factor', but is no dataclass: put",
        ),
        (
            "from dpfedbench.papers.dp_fedmeta import DpAgr\n"
            "class Mine(DpAgr):\n    name = 'dp-agr'\n    title = 'Mine'\n",
            r"DpsumError: the methods in dpfedbench\.papers\.dp_fedmeta and mine both",
        ),
    ],
)
def test_plugin_that_cannot_be_right_is_refused(
    tmp_path: Path, text: str, said: str
) -> None:
    folder = put(tmp_path / "work", "add-a-part.md", wanted=METHOD)
    (folder / "mine.py").write_text(text, encoding="utf-8")
    assert re.search(said, call(TELL, folder=folder, named=f"{NAMED},mine"))


def test_use_plugins_imports_at_any_time_and_forgets_what_failed(
    tmp_path: Path,
) -> None:
    """As in a notebook, where methods and families have been read before."""
    folder = put(tmp_path / "work", "add-a-part.md", wanted=METHOD)
    tell = """
import dpfedbench
from dpfedbench.papers import METHODS
from dpsum.clipping import ClippingRule
from dpfedbench.settings.part import kinds_of
before = set(kinds_of(ClippingRule)), set(METHODS)
try:
    dpfedbench.use_plugins("none")
except dpfedbench.plugins.BenchError:
    pass
dpfedbench.use_plugins("dp_anil", "geometric")
dpfedbench.use_plugins("yogi", "yogi")
print(set(kinds_of(ClippingRule)) - before[0], set(METHODS) - before[1], list(METHODS) == sorted(METHODS))
"""
    found = call(f"{tell}{TELL}", folder=folder)
    known, made_by = found.splitlines()
    assert known == "{'geometric'} {'dp-anil'} True"
    assert made_by == call(TELL, folder=folder, named=NAMED)


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
    tell = """
import dpsum
from dpsum.accounting.analyses import find, known
print(known("mine", "one-pass"))
import dpfedbench.papers
print(known("mine", "one-pass"), type(find("mine", "one-pass")).__module__)
from dpfedbench.audit.attacks import score_of
from dpsum.clipping import Constant
print(score_of(None, Constant(threshold=1.0), records=7, first=1.0))
"""
    found = call(tell, folder=tmp_path, named="mine")
    assert found.splitlines() == ["False", "True mine", "7"]
    double = ACCOUNTANT.replace('"mine",', '"gaussian",')
    (tmp_path / "mine.py").write_text(double, encoding="utf-8")
    said = call(tell, folder=tmp_path, named="mine")
    assert said.endswith("are both for ('gaussian', 'one-pass'): keep one")


JOB = """
from pathlib import Path
from workflow_jobs.jobs import job
with job(Path(sys.argv[3]) / "logs" / "job.log", "it"):
"""
TRAIN_JOB = (
    RUN
    + JOB
    + """
    from dpfedbench.federation.engine import train
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
    ("file", "old", "code"),
    [
        ("geometric.py", '        state["threshold"] = ', TRAIN_JOB),
        ("stripes.py", "    classes = 3 * directions", PREPARE_JOB),
    ],
)
def test_plugin_error_in_a_job_is_shown_with_its_file_and_line(
    federation: tuple[Path, Path],  # noqa: F811
    tmp_path: Path,
    file: str,
    old: str,
    code: str,
) -> None:
    pages = ("add-a-part.md", "add-a-data-set.md")
    folder = put(tmp_path / "work", *pages, wanted=f"{METHOD}|stripes")
    text = (folder / file).read_text(encoding="utf-8")
    before, after = text.split(old)
    indent = old[: len(old) - len(old.lstrip())]
    (folder / file).write_text(f"{before}{indent}1 / 0\n{old}{after}", encoding="utf-8")
    line = before.count("\n") + 1
    (tmp_path / "run").mkdir()
    arguments = [*map(str, federation), str(tmp_path / "run")]
    found = call(code, *arguments, folder=folder, named=f"{NAMED},stripes")
    log = tmp_path / "run" / "logs" / "job.log"
    assert (
        found == f"it: ZeroDivisionError: division by zero (the traceback is in {log})"
    )
    assert f'File "{folder / file}", line {line}, in ' in log.read_text("utf-8")


OWN = """
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
    snakemake: Call,  # noqa: F811
    tmp_path: Path,
) -> None:
    """A reader, a method and parts of the working folder: made, verified, and made
    again where a file is edited. The jobs are forks of a warm process.
    """
    pages = ("add-a-part.md", "add-a-data-set.md")
    folder = put(tmp_path, *pages, wanted=f"{METHOD}|stripes")
    (tmp_path / "own.yaml").write_text(without_others(OWN), encoding="utf-8")
    table = "results/tables/own/table1.csv"

    def make(*arguments: str) -> dict[str, int]:
        done = snakemake(*arguments, "--configfile", str(tmp_path / "own.yaml"))
        assert done.returncode == 0, done.stderr
        said = done.stdout + done.stderr
        return jobs(said) if "Job stats" in said else {}

    assert make(table)["train"] == 2
    (run,) = (tmp_path / "results" / "runs" / "dp-anil").glob("stripes/*/*/seed0")
    releases = [
        json.loads(line)
        for line in (run / "ledger.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert [event["threshold"] for event in releases] == pytest.approx([0.5, 0.45])
    assert (run / "manifest").is_dir()
    assert make(table, "--dry-run") == {}
    make("verify")
    for name, again in (
        ("geometric.py", {"train": 1}),
        ("dp_anil.py", {"train": 1}),
        ("stripes.py", {"prepare": 1, "partition": 1, "train": 2}),
    ):
        before = (folder / name).read_text(encoding="utf-8")
        (folder / name).write_text(before + "# edited\n", encoding="utf-8")
        found = make(table, "--dry-run")
        assert {rule: found.get(rule) for rule in again} == again, name
        (folder / name).write_text(before, encoding="utf-8")
    assert make(table, "--dry-run") == {}
