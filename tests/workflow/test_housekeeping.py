"""The target `verify`, the mark of a results folder, a cluster that is not
there, as a user meets them.
"""

import subprocess
from collections.abc import Callable
from pathlib import Path

from dpfedbench.files import write_text
from tests.shipped import without_others
from workflow_jobs.manifests import seal

Call = Callable[..., subprocess.CompletedProcess[str]]
ROOT = Path(__file__).resolve().parents[2]


def ours(done: subprocess.CompletedProcess[str], start: str) -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith(start)]


def test_verify_looks_through_a_folder_that_somebody_sent(
    snakemake: Call, tmp_path: Path
) -> None:
    """Whichever part of one it is: what is there has to be as it was written."""
    tables = tmp_path / "sent" / "results" / "tables"
    for name in ("one.csv", "two.csv"):
        write_text(tables / name, "epsilon\n2.46\n")
        seal("table", [tables / name])
    write_text(tables / "two.csv", "epsilon\n1.86\n")
    done = snakemake("verify", directory=tmp_path / "sent")
    assert done.returncode == 1
    line, end = ours(done, "verify: ")
    assert line.startswith(
        "verify: results/tables/two.csv is damaged or was edited, it is not what the"
        " rule table wrote"
    )
    assert end == "verify: 1 of 2 files and accounts in results have a fault, see above"


OWN = """
stand_ins: {omniglot: glyphs}
experiments:
  mine:
    title: Mine
    run: {task: {ways: 3}, clients: {count: 40}, model: {filters: 4}, participation: {cohort: 20, rounds: 2}}
    tasks: {any: {dataset: omniglot}}
    tables: {one: {title: t, tasks: [any], seeds: [0, 1], series: {maml: {method: maml}, dp-agr: {method: dp-agr}}}}
"""


def test_cost_is_said_before_a_run(
    snakemake: Call, tmp_path: Path, drawn: Path
) -> None:
    (tmp_path / "own.yaml").write_text(without_others(OWN), encoding="utf-8")
    done = snakemake("cost", "--configfile", str(tmp_path / "own.yaml"))
    assert done.returncode == 0, done.stderr
    said = ours(done, "cost: ")
    # MAML's clients and DP-AGR's do the same work: one kind.
    assert sum(line.startswith("cost: kind of work") for line in said) == 1
    rows = [line.split(" | ")[1:4] for line in said if line.startswith("cost: | ")]
    wanted = [
        ["maml", "2", "80 clients"],
        ["dp-agr", "2", "80 clients"],
        ["total", "4", "160 clients"],
    ]
    assert [row for row in rows if row[1:2] and row[1].isdigit()] == wanted
    assert (
        not (tmp_path / "results" / "runs").exists()
        and (tmp_path / "results" / "cost.md").exists()
    )
    assert snakemake("verify").returncode == 0
