"""The examples of docs/add-a-*.md work as they are printed, and add nothing but new
files; pages hold together.
"""

import csv
import hashlib
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from dpkernels.conv4_passes import Conv4Passes
from tests.calls import Snakemake
from tests.dpfedbench.models.nets import conv4
from tests.shipped import without_others

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("add-a-data-set.md", "add-a-method.md", "add-a-part.md", "add-a-model.md")
# Laid over the first two pages' sizes; the method's data set is replaced by the folder
# of pictures. The other pages are run as they are printed, on the same pictures in
# place of digits, and on the first page's stripes in place of letters, which take
# seconds to draw.
TINY = """
preset: null
seeds: [0]
stand_ins: {fashion-mnist: shapes, digits: shapes, glyphs: stripes}
experiments:
  shapes:
    run: {participation: {rounds: 2}}
    tables: {table1: {series: {fedavg: null}}}
  dp-fedavgm:
    run:
      task: {ways: 4}
      clients: {count: 10, fragments: 40}
      participation: {cohort: 4, rounds: 4}
      client_update: {inner_steps: 2}
      budget: {delta: 1.0e-3}
      validation: {tasks: 10}
      evaluation: {every: 2}
    tables: {table1: {series: {fedavg: null, plain: null}}}
    figures: {figure1: {series: {fedavg: null, plain: null}}}
  stripes:
    run: {clients: {count: 20}, model: {filters: 4}, participation: {cohort: 10, rounds: 2}, evaluation: {tasks: 4}}
    tables: {table1: {series: {random: null, maml: null}}}
  dp-anil:
    tables: {table1: {series: {dp-agr: null}}}
  resnet9:
    tasks: {digits: {task: {ways: 4}, clients: {fragments: 40}, validation: {tasks: 10}}}
"""

# Networks whose refusals docs/add-a-model.md prints; each is `refused:NAME`.
REFUSED = """
from torch import nn


class Running(nn.Sequential):
    def __init__(self, outputs):
        super().__init__(nn.Conv2d(1, 4, 28), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, outputs))


class Drop(nn.Sequential):
    def __init__(self, outputs):
        super().__init__(nn.Flatten(), nn.Dropout(0.5), nn.Linear(784, outputs))


class Batch(nn.Sequential):
    def __init__(self, outputs):
        super().__init__(
            nn.Conv2d(1, 4, 28), nn.BatchNorm2d(4, track_running_stats=False), nn.Flatten(), nn.Linear(4, outputs)
        )


class Colour(nn.Sequential):
    def __init__(self, outputs):
        super().__init__(nn.Flatten(), nn.Linear(3 * 32 * 32, outputs))


class Map(nn.Conv2d):
    def __init__(self, outputs):
        super().__init__(1, outputs, 3)


class Own:
    pass
"""


def blocks(page: str) -> list[tuple[str, str, str]]:
    """(language, file that it is or "", text) of a page's code blocks."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(
        r"^```(\w+) ?(\S*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL
    )


def printed(page: str) -> list[str]:
    """The lines that a page shows as printed by the program."""
    return [
        line
        for language, _, text in blocks(page)
        if language == "text"
        for line in text.splitlines()
    ]


def digests(folder: Path) -> dict[str, str]:
    """sha256 of every file that a reader would commit, by its path."""
    made = (".snakemake", "__pycache__", "local", "results")
    paths = (
        path
        for path in folder.rglob("*")
        if path.is_file() and not set(path.parts) & set(made)
    )
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
    }


def test_the_page_of_properties_names_tests_that_exist() -> None:
    named = re.findall(
        r"`(tests/[\w/]+\.py)(?:::(\w+))?`",
        (ROOT / "docs/properties.md").read_text(encoding="utf-8"),
    )
    assert len(named) > 40
    gone = [
        f"{file}::{test}"
        for file, test in named
        if f"def {test}(" not in (ROOT / file).read_text(encoding="utf-8") and test
    ]
    assert gone == []


def test_the_readme_is_short_and_links_lead_to_files() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 700
    for page in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").rglob("*.md"),
    ):
        links = re.findall(
            r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")
        )
        gone = [
            link
            for link in links
            if "://" not in link and not (page.parent / link).is_file()
        ]
        assert gone == [], page.name


def test_findings_have_a_page_for_each_paper() -> None:
    """The first page links them; each has the same four parts, in order."""
    first = (ROOT / "docs/findings.md").read_text(encoding="utf-8")
    pages = sorted((ROOT / "docs/findings").glob("*.md"))
    assert set(re.findall(r"\(findings/([\w-]+)\.md\)", first)) == {
        page.stem for page in pages
    }
    for page in pages:
        text = page.read_text(encoding="utf-8")
        parts = re.findall(r"^## (.*)$", text, flags=re.MULTILINE)
        assert [part.split()[0] for part in parts] == ["What"] * 4, page.name
        assert re.match(r"What the papers? says?$", parts[0])
        assert parts[1:] == [
            "What is open, and how it is read here",
            "What was measured",
            "What was not measured",
        ]


def test_each_measurement_that_a_page_names_has_its_row() -> None:
    rows = (ROOT / "docs/measurements.md").read_text(encoding="utf-8").splitlines()
    cells = [line.split(" | ") for line in rows if re.match(r"\| [MR]\d+ \|", line)]
    assert len(cells) > 40
    assert {len(row) for row in cells} == {7}
    known = {row[0].strip("| ") for row in cells}
    assert len(known) == len(cells)
    pages = [
        page for page in (ROOT / "docs").rglob("*.md") if page.name != "measurements.md"
    ]
    named = {
        name
        for page in pages
        for name in re.findall(r"\[([MR]\d+)\]\(", page.read_text(encoding="utf-8"))
    }
    assert named
    assert named <= known
    # A row that no page names says nothing.
    assert {name for name in known if name.startswith("M")} <= named


def test_every_page_of_docs_is_linked_from_the_readme() -> None:
    linked = set(
        re.findall(
            r"\(docs/([\w-]+\.md)\)", (ROOT / "README.md").read_text(encoding="utf-8")
        )
    )
    assert linked == {page.name for page in (ROOT / "docs").glob("*.md")}


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the working tree, without what git ignores."""
    copy = tmp_path_factory.mktemp("docs") / "copy"
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    # What numba compiled fits as long as a source is unchanged, and takes longest to
    # make. It is made in this tree: what runs beside this test waits for it instead of
    # making it too.
    Conv4Passes(conv4().module, 5, np.float32)
    for compiled in (ROOT / "src").rglob("*.nb[ic]"):
        place = copy / compiled.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(compiled, place)
    return copy


def environment(copy: Path) -> dict[str, str]:
    return os.environ | {
        "PYTHONPATH": str(copy / "src"),
        "DPFEDBENCH_DATA": str(copy / "local"),
    }


@pytest.fixture(scope="module")
def followed(copied: Path, call_snakemake: Snakemake) -> Iterator[Path]:
    """The copy, after all pages were followed block by block; at the end nothing in it
    that stood has changed.
    """
    before = digests(copied)
    promised = set()
    targets = []
    for page in PAGES:
        for language, file, text in blocks(page):
            if file:
                assert not (copied / file).exists(), (
                    f"{page} would edit {file}: a new file was promised"
                )
                (copied / file).write_text(text, encoding="utf-8")
                promised.add(file)
            elif language == "python":
                subprocess.run(
                    [sys.executable, "-c", text],
                    cwd=copied,
                    env=environment(copied),
                    check=True,
                )
            elif language == "bash":
                for line in text.splitlines():
                    words = shlex.split(line)
                    assert words[:5] == [
                        "uv",
                        "run",
                        "snakemake",
                        "--cores",
                        "all",
                    ], line
                    targets += [word for word in words[5:] if not word.startswith("-")]
            else:
                assert language == "text"
    assert {
        name: digest for name, digest in digests(copied).items() if name in before
    } == before
    # All pages' targets in one call: Snakemake takes seconds to start.
    (copied / "results").mkdir()
    (copied / "results" / "tiny.yaml").write_text(
        without_others(TINY), encoding="utf-8"
    )
    command = ["--cores", "2", *dict.fromkeys([*targets, "results/tables/privacy.csv"])]
    command += ["--configfile", "results/tiny.yaml"]
    done = call_snakemake(*command, folder=copied, fresh=True, **environment(copied))
    assert done.returncode == 0, done.stderr
    yield copied
    after = digests(copied)
    assert set(after) - set(before) == promised
    assert {name: after[name] for name in before} == before


def rows_of(copy: Path, name: str) -> list[dict[str, str]]:
    with open(
        copy / "results" / "tables" / f"{name}.csv", newline="", encoding="utf-8"
    ) as handle:
        return list(csv.DictReader(handle))


def summary_of(copy: Path, name: str) -> dict[str, Any]:
    path = copy / "results" / "data" / name / "summary.json"
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found


def releases_of(run: Path) -> list[dict[str, Any]]:
    lines = (run / "ledger.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def config_of(run: Path) -> Any:
    return yaml.safe_load((run / "config.yaml").read_text("utf-8"))


def test_a_new_method_is_in_its_table_and_figure(followed: Path) -> None:
    """Poisson cohorts of 4 of 10 in 4 rounds at z = 1: less than four plain Gaussians of
    all clients, mu = 2, whose epsilon at delta = 1e-3 solves Phi(-e/2 + 1) - exp(e)
    Phi(-e/2 - 1) = 1e-3.
    """
    (row,) = rows_of(followed, "dp-fedavgm/table1")
    assert row["method"] == "dp-fedavgm"
    assert row["dataset"] == "shapes"
    assert row["unit"] == "client"
    assert 0 <= float(row["value"]) <= 100
    assert 0 < float(row["epsilon_proven"]) < 7.5813
    assert row["epsilon_claimed"] == ""  # its file states no claim
    table = followed / "results/tables/dp-fedavgm/table1.md"
    assert "| DP-FedAvgM |" in table.read_text("utf-8")
    (run,) = (followed / "results" / "runs" / "dp-fedavgm").glob("*/*/*/seed0")
    releases = releases_of(run)
    assert [event["name"] for event in releases] == ["model-difference-sum"] * 4
    assert {event["sampler"]["kind"] for event in releases} == {"poisson"}
    server = config_of(run)["server"]
    assert server["optimizer"] == {"kind": "sgd", "momentum": 0.9}
    assert server["rate"] == 0.2
    drawn = followed / "results" / "figures" / "dp-fedavgm" / "figure1"
    assert drawn.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    with open(drawn.with_suffix(".csv"), newline="", encoding="utf-8") as handle:
        assert [float(row["x"]) for row in csv.DictReader(handle)] == [2, 4]


def test_a_folder_of_pictures_is_in_its_table(followed: Path) -> None:
    (row,) = rows_of(followed, "shapes/table1")
    assert row["dataset"] == "shapes"
    assert row["method"] == "dp-fl"
    assert row["unit"] == "record"
    assert math.isfinite(float(row["epsilon_proven"]))
    summary = summary_of(followed, "shapes")
    assert summary["split_records"] == {"train": 200, "test": 40}
    assert summary["source_sizes"] == {"40x32": 240}
    assert summary["image_shape"] == [28, 28, 1]


def test_a_data_set_of_a_module_is_in_its_table(followed: Path) -> None:
    (row,) = rows_of(followed, "stripes/table1")
    assert row["dataset"] == "stripes"
    assert row["task"] == "5-way 1-shot"
    splits = summary_of(followed, "stripes")["split_classes"]
    assert splits == {"train": 24, "validation": 6, "test": 6}


def test_new_parts_are_in_their_table_and_did_what_they_say(followed: Path) -> None:
    """A client is in one of ten Gaussian releases at z = 1, whatever the parts: epsilon
    at delta = 1e-6 is 4.89.
    """
    (row,) = rows_of(followed, "dp-anil/table1")
    assert row["method"] == "dp-anil"
    assert row["unit"] == "client"
    assert row["epsilon_claimed"] == ""
    assert round(float(row["epsilon_proven"]), 2) == 4.89
    (run,) = (followed / "results" / "runs" / "dp-anil").glob("*/*/*/seed0")
    thresholds = [event["threshold"] for event in releases_of(run)]
    assert thresholds == pytest.approx([0.5 * 0.9**index for index in range(10)])
    config = config_of(run)
    assert config["client_update"]["kind"] == "anil"
    assert config["server"]["optimizer"] == {"kind": "yogi", "tau": 0.001}


def test_a_new_model_is_in_tables_of_clients_and_of_records(followed: Path) -> None:
    rows = [
        *rows_of(followed, "resnet9/letters"),
        *rows_of(followed, "resnet9/digits"),
    ]
    units = [(row["method"], row["unit"]) for row in rows]
    assert units == [("dp-agr", "client"), ("dp-fl", "record"), ("dp-fl", "record")]
    assert all(math.isfinite(float(row["epsilon_proven"])) for row in rows)
    runs = list((followed / "results" / "runs" / "dp-fl" / "shapes").glob("*/*/seed0"))
    kinds = [config_of(run)["model"]["kind"] for run in runs]
    assert sorted(kinds) == ["cnn", "module", "resnet9"]
    trainings = [(run / "training.json").read_text("utf-8") for run in runs]
    gradients = [json.loads(text)["gradients"] for text in trainings]
    assert sorted(gradients) == ["cnn", "torch", "torch"]


def test_what_was_added_is_audited(followed: Path) -> None:
    """One-sided bounds at 95 %: one of twenty is a little above the proven epsilon; a
    fifth more is a leak.
    """
    rows = rows_of(followed, "privacy")
    clients = {("dp-anil", "stripes"), ("dp-agr", "stripes"), ("dp-fedavgm", "shapes")}
    found = {(row["method"], row["dataset"]) for row in rows}
    assert found == clients | {("dp-fl", "shapes")}
    for row in rows:
        limit = 1.2 * float(row["epsilon_proven_high"])
        assert 0 <= float(row["epsilon_audited"]) < limit, row


def test_a_search_is_planned_with_as_many_runs_as_it_says(
    followed: Path, call_snakemake: Snakemake
) -> None:
    """It is not run here: tests/dpfedbench/test_search.py has how one is made."""
    page = (ROOT / "docs/add-a-method.md").read_text(encoding="utf-8")
    (command,) = re.findall(
        r"`uv run snakemake --cores all (--configfile search\.yaml .*)`", page
    )
    dry = ("--cores", "1", "--dry-run", "--quiet", "rules", *shlex.split(command))
    done = call_snakemake(*dry, folder=followed, fresh=True, **environment(followed))
    assert done.returncode == 0, done.stderr
    assert re.search(r"^train +4$", done.stdout + done.stderr, flags=re.MULTILINE), (
        done.stdout
    )


REFUSE = """
import json, sys, yaml
from pathlib import Path
from dpfedbench.errors import BenchError
from dpfedbench.federation.engine import train
from dpfedbench.papers import read_run

values = yaml.safe_load(Path(sys.argv[1], "config.yaml").read_text())
clients = Path("results/clients", read_run(values).clients_folder)
for changes in json.loads(sys.argv[2]):
    try:
        run = read_run(values | changes)
        data = Path("results/data", run.dataset)
        train(run, data_dir=data, clients_dir=clients, run_dir=Path("local/refused"))
        print("trained")
    except BenchError as error:
        print(error)
"""


def refusals(copy: Path, trained: str, *changes: dict[str, object]) -> list[str]:
    """Return what stops the training of a page's run, for each change of its
    configuration.
    """
    run = next((copy / "results" / "runs" / trained).glob("*/*/seed0"))
    done = subprocess.run(
        [sys.executable, "-c", REFUSE, str(run), json.dumps(changes)],
        cwd=copy,
        env=environment(copy),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_noise_of_another_mechanism_prints_no_epsilon(followed: Path) -> None:
    """The same run of DP-ANIL, by a method that takes the page's noise."""
    method = followed / "src" / "dpfedbench" / "papers" / "dp_anil_less_noise.py"
    method.write_text(
        "from dpfedbench.papers.dp_anil import DpAnil\n"
        "from dpfedbench.parts.noise.anti_correlated import AntiCorrelated\n\n"
        "class LessNoise(DpAnil):\n"
        "    name = 'dp-anil-less-noise'\n"
        "    title = 'DP-ANIL, anti-correlated noise'\n"
        "    noise: AntiCorrelated = AntiCorrelated()\n",
        encoding="utf-8",
    )
    try:
        said = refusals(
            followed,
            "dp-anil/stripes",
            {"method": "dp-anil-less-noise", "noise": "anti-correlated"},
            {"noise": "anti-correlated"},
        )
    finally:
        method.unlink()
    assert said == [
        *printed("add-a-part.md"),
        'noise.kind is "anti-correlated": expected one of fixed',
    ]


def test_models_are_refused_as_printed(followed: Path) -> None:
    networks = followed / "refused.py"
    networks.write_text(REFUSED, encoding="utf-8")
    names = ("Running", "Drop", "Batch", "Colour", "Map", "Absent", "Own")
    task = {"ways": 10, "shots": 0}
    try:
        said = refusals(
            followed,
            "dp-fl/shapes",
            *(
                {"model": {"kind": "module", "module": f"refused:{n}"}, "task": task}
                for n in names
            ),
        )
    finally:
        networks.unlink()
    assert said == printed("add-a-model.md")


def test_tour_names_places_that_exist() -> None:
    text = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \d+ \| `(.+)` \| `(.+)` \|$", text, flags=re.MULTILINE)
    assert len(rows) >= 10
    for path, name in rows:
        source = (ROOT / path).read_text(encoding="utf-8")
        definitions = set(
            re.findall(r"^ *(?:def|class) (\w+)", source, flags=re.MULTILINE)
        )
        assert set(name.split(".")) <= definitions, f"{path} has no {name}"
        assert f"`{name}`" in text.partition("| stop |")[0].replace(
            "tables.read", "read"
        )
