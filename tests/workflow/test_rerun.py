"""What runs again when something changes: the whole workflow with scripts that only
write their outputs.
"""

import ast
import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from dpfedbench.settings.sections import PartitionScheme
from tests.calls import Snakemake
from tests.shipped import without_others

ROOT = Path(__file__).resolve().parents[2]
STUB = """
import pathlib
for path in map(pathlib.Path, snakemake.output):
    path.parent.mkdir(parents=True, exist_ok=True)
    if snakemake.rule == "audit" and path.suffix != ".sha256":
        for ledger in map(pathlib.Path, snakemake.input.ledgers):
            own = path / f"{ledger.parent.parent.name}-{ledger.parent.name}"
            own.mkdir(parents=True)
            (own / "audit.json").write_text("{}")
    else:
        path.write_text(repr(dict(snakemake.params.items())) if snakemake.rule == "partition" else str(path))
"""
SMALL = """
preset: null
seeds: [3]
experiments:
  dp-fedmeta:
    tables:
      table2: {tasks: [omniglot-1shot], series: {dp-agrlr: null, gbml: null}}
      table3-time: null
      repairs: null
      baselines: null
      as-released: null
      table2-by-tensor: null
    figures:
      frontier: null
      figure3: null
      figure4c: null
      figure4d: null
      figure4a: {x: {values: [50, 90]}, seeds: [0]}
      figure4b: null
      figure5: null
      figure2b: {seeds: [0]}
"""


@pytest.fixture(scope="module")
def finished(
    tmp_path_factory: pytest.TempPathFactory, call_snakemake: Snakemake
) -> Path:
    """A copy of the workflow, with stubs for scripts, after a small run of it; whoever
    changes it changes it back.
    """
    copy = tmp_path_factory.mktemp("finished") / "copy"
    for name in ("workflow", "config", "profiles", "src"):
        shutil.copytree(
            ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(ROOT / "Snakefile", copy)
    for script in (copy / "workflow" / "scripts").glob("*.py"):
        script.write_text(STUB, encoding="utf-8")
    (copy / "small.yaml").write_text(without_others(SMALL), encoding="utf-8")
    done = run(call_snakemake, copy)
    assert done.returncode == 0, done.stderr
    return copy


def run(
    snakemake: Snakemake, copy: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    given = ["--cores", "2", *arguments, "--configfile", str(copy / "small.yaml")]
    return snakemake(*given, folder=copy, fresh=True)


def again(snakemake: Snakemake, copy: Path) -> set[tuple[str, str]]:
    """The rules that would run again, with the method where they have one."""
    done = run(snakemake, copy, "--dry-run")
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    return {
        (rule, next(iter(re.findall(r"method=([\w-]+)", text)), ""))
        for rule, text in re.findall(
            r"^(?:local)?rule (\w+):\n((?:    .*\n)+)", said, flags=re.M
        )
    }


def test_copied_results_without_times_run_nothing_again(
    finished: Path, call_snakemake: Snakemake, tmp_path: Path
) -> None:
    """As by `cp -r`: every file and folder is as young as its copying."""
    results = finished / "results"
    shutil.copytree(results, tmp_path / "results")
    shutil.rmtree(results)
    shutil.copytree(tmp_path / "results", results, copy_function=shutil.copy)
    for path in sorted(results.rglob("*"), reverse=True):
        path.touch()  # inputs become younger than outputs, audits among them
    assert again(call_snakemake, finished) == set()
    checksums = next((results / "audits" / "checksums").glob("dp-agr-*.sha256"))
    checksums.write_text("another audit", encoding="utf-8")
    assert ("audited", "dp-agr") in again(call_snakemake, finished)
    shutil.rmtree(results)
    shutil.copytree(tmp_path / "results", results)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_the_report_has_every_table_and_figure(
    finished: Path, call_snakemake: Snakemake
) -> None:
    """`snakemake --report`: each with a caption and its command, under its paper, with
    labels; and nothing else.
    """
    done = run(call_snakemake, finished, "--report", "report.html")
    assert done.returncode == 0, done.stderr
    text = (finished / "report.html").read_text(encoding="utf-8")
    read = {}
    for name in ("categories", "results"):
        found = re.search(rf"var {name} = (\{{.*\}});?$", text, flags=re.M)
        assert found is not None
        read[name] = json.loads(found[1])
    tables = [
        f"results/tables/dp-fedmeta/{name}.csv" for name in ("readings-gbml", "table2")
    ]
    figures = [
        f"results/figures/dp-fedmeta/{name}.png" for name in ("figure2b", "figure4a")
    ]
    private = [
        "results/tables/answer.csv",
        "results/tables/privacy.csv",
        "results/figures/privacy.png",
    ]
    assert {
        category: {name: sorted(paths) for name, paths in parts.items()}
        for category, parts in read["categories"].items()
    } == {
        "DP-FedMeta": {"tables": tables, "figures": figures},
        "Privacy": {"Other": sorted(private)},
    }
    assert set(read["results"]) == {*tables, *figures, *private}
    for path, result in read["results"].items():
        caption = " ".join(
            html.unescape(re.sub("<[^>]+>", "", result["caption"])).split()
        )
        assert caption.startswith(result["labels"]["title"])
        made = private[1] if path in private else path
        assert caption.endswith(
            f"snakemake --cores all {made} --configfile small.yaml."
        )
        assert (
            result["labels"]["name"] == Path(path).stem
            and result["labels"]["data"] == "glyphs"
        )


def test_what_runs_again(finished: Path, call_snakemake: Snakemake) -> None:
    """One story, since a finished workflow is dear: each change is undone before the
    next.
    """
    snakemake, configured = (
        call_snakemake,
        (finished / "small.yaml").read_text(encoding="utf-8"),
    )
    assert again(snakemake, finished) == set()
    # Partitions are made with the sizes and the seed that their folders say.
    made = {
        path.parent.name: ast.literal_eval(path.read_text())
        for path in finished.glob("results/clients/*/*/*.npz")
    }
    assert {given["seed"] for given in made.values()} == {0, 3}
    for name, given in made.items():
        clients, ways = PartitionScheme.of(given["drawn_from"])
        sizes = f"{ways}way-{clients.count}clients-{clients.examples_per_class}examples-{clients.partition}"
        assert name == f"{sizes}-seed{given['seed']}"
    shown = {("provenance", ""), ("page", ""), ("all", "")}
    items = {("table", ""), ("figure", ""), ("privacy", "")}
    reported = items | {("collect", "")} | shown

    # A method's version trains and tests its runs, and no other method's. Accounts and
    # audits depend on the folder of all methods, and run again for every run.
    method = finished / "src" / "dpfedbench" / "papers" / "dp_fedmeta.py"
    named = 'name = "dp-agr"'
    edit(method, named, f'version = "1a"\n    {named}')
    found = again(snakemake, finished)
    by_version = {
        (rule, name) for rule, name in found if rule in ("train", "meta_test")
    }
    assert by_version == {("train", "dp-agr"), ("meta_test", "dp-agr")}
    assert {("account", "dp-agr"), ("audit", "dp-agr"), *reported} < found
    edit(method, f'version = "1a"\n    {named}', named)

    # An edit of a package: the cheap rules that use the package, and never a training.
    of_runs = {"meta_test", "account", "audit", "audited"}
    for file, expected in (
        ("dpsum/accounting/tuning.py", {"account", "audit", "audited"}),
        ("dpfedbench/models/meta_gradient.py", {"meta_test", "audit", "audited"}),
        ("dpfedbench/parts/client_updates/maml.py", {"account", "audit", "audited"}),
        ("dpfedbench/federation/engine.py", {"account", "audit", "audited"}),
        ("dpfedbench/results/figures.py", set()),
        ("dpfedbench/results/templates/page.css", set()),
    ):
        path = finished / "src" / file
        before = path.read_text(encoding="utf-8")
        path.write_text(f"{before}\n\n", encoding="utf-8")
        found = {rule for rule, _ in again(snakemake, finished)}
        assert found & of_runs == expected, file
        assert "train" not in found and "table" in found and "page" in found
        path.write_text(before, encoding="utf-8")

    # How jobs are run, how files are written: nothing at all.
    jobs = finished / "src" / "workflow_jobs" / "jobs.py"
    edit(jobs, "\n", "\n# a comment\n")
    assert again(snakemake, finished) == set()
    edit(jobs, "\n# a comment\n", "\n")

    # A changed label draws one figure; machine settings and the local folder change
    # nothing.
    edit(
        finished / "small.yaml",
        "{x: {values: [50, 90]}",
        "{title: other, x: {values: [50, 90]}",
    )
    with open(finished / "small.yaml", "a", encoding="utf-8") as handle:
        handle.write(
            "machine: {threads: 2, checkpoint_seconds: 5}\ndata: {local_dir:"
            " /nowhere}\n"
        )
    assert again(snakemake, finished) == {("figure", "")} | shown
    edit(
        finished / "small.yaml",
        "{title: other, x: {values: [50, 90]}",
        "{x: {values: [50, 90]}",
    )

    # A declared search on private data draws streams of its own: its method's runs are
    # others, and trained.
    with open(finished / "small.yaml", "a", encoding="utf-8") as handle:
        handle.write("tuning: {dp-agr: {runs: 3, data: private}}\n")
    stages = ("configure", "train", "meta_test", "account", "audit", "audited")
    assert (
        again(snakemake, finished)
        == {*((stage, "dp-agr") for stage in stages)} | reported
    )

    # Another value in a grid: one run more than the search's five, and the figure that
    # shows it.
    edit(finished / "small.yaml", "values: [50, 90]", "values: [50, 70, 90]")
    done = run(snakemake, finished, "--dry-run", "--quiet", "rules")
    assert re.search(r"^train\s+6$", done.stdout + done.stderr, flags=re.M), (
        done.stdout + done.stderr
    )
    (finished / "small.yaml").write_text(configured, encoding="utf-8")
