"""The DAG of every preset, what a user's mistake looks like, and the workflow's own
form.
"""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
Call = Callable[..., subprocess.CompletedProcess[str]]


def jobs(output: str) -> dict[str, int]:
    """Snakemake's table of jobs."""
    table = output[output.index("Job stats:") :].split("\n\n")[0]
    return {
        name: int(count)
        for name, count in re.findall(r"^(\w+)\s+(\d+)$", table, flags=re.M)
    }


@pytest.mark.parametrize("preset", [None, "smoke", "real", "paper"])
def test_every_preset_has_a_dag(snakemake: Call, preset: str | None) -> None:
    chosen = (
        ["--configfile", str(ROOT / "config" / "presets" / f"{preset}.yaml")]
        if preset
        else []
    )
    done = snakemake("--dry-run", "--quiet", "rules", *chosen)
    assert done.returncode == 0, done.stderr
    found = jobs(done.stdout + done.stderr)
    # A run is configured, trained, tested and accounted for once, whatever shows it.
    assert (
        found["configure"] == found["train"] == found["meta_test"] == found["account"]
    )
    for rule in ("provenance", "page", "privacy", "collect"):
        assert found[rule] == 1
    assert found["table"] >= 5 and found["figure"] >= 9 and found["prepare"] >= 2
    # Audits are made several a job; smoke has few runs of a method.
    assert found["audited"] >= (1.35 if preset == "smoke" else 1.5) * found["audit"]


def test_the_scale_preset_trains_three_runs_of_one_partition(snakemake: Call) -> None:
    preset = str(ROOT / "config" / "presets" / "scale.yaml")
    done = snakemake(
        "dp_fedmeta", "--dry-run", "--quiet", "rules", "--configfile", preset
    )
    assert done.returncode == 0, done.stderr
    found = jobs(done.stdout + done.stderr)
    assert found["train"] == found["meta_test"] == found["account"] == 3
    assert found["prepare"] == found["partition"] == 1 and found["audited"] == 2


@pytest.mark.parametrize("target", ["dp_fedmeta", "adap_dp_fl", "dp_maml"])
def test_a_paper_is_a_target(snakemake: Call, target: str) -> None:
    smoke = str(ROOT / "config" / "presets" / "smoke.yaml")
    done = snakemake(target, "--dry-run", "--configfile", smoke)
    assert done.returncode == 0, done.stderr
    said, paper = done.stdout + done.stderr, target.replace("_", "-")
    found = jobs(said)
    assert "provenance" not in found and found["page_of_paper"] == found["privacy"] == 1
    made = re.findall(r"output: results/smoke/(?:tables|figures)/([\w-]+)/", said)
    assert made and set(made) == {paper}
    assert (
        f"results/smoke/{paper}.html" in said
        and f"results/smoke/tables/{paper}/privacy.csv" in said
    )
    # No run is trained, and none audited, that the paper does not show.
    assert found["audited"] > found["audit"] and found["account"] < 25
    # The model that rows of a public start begin from is trained, and shown by another
    # row.
    assert found["account"] <= found["train"] <= found["account"] + 1


def test_the_frontier_is_a_target_and_audits_nothing(snakemake: Call) -> None:
    done = snakemake(
        "frontier",
        "--dry-run",
        "--configfile",
        str(ROOT / "config" / "presets" / "smoke.yaml"),
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    found = jobs(said)
    assert found["frontier"] == found["frontier_table"] == found["figure"] == 1
    assert found["train"] > 4 and found.keys().isdisjoint(
        {"audit", "privacy", "page", "table"}
    )
    assert {
        "results/smoke/figures/dp-fedmeta/frontier.png",
        "results/smoke/tables/frontier.csv",
    } <= set(re.findall(r"results/smoke/[\w./-]+", said))


def test_audits_take_trained_runs_ledgers_and_no_account(snakemake: Call) -> None:
    smoke = ["--configfile", str(ROOT / "config" / "presets" / "smoke.yaml")]
    done = snakemake("results/smoke/audits/dp-agr-1", "--dry-run", *smoke)
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    found = jobs(said)
    folders = re.findall(r"results/runs/(dp-agr/\S+?)/ledger\.jsonl", said)
    assert (
        found["train"] == found["configure"] == len(set(folders)) > 1
        and found["audit"] == 1
    )
    assert found.keys() == {
        "audit",
        "configure",
        "partition",
        "prepare",
        "train",
        "total",
    }
    # One that the table of privacy does not need, by itself.
    done = snakemake("--dry-run", *smoke)
    other = min(
        re.findall(r"results/runs/(maml/\S+?/seed\d+)/", done.stdout + done.stderr)
    )
    done = snakemake(
        f"results/runs/{other}/audit.json", "--dry-run", "--quiet", "rules", *smoke
    )
    assert jobs(done.stdout + done.stderr) == {
        "audit": 1,
        "audited": 1,
        "configure": 1,
        "partition": 1,
        "prepare": 1,
        "train": 1,
        "total": 6,
    }


OWN = """
experiments:
  mine:
    title: Mine
    tasks: {letters: {dataset: omniglot}}
    tables:
      one: {title: one, tasks: [letters], seeds: [0], series: {maml: {method: maml}, dp-agr: {method: dp-agr}}}
"""


@pytest.mark.parametrize("folder", [False, True])
def test_an_experiment_may_lie_outside_the_repository(
    snakemake: Call, tmp_path: Path, folder: bool
) -> None:
    """Given by --configfile, or in a folder that the configuration names."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "mine.yaml").write_text(OWN, encoding="utf-8")
    chosen = (
        ["--config", "experiments_folder=own"]
        if folder
        else ["--configfile", str(tmp_path / "own" / "mine.yaml")]
    )
    done = snakemake("mine", "--dry-run", "--quiet", "rules", *chosen)
    assert done.returncode == 0, done.stderr
    found = jobs(done.stdout + done.stderr)
    assert found["table"] == 1 and found["train"] == 2


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "dp-fedmeta",
            (
                "experiments.dp-fedmeta is made in dp-fedmeta.yaml and again in"
                " mine.yaml: give yours another "
            ),
        ),
    ],
)
def test_an_experiment_with_a_name_that_is_taken_is_one_line(
    snakemake: Call, tmp_path: Path, name: str, said: str
) -> None:
    (tmp_path / "mine.yaml").write_text(
        OWN.replace("  mine:", f"  {name}:"), encoding="utf-8"
    )
    done = snakemake("--dry-run", "--configfile", str(tmp_path / "mine.yaml"))
    lines = [
        text
        for text in done.stderr.splitlines()
        if not text.startswith(("Using", "Config file"))
    ]
    assert (
        done.returncode == 1
        and len(lines) == 1
        and lines[0].startswith(f"configuration: {said}")
    )


def test_a_folder_of_experiments_that_is_not_there_is_one_line(snakemake: Call) -> None:
    done = snakemake("--dry-run", "--config", "experiments_folder=nowhere")
    said = [
        text
        for text in done.stderr.splitlines()
        if not text.startswith(("Using", "Config file"))
    ]
    assert done.returncode == 1 and len(said) == 1
    assert (
        said[0].startswith("configuration: experiments_folder is nowhere, but ")
        and "has no such folder" in said[0]
    )


def test_a_median_threshold_waits_for_its_run_without_privacy(snakemake: Call) -> None:
    """Asked for alone, a constant threshold at that run's median trains both, the run
    without privacy first.
    """
    smoke = ["--configfile", str(ROOT / "config" / "presets" / "smoke.yaml")]
    done = snakemake("results/smoke/figures/dp-maml/figure6a.png", "--dry-run", *smoke)
    assert done.returncode == 0, done.stderr
    trained = re.findall(
        r"^rule train:\n    input: (.*)\n", done.stdout + done.stderr, flags=re.M
    )
    assert len(trained) == 4  # three private ones, and the run without
    waiting = [line for line in trained if "history.csv" in line]
    assert len(waiting) == 1 and "results/runs/maml/" in waiting[0]


def test_a_figure_of_initialisations_trains_each_once_and_tests_it_at_every_shot(
    snakemake: Call,
) -> None:
    done = snakemake(
        "results/figures/dp-fedmeta/figure5.png", "--dry-run", "--quiet", "rules"
    )
    assert done.returncode == 0, done.stderr
    found = jobs(done.stdout + done.stderr)
    # Six initialisations, three shots.
    assert (
        found["train"] == found["meta_test"] == found["account"] == 6
        and found["meta_test_at"] == 6 * 3
    )
    # The same data: the clients of 5-way tasks, and the one holder of all images.
    assert found["prepare"] == 1 and found["partition"] == 2 and found["figure"] == 1
    both = [f"results/figures/dp-maml/figure13{letter}.png" for letter in "ab"]
    done = snakemake(*both, "--dry-run", "--quiet", "rules")
    assert done.returncode == 0, done.stderr
    found = jobs(done.stdout + done.stderr)
    # Random and both pre-trained ones are shared; MAML and DP-MAML are meta-trained at
    # 1 and at 5 shots.
    assert (
        found["train"] == 3 + 2 * 2
        and found["meta_test_at"] == 7 * 3
        and found["figure"] == 2
    )


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (
            "run={noise: {multiplyer: 1}}",
            "unknown key run.noise.multiplyer: the nearest known key is",
        ),
        (
            "run={noise: {multiplier: 0}}",
            "run.noise.multiplier is 0",
        ),
        ("seeds=[]", "seeds is []"),
        (
            "machine={kernels: offf}",
            'machine.kernels is "offf"',
        ),
    ],
)
def test_a_bad_configuration_is_one_line(
    snakemake: Call, given: str, line: str
) -> None:
    done = snakemake("--dry-run", "--config", given)
    assert done.returncode == 1
    # What Snakemake says of its files stands apart; there is no stack and no second
    # line of ours.
    said = [
        text
        for text in done.stderr.splitlines()
        if not text.startswith(("Using", "Config file"))
    ]
    assert len(said) == 1 and said[0].startswith(f"configuration: {line}")


def test_lint_is_clean(snakemake: Call) -> None:
    done = snakemake("--lint")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_format_is_snakefmts() -> None:
    command = [
        sys.executable,
        "-m",
        "snakefmt",
        "--check",
        str(ROOT / "Snakefile"),
        str(ROOT / "workflow"),
    ]
    pytest.importorskip(
        "snakefmt", reason="snakefmt is a development tool: uv sync installs it"
    )
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_rule_says_what_it_does_and_keeps_a_log() -> None:
    for path in (ROOT / "workflow" / "rules").glob("*.smk"):
        for rule in re.split(r"^rule ", path.read_text(encoding="utf-8"), flags=re.M)[
            1:
        ]:
            assert re.match(r'\w+:\n    """', rule), rule
            for part in ("log:", "conda:", "threads:", "mem_mb=", "runtime=", "gpu="):
                assert part in rule, (path.name, rule.split(":")[0], part)


def test_every_table_and_figure_is_in_the_report() -> None:
    found = 0
    for path in (ROOT / "workflow" / "rules").glob("*.smk"):
        text = path.read_text(encoding="utf-8")
        for rule in re.findall(r"^    output:\n((?:        .*\n)+)", text, flags=re.M):
            for output in re.finditer(
                r'f"\{REPORT\}/(?:tables/[^"]*\.csv|figures/[^"]*\.png)",?\s*([^)]*)\)?',
                rule,
            ):
                found += 1
                assert rule[: output.start()].rstrip().endswith("report("), (
                    path.name,
                    output[0],
                )
                assert all(
                    f"{part}=" in output[1]
                    for part in ("caption", "category", "labels")
                ), output[0]
    assert found >= 6
