"""The target `verify`, the mark of a results folder, a cluster that is not
there, as a user meets them.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dpfedbench.files import write_text
from dpfedbench.results.format import FORMAT
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


def test_a_results_folder_of_a_newer_version_is_one_line(
    snakemake: Call, tmp_path: Path
) -> None:
    (tmp_path / "results").mkdir()
    mark = tmp_path / "results" / "format.json"
    mark.write_text(
        json.dumps({"format": FORMAT + 1, "written_by": "9.1"}), encoding="utf-8"
    )
    done = snakemake("--dry-run")
    said = [
        line
        for line in done.stderr.splitlines()
        if not line.startswith(("Using", "Config file"))
    ]
    assert done.returncode == 1 and len(said) == 1
    assert said[0].startswith(
        "results: results was written by a newer dpfedbench (9.1, results format"
    )


def test_slurm_that_is_not_there_is_one_line(
    snakemake: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is submitted: Slurm's own programs are asked, and here answer
    that nobody is there.
    """
    programs = tmp_path / "bin"
    programs.mkdir()
    down = "slurm_load_partitions: Unable to contact slurm controller (connect failure)"
    for name in ("sinfo", "squeue", "sacct", "scontrol"):
        (programs / name).write_text(
            f"#!/bin/sh\necho '{down}' >&2\nexit 1\n", encoding="utf-8"
        )
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    profile = str(ROOT / "profiles" / "slurm")
    done = snakemake("results/data/digits/images.npy", "--profile", profile)
    assert done.returncode != 0
    assert ours(done, "cluster: ") == [f"cluster: Slurm does not answer: {down}"]
    assert not (tmp_path / "results" / "data").exists()


def test_snakemakes_timer_is_off(tmp_path: Path) -> None:
    """It looks at all ready jobs again and again, more often with each job that
    ends.
    """
    table = tmp_path / "results" / "tables" / "one.csv"
    write_text(table, "epsilon\n2.46\n")
    seal("table", [table])
    code = (
        "from snakemake.scheduling.job_scheduler import"
        " JobScheduler\nJobScheduler._schedule_reevalutation = lambda self, delay:"
        " print('a timer was set')\nfrom snakemake.cli import main\nmain(['verify',"
        f" '--cores', '1', '--snakefile', '{ROOT}/Snakefile', '--directory',"
        f" '{tmp_path}'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "a timer was set" not in done.stdout
