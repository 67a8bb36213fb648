"""Code of one's own outside the repository: in a folder, and in a wheel that is built,
installed and run here.

The code is that of the pages in docs, file by file as it is printed there.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dpfedbench.own_code import PLACES
from tests.shipped import without_others
from tests.workflow.conftest import federation, snakemake  # noqa: F401
from tests.workflow.test_dag import Call, jobs

ROOT = Path(__file__).resolve().parents[1]
INSIDE = "src/dpfedbench/"


def printed(page: str) -> dict[str, str]:
    """The files that a page prints, by their paths."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return dict(re.findall(r"^```\w+ (\S+)\n(.*?)^```$", text, flags=re.M | re.S))


def put(folder: Path, *pages: str, wanted: str = "") -> Path:
    """Write the code of pages below a folder of one's own, by the places that it has in
    dpfedbench.
    """
    for page in pages:
        for name, text in printed(page).items():
            if name.startswith(INSIDE) and re.search(wanted, name):
                path = folder / name.removeprefix(INSIDE)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
    return folder


def call(
    code: str,
    *arguments: str,
    places: tuple[Path, ...] = (),
    code_folder: Path | None = None,
) -> str:
    """What a script prints in a process that finds code of one's own in these places;
    its error if it fails.
    """
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, [ROOT / "src", *places]))
    }
    environment.pop("DPFEDBENCH_CODE", None)
    if code_folder:
        environment["DPFEDBENCH_CODE"] = str(code_folder)
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False
    )
    return (
        done.stdout if done.returncode == 0 else done.stderr.splitlines()[-1]
    ).strip()


RUN = """
import sys
from dpfedbench.methods import read_run
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


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small repository of docs/recipes.md, with the method of
    docs/add-a-part.md.
    """
    folder = tmp_path_factory.mktemp("published")
    package = put(
        folder / "src" / "dpfedbench_anil",
        "add-a-part.md",
        wanted="anil|geometric|yogi",
    )
    (package / "__init__.py").touch()
    (folder / "pyproject.toml").write_text(
        printed("recipes.md")["pyproject.toml"], encoding="utf-8"
    )
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
    wheels, site = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("site")
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


def test_a_method_is_published_as_a_wheel_installed_and_trained(
    installed: Path,
    federation: tuple[Path, Path],  # noqa: F811
    tmp_path: Path,
) -> None:
    data, clients = federation
    unknown = call(TRAIN, str(data), str(clients), str(tmp_path / "none"))
    assert re.search(
        r"DpsumError: method is 'dp-anil': there is no such method, the nearest is"
        r" '[\w-]+'; let DPF",
        unknown,
    )
    assert not (tmp_path / "none").exists()
    call(TRAIN, str(data), str(clients), str(tmp_path / "run"), places=(installed,))
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


def test_an_installed_method_and_one_in_a_folder_are_the_same_run_and_an_edit_makes_another(
    installed: Path, tmp_path: Path
) -> None:
    folder = put(tmp_path / "mycode", "add-a-part.md", wanted="anil|geometric|yogi")
    site = shutil.copytree(installed, tmp_path / "site")
    first = call(TELL, places=(site,))
    version, digest, key = first.split()
    assert (
        version == "1"
        and re.fullmatch("[0-9a-f]{12}", digest)
        and re.fullmatch("[0-9a-f]{10}", key)
    )
    assert call(TELL, code_folder=folder) == first
    (folder / "notes.py").write_text("not looked into", encoding="utf-8")
    assert call(TELL, code_folder=folder) == first
    seen = {first}
    for own in (site / "dpfedbench_anil", folder):
        for name in (
            "parts/clipping/geometric.py",
            "parts/client_updates/anil.py",
            "methods/dp_anil.py",
        ):
            before = (own / name).read_text(encoding="utf-8")
            (own / name).write_text(before + "# edited\n", encoding="utf-8")
            found = (
                call(TELL, places=(site,))
                if own != folder
                else call(TELL, code_folder=folder)
            )
            assert found.split()[2] == key and found != first
            seen.add(found)
            (own / name).write_text(before, encoding="utf-8")
    assert len(seen) == 4  # the same three edits, whichever the place
    # What a method imports of its own package belongs to it, by whichever name.
    package, method = (
        site / "dpfedbench_anil",
        site / "dpfedbench_anil" / "methods" / "dp_anil.py",
    )
    (package / "helpers.py").write_text("FACTOR = 2\n", encoding="utf-8")
    method.write_text(
        f"{method.read_text(encoding='utf-8')}\nimport dpfedbench_anil.helpers\n",
        encoding="utf-8",
    )
    before = call(TELL, places=(site,))
    (package / "helpers.py").write_text("FACTOR = 3\n", encoding="utf-8")
    assert re.match(r"1 [0-9a-f]{12} ", before) and call(TELL, places=(site,)) != before


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "clipping/mine.py",
            "",
            (
                r"mycode/clipping/mine\.py is not looked for there: move it to"
                r" .*/parts/clipping/m"
            ),
        ),
        (
            "parts/clipping/rule.py",
            "",
            r"rule\.py has the name of a file that dpfedbench comes with: give it",
        ),
        (
            "mine.py",
            "",
            (
                r"mycode has no module in a folder where own code is found: methods,"
                r" parts/client_updates, p"
            ),
        ),
        (None, "", r"code_folder is .*mycode, but there is no such folder"),
    ],
)
def test_a_folder_in_which_something_would_be_overlooked_is_refused(
    tmp_path: Path, name: str | None, text: str, said: str
) -> None:
    if name:
        (tmp_path / "mycode" / name).parent.mkdir(parents=True)
        (tmp_path / "mycode" / name).write_text(text, encoding="utf-8")
    assert re.search(
        rf"^dpsum\.errors\.DpsumError: .*{said}",
        call(TELL, code_folder=tmp_path / "mycode"),
    )


def test_every_folder_of_parts_and_models_may_lie_outside_the_repository(
    tmp_path: Path,
) -> None:
    folders = {
        path.parent.relative_to(ROOT / INSIDE).as_posix()
        for path in (ROOT / INSIDE).glob("*/*/__init__.py")
    }
    taken = {folder for folder in folders if folder.startswith(("parts/", "models/"))}
    table = re.findall(
        r"^\| `(\w+)/` \|",
        (ROOT / "docs" / "add-a-part.md").read_text(encoding="utf-8"),
        flags=re.M,
    )
    assert len(table) == 10 and {f"parts/{name}" for name in table} < taken <= set(
        PLACES
    )
    alone = tmp_path / "parts" / "transforms"
    alone.mkdir(parents=True)
    (alone / "mine.py").write_text("", encoding="utf-8")
    check = (
        "from dpfedbench import own_code; own_code.use(None); own_code.check();"
        " print(own_code.packages())"
    )
    assert call(check, code_folder=tmp_path) == "['dpfedbench.parts.transforms']"


def test_a_package_that_is_gone_and_a_module_by_two_names_are_named(
    installed: Path, tmp_path: Path
) -> None:
    site = shutil.copytree(installed, tmp_path / "site")
    method = site / "dpfedbench_anil" / "methods" / "dp_anil.py"
    text = method.read_text(encoding="utf-8")
    method.write_text(
        text.replace(
            "from dpfedbench.parts.client_updates.anil",
            "from dpfedbench_anil.parts.client_updates.anil",
        )
    )
    assert call(TELL, places=(site,)).endswith(
        "anil.py is imported as dpfedbench_anil.parts.client_updates.anil, and would be"
        " there twice: write from dpfedbench.parts.client_updates.anil import ..."
    )
    shutil.rmtree(site / "dpfedbench_anil")
    assert "an installed package names dpfedbench_anil in its entry points" in call(
        TELL, places=(site,)
    )


ANALYSIS = """
from dpsum.accounting.analyses.known_rounds import OnePass


class Mine(OnePass):
    pair = "mine", "one-pass"
"""


def test_an_analysis_of_ones_own_is_found_and_belongs_to_the_code_of_accounts(
    tmp_path: Path,
) -> None:
    path = (
        put(tmp_path / "mycode", "add-a-part.md")
        / "accounting"
        / "analyses"
        / "mine.py"
    )
    path.parent.mkdir(parents=True)
    path.write_text(ANALYSIS, encoding="utf-8")
    tell = """
from pathlib import Path
from dpfedbench.imports import of_stage
from dpsum.accounting.analyses import find, known
print(known("mine", "one-pass"), type(find("mine", "one-pass")).__module__)
for stage in ("account", "train"):
    print([file.name for file in of_stage(Path(f"workflow/scripts/{stage}.py"), []) if "mycode" in file.parts])
"""
    found = call(tell, code_folder=tmp_path / "mycode").splitlines()
    assert found[0] == "True dpsum.accounting.analyses.mine" and "mine.py" in found[1]


JOB = """
from pathlib import Path
from dpfedbench.jobs import job
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
        ("parts/clipping/geometric.py", '        state["threshold"] = ', TRAIN_JOB),
        ("data/stripes.py", "    classes = 3 * directions", PREPARE_JOB),
    ],
)
def test_what_ones_own_code_raises_in_a_job_is_said_with_its_file_and_line(
    federation: tuple[Path, Path],  # noqa: F811
    tmp_path: Path,
    file: str,
    old: str,
    code: str,
) -> None:
    folder = put(
        tmp_path / "mycode",
        "add-a-part.md",
        "add-a-data-set.md",
        wanted="anil|geometric|yogi|stripes",
    )
    text = (folder / file).read_text(encoding="utf-8")
    before, after = text.split(old)
    (folder / file).write_text(
        f"{before}{old[: len(old) - len(old.lstrip())]}1 / 0\n{old}{after}",
        encoding="utf-8",
    )
    line = before.count("\n") + 1
    (tmp_path / "run").mkdir()
    found = call(code, *map(str, federation), str(tmp_path / "run"), code_folder=folder)
    log = tmp_path / "run" / "logs" / "job.log"
    assert (
        found
        == f"it: {folder / file}, line {line}: ZeroDivisionError: division by zero; its"
        f" traceback is in {log}"
    )
    assert "Traceback" in log.read_text(encoding="utf-8")


OWN = """
seeds: [0]
code_folder: mycode
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


def test_the_workflow_runs_code_of_a_folder_and_an_edit_runs_it_again(
    snakemake: Call,  # noqa: F811
    tmp_path: Path,
) -> None:
    """A reader, a method and parts outside the repository: made, verified, and made
    again where a file is edited.
    """
    folder = put(
        tmp_path / "mycode",
        "add-a-part.md",
        "add-a-data-set.md",
        wanted="anil|geometric|yogi|stripes",
    )
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
    assert (run / "manifest").is_dir() and make(table, "--dry-run") == {}
    make("verify")
    for name, again in (
        ("parts/clipping/geometric.py", {"train": 1}),
        ("methods/dp_anil.py", {"train": 1}),
        ("data/stripes.py", {"prepare": 1, "partition": 1, "train": 2}),
    ):
        before = (folder / name).read_text(encoding="utf-8")
        (folder / name).write_text(before + "# edited\n", encoding="utf-8")
        found = make(table, "--dry-run")
        assert {rule: found.get(rule) for rule in again} == again, name
        (folder / name).write_text(before, encoding="utf-8")
    assert make(table, "--dry-run") == {}
