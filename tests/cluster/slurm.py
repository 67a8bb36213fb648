"""The workflow on Slurm, for real: a one-node cluster is put up on this machine, used,
and taken down.

    uv run python tests/cluster/slurm.py RESULTS

RESULTS is the results folder of a finished local run of the smoke preset. The script

1. asks for what the cluster does not have and checks that each answer is one line;
2. sends a part of the smoke preset, with all kinds of data, models and jobs, through
   Slurm with `--profile profiles/slurm`, and compares with RESULTS every file but logs,
   costs and the columns of the clock (tests/cluster/compare.py): models, ledgers,
   accounts, histories, metrics, data, clients, audits, tables, figures and their
   numbers, bit for bit;
3. trains a longer run, cancels its job half-way (`scancel`), and checks that the retry
   goes on from the checkpoint and ends with the bits of a run that nobody disturbed;
4. trains that run as one job of two tasks, which `srun` starts, to the same bits; one
   of them is killed first, which ends the job;
5. sends one job through `--profile profiles/cluster`.

Needs root on Debian, and says so and ends with 0 elsewhere.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from compare import content, differences
from one_node import install, one_node, why_not

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.shipped import without_others  # noqa: E402

SMOKE = ["--configfile", str(ROOT / "config/presets/smoke.yaml")]
# A cluster of one answers at once; profiles/slurm is made for ones that should not be
# asked every second.
SLURM = [
    "--profile",
    str(ROOT / "profiles/slurm"),
    "--slurm-init-seconds-before-status-checks",
    "2",
]
DIGITS = "results/data/digits/images.npy"
# Tasks of images, records, texts; a search, and the cells that it finds; a table, a
# figure and an audit. A run more of a kind is sent no other way, and each job waits
# some seconds for its cluster.
PART = (
    "smoke/tables/secure-aggregation/bits.md",
    "smoke/figures/adap-dp-fl/figure4d.png",
    "runs/cells/**/metrics.json",
    "runs/local-reptile/**/metrics.json",
    "runs/local-reptile/**/audit.json",
)
# Of the data sets one is drawn by a job; the others are those of RESULTS.
TAKEN = ("digits", "docstrings")


def command(directory: Path, *arguments: str) -> list[str]:
    """Return a call of Snakemake on this repository with its results elsewhere."""
    start = [
        sys.executable,
        "-m",
        "snakemake",
        "--snakefile",
        str(ROOT / "Snakefile"),
        "--directory",
        str(directory),
    ]
    return [*start, *arguments]


def call(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Call Snakemake to its end."""
    return subprocess.run(
        command(directory, *arguments), capture_output=True, text=True, check=False
    )


def must(directory: Path, *arguments: str) -> str:
    """Call Snakemake to its end, and fail with its output where it fails."""
    done = call(directory, *arguments)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    return done.stdout + done.stderr


def refused(directory: Path, expected: str, *arguments: str) -> None:
    """Check that a call is refused in one line before anything is submitted."""
    done = call(directory, DIGITS, *SMOKE, *SLURM, *arguments)
    lines = [line for line in done.stderr.splitlines() if line.startswith("cluster: ")]
    assert done.returncode != 0, expected
    assert len(lines) == 1 and expected in lines[0], (expected, done.stderr[-3000:])
    print(f"   refused: {lines[0]}", flush=True)


def check_refusals(folder: Path) -> None:
    """Check that a partition and a GPU that are not there are refused."""
    refused(
        folder,
        "there is no partition 'nowhere', only main",
        "--default-resources",
        "slurm_partition=nowhere",
    )
    refused(
        folder,
        "no node of partition 'main' has a GPU",
        "--set-resources",
        "prepare:gpu=1",
    )


def check_absent(folder: Path) -> None:
    """Check the refusal where Slurm's programs are there, but the cluster is down."""
    refused(folder, "Slurm does not answer")


def check_smoke(folder: Path, expected: Path) -> None:
    """Check that results through Slurm equal those of the local run."""
    targets = [
        f"results/{path.relative_to(expected)}"
        for pattern in PART
        for path in expected.glob(pattern)
    ]
    for name in TAKEN:
        shutil.copytree(
            expected / "data" / name,
            folder / "results" / "data" / name,
            copy_function=shutil.copy2,
        )
    output = must(folder, *targets, *SMOKE, *SLURM)
    jobs = output.count("has been submitted with SLURM jobid")
    faults, compared = differences(folder / "results", expected, part=True)
    faults += [
        f"{target} is missing" for target in targets if not (folder / target).exists()
    ]
    assert len(targets) >= len(PART)
    assert not faults, "\n".join(faults)
    print(f"   {jobs} jobs sent, {compared} files compared, all equal", flush=True)


def longer_run(folder: Path, expected: Path) -> tuple[str, list[str]]:
    """Return the model of a run that is long enough to be disturbed, and its arguments.

    The run is also made undisturbed, in the folder `undisturbed`.
    """
    for name in ("data", "clients"):
        shutil.copytree(
            expected / name / "digits",
            folder / "results" / name / "digits",
            copy_function=shutil.copy2,
        )
    shutil.copytree(
        folder / "results",
        folder / "undisturbed" / "results",
        copy_function=shutil.copy2,
    )
    # One of the preset's runs, with more rounds: long enough to be cancelled in, at a
    # checkpoint a second.
    longer = folder / "longer.yaml"
    text = (
        "machine: {checkpoint_seconds: 0.5}\n"
        "experiments:\n"
        "  adap-dp-fl:\n"
        "    run: {participation: {rounds: 300}}\n"
        "    tables: {accuracy-b: {series: {fedavg: null}}}\n"
        "    figures: {figure4d: null, figure6b: null}\n"
    )
    longer.write_text(without_others(text), encoding="utf-8")
    arguments = [*SMOKE, str(longer)]
    plan = must(folder, "--dry-run", *arguments)
    # A plan names them in no fixed order.
    run = min(re.findall(r"output: (\S+model\.safetensors),", plan))
    must(folder / "undisturbed", run, "--cores", "all", *arguments)
    return run, arguments


def check_cancelled(folder: Path, expected: Path) -> None:
    """Check that a cancelled training goes on in its retry, to the bits of an
    undisturbed one; then by two tasks.
    """
    run, arguments = longer_run(folder, expected)
    disturbed(folder, run, arguments, cancel)
    shutil.rmtree((folder / run).parent)
    disturbed(
        folder, run, [*arguments, "--config", "machine={processes: 2}"], kill_task
    )
    # Logs of jobs that failed are kept.
    logs = (folder / ".snakemake" / "slurm_logs").rglob("*.log")
    assert any(
        "one of the 2 processes was killed or lost" in log.read_text(errors="replace")
        for log in logs
    )
    trained = json.loads(
        (folder / run).with_name("training.json").read_text(encoding="utf-8")
    )
    assert trained["processes"] == 2


def disturbed(
    folder: Path, run: str, arguments: list[str], disturb: Callable[[], None]
) -> None:
    """Train a run on the cluster, disturb it half-way, and compare its retry."""
    with open(folder / "snakemake.log", "wb") as log:
        process = subprocess.Popen(
            command(folder, run, *arguments, *SLURM), stdout=log, stderr=log
        )
        try:
            releases = half_way(process, (folder / run).parent)
            disturb()
            assert process.wait(timeout=1200) == 0, (
                folder / "snakemake.log"
            ).read_text()[-6000:]
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    resumed = json.loads(
        (folder / run).with_name("training.json").read_text(encoding="utf-8")
    )["resumed"]
    assert resumed == 1, f"the retry started from round 0: resumed {resumed}"
    for name in ("model.safetensors", "ledger.jsonl", "history.csv", "training.json"):
        retry = folder / Path(run).with_name(name)
        undisturbed = folder / "undisturbed" / Path(run).with_name(name)
        assert content(retry) == content(undisturbed), (
            f"{name} differs from the undisturbed run's"
        )
    print(
        f"   {disturb.__name__} after {releases} releases; the retry went on to the"
        " same bits",
        flush=True,
    )


def cancel() -> None:
    """Cancel every job."""
    jobs = subprocess.run(
        ["squeue", "-h", "-o", "%i"], capture_output=True, text=True, check=True
    )
    subprocess.run(["scancel", *jobs.stdout.split()], check=True)


def kill_task() -> None:
    """Kill the second process of the training."""
    members = []
    for process in psutil.process_iter(["cmdline"]):
        if "workflow_jobs.member" in (
            process.info["cmdline"] or ()
        ) and process.name().startswith("python"):
            members.append(process)
    (second,) = (
        member for member in members if member.environ().get("SLURM_PROCID") == "1"
    )
    second.kill()


def half_way(process: subprocess.Popen[bytes], run: Path) -> int:
    """Wait for the third checkpoint and a quarter of the 600 releases; return their
    number.
    """
    deadline = time.monotonic() + 1200
    checkpoint_times = set()
    state = run / "checkpoint" / "state.pt"
    ledger = run / "checkpoint" / "ledger.jsonl"
    while time.monotonic() < deadline and process.poll() is None:
        if state.exists():
            checkpoint_times.add(state.stat().st_mtime_ns)
        releases = len(ledger.read_bytes().splitlines()) if ledger.exists() else 0
        if len(checkpoint_times) >= 3 and releases >= 150:
            return releases
        time.sleep(0.05)
    raise AssertionError("the training ended before it could be disturbed")


def check_generic(folder: Path, expected: Path) -> None:
    """Send one job through the generic profile."""
    must(folder, DIGITS, *SMOKE, "--profile", str(ROOT / "profiles/cluster"))
    reference = expected / DIGITS.removeprefix("results/")
    assert (folder / DIGITS).read_bytes() == reference.read_bytes()


def timed(label: str, check: Callable[..., None], *arguments: Path) -> None:
    """Run a check and print how long it took."""
    print(f"{label} ...", flush=True)
    started = time.monotonic()
    check(*arguments)
    print(f"   ok, {time.monotonic() - started:.0f} s", flush=True)


def main(expected: Path) -> None:
    """Make all checks, in order."""
    reason = why_not() or install()
    if reason:
        print(f"skipped: no Slurm was tried, since {reason}")
        return
    with tempfile.TemporaryDirectory(prefix="dpfedbench-slurm-") as name:
        folder = Path(name)
        with one_node(folder / "cluster"):
            print(
                "Slurm"
                f" {subprocess.run(['sinfo', '--version'], capture_output=True, text=True).stdout.split()[-1]}"
            )
            timed(
                "what the cluster does not have is refused",
                check_refusals,
                folder / "refused",
            )
            timed("a part of the smoke preset", check_smoke, folder / "smoke", expected)
            timed(
                "a cancelled training, and one of two tasks",
                check_cancelled,
                folder / "cancelled",
                expected,
            )
            timed("the generic profile", check_generic, folder / "generic", expected)
        timed("no cluster at all", check_absent, folder / "refused")


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1], "smoke").is_dir():
        sys.exit(
            "usage: python tests/cluster/slurm.py RESULTS, a results folder in which"
            " the smoke preset was run"
        )
    # Being terminated ends the `with` blocks too, and with them the cluster.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    os.environ.pop("SNAKEMAKE_PROFILE", None)
    main(Path(sys.argv[1]).resolve())
