"""The targets `verify` and `cost`, as a user meets them."""

import pytest

from dpfedbench.files import write_text
from tests.shipped import without_others
from workflow_jobs.manifests import seal

OWN = """
stand_ins: {omniglot: glyphs}
experiments:
  mine:
    title: Mine
    run: {task: {ways: 3}, clients: {count: 40}, model: {filters: 4}, participation: {cohort: 20, rounds: 2}}
    tasks: {any: {dataset: omniglot}}
    tables: {one: {title: t, tasks: [any], seeds: [0, 1], series: {maml: {method: maml}, dp-agr: {method: dp-agr}}}}
"""


def lines_of(done, start):
    return [line for line in done.stderr.splitlines() if line.startswith(start)]


def test_verify_names_damaged_files_of_a_part_of_a_folder(snakemake, tmp_path):
    tables = tmp_path / "sent" / "results" / "tables"
    for name in ("one.csv", "two.csv"):
        write_text(tables / name, "epsilon\n2.46\n")
        seal("table", [tables / name])
    write_text(tables / "two.csv", "epsilon\n1.86\n")
    done = snakemake("verify", directory=tmp_path / "sent")
    assert done.returncode == 1
    fault, summary = lines_of(done, "verify: ")
    assert "results/tables/two.csv differs from what the rule table wrote" in fault
    assert summary.startswith("verify: 1 of 2 files and accounts in results have a")


# Faster: the tests of tests/dpfedbench/test_cost.py.
@pytest.mark.slow
def test_cost_prints_the_work_before_a_run(snakemake, tmp_path, drawn):
    """MAML's clients and DP-AGR's do the same kind of work."""
    (tmp_path / "own.yaml").write_text(without_others(OWN), encoding="utf-8")
    done = snakemake("cost", "--configfile", str(tmp_path / "own.yaml"))
    assert done.returncode == 0, done.stderr
    assert len(lines_of(done, "cost: kind of work")) == 1
    rows = [line.split(" | ")[1:4] for line in lines_of(done, "cost: | ")]
    counts = [row for row in rows if row[1:2] and row[1].isdigit()]
    assert counts == [
        ["maml", "2", "80 clients"],
        ["dp-agr", "2", "80 clients"],
        ["total", "4", "160 clients"],
    ]
    assert not (tmp_path / "results" / "runs").exists()
