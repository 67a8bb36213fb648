"""The workflow on Slurm, for real: a one-node cluster is put up on this machine, used,
and taken down.

    uv run python tests/cluster/slurm.py RESULTS

RESULTS is the results folder of a finished local run of the smoke preset. The script

1. asks for what the cluster does not have and checks that each answer is one line;
2. sends a part of the smoke preset, with all kinds of data, models and jobs, through
   Slurm with `--profile profiles/slurm`, and compares the results with RESULTS, bit for
   bit (tests/cluster/compare.py);
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
from typing import Any

import psutil
from compare import content, differences
from one_node import install, one_node, why_not

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.shipped import without_others  # noqa: E402

SMOKE = ["--configfile", str(ROOT / "config/presets/smoke.yaml")]
# A cluster of one answers at once; profiles/slurm is made for ones that should not be
# asked every second (`call_snakemake.py`).
SLURM = ["--profile", str(ROOT / "profiles/slurm")]
SLURM += ["--slurm-init-seconds-before-status-checks", "1"]
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
# One of the preset's runs, with more rounds: long enough to be cancelled in, at a
# checkpoint every half second.
LONGER = """
machine: {checkpoint_seconds: 0.5}
experiments:
  adap-dp-fl:
    run: {participation: {rounds: 300}}
    tables: {accuracy-b: {series: {fedavg: null}}}
    figures: {figure4d: null, figure6b: null}
"""


def command(directory: Path, *arguments: str) -> list[str]:
    """Return a call of Snakemake on this repository with its results elsewhere."""
    start = [sys.executable, str(Path(__file__).with_name("call_snakemake.py"))]
    start += ["--snakefile", str(ROOT / "Snakefile")]
    return [*start, "--directory", str(directory), *arguments]


def call(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Call Snakemake to its end."""
    words = command(directory, *arguments)
    return subprocess.run(words, capture_output=True, text=True, check=False)


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
    partition = ("--default-resources", "slurm_partition=nowhere")
    refused(folder, "there is no partition 'nowhere', only main", *partition)
    gpu = ("--set-resources", "prepare:gpu=1")
    refused(folder, "no node of partition 'main' has a GPU", *gpu)


def check_smoke(folder: Path, expected: Path) -> None:
    """Check that results through Slurm equal those of the local run."""
    paths = [path for pattern in PART for path in expected.glob(pattern)]
    targets = [f"results/{path.relative_to(expected)}" for path in paths]
    assert len(targets) >= len(PART)
    for name in TAKEN:
        shutil.copytree(expected / "data" / name, folder / "results" / "data" / name)
    messages = ("--config", "terminal=snakemake")
    output = must(folder, *targets, *SMOKE, *SLURM, *messages)
    jobs = output.count("has been submitted with SLURM jobid")
    assert jobs
    faults, compared = differences(folder / "results", expected, part=True)
    assert not faults, "\n".join(faults)
    assert all((folder / target).exists() for target in targets)
    print(f"   {jobs} jobs sent, {compared} files compared, all equal", flush=True)


def check_cancelled(folder: Path, expected: Path) -> None:
    """Check that a cancelled training goes on in its retry, to the bits of an
    undisturbed one; then by two tasks.
    """
    for name in ("data", "clients"):
        source = expected / name / "digits"
        shutil.copytree(source, folder / "results" / name / "digits")
    shutil.copytree(folder / "results", folder / "undisturbed" / "results")
    longer = folder / "longer.yaml"
    longer.write_text(without_others(LONGER), encoding="utf-8")
    arguments = [*SMOKE, str(longer)]
    plan = must(folder, "--dry-run", *arguments)
    # A plan names them in no fixed order.
    run = min(re.findall(r"output: (\S+model\.safetensors),", plan))
    must(folder / "undisturbed", run, "--cores", "all", *arguments)
    disturbed(folder, run, arguments, cancel)
    shutil.rmtree((folder / run).parent)
    two_tasks = [*arguments, "--config", "machine={processes: 2}"]
    trained = disturbed(folder, run, two_tasks, kill_task)
    assert trained["processes"] == 2
    # Logs of jobs that failed are kept.
    logs = (folder / ".snakemake" / "slurm_logs").rglob("*.log")
    texts = [log.read_text(errors="replace") for log in logs]
    assert any("one of the 2 processes was killed or lost" in text for text in texts)


def disturbed(
    folder: Path, run: str, arguments: list[str], disturb: Callable[[], None]
) -> dict[str, Any]:
    """Train a run on the cluster, disturb it half-way, and compare its retry.

    Returns the content of training.json.
    """
    model = folder / run
    log = folder / "snakemake.log"
    with open(log, "wb") as out:
        words = command(folder, run, *arguments, *SLURM)
        process = subprocess.Popen(words, stdout=out, stderr=out)
        try:
            releases = half_way(process, model.parent)
            disturb()
            assert process.wait(timeout=1200) == 0, log.read_text()[-6000:]
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    training: dict[str, Any] = json.loads(model.with_name("training.json").read_text())
    assert training["resumed"] == 1, "the retry started from round 0"
    undisturbed = folder / "undisturbed" / run
    for name in ("model.safetensors", "ledger.jsonl", "history.csv", "training.json"):
        expected = content(undisturbed.with_name(name))
        assert content(model.with_name(name)) == expected, f"{name} differs"
    event = f"{disturb.__name__} after {releases} releases"
    print(f"   {event}; the retry went on to the same bits", flush=True)
    return training


def cancel() -> None:
    """Cancel every job."""
    jobs = subprocess.check_output(["squeue", "-h", "-o", "%i"], text=True)
    subprocess.run(["scancel", *jobs.split()], check=True)


def kill_task() -> None:
    """Kill the second process of the training."""
    for process in psutil.process_iter(["cmdline", "environ", "name"]):
        words = process.info["cmdline"] or ()
        is_member = process.info["name"].startswith("python")
        is_member = is_member and "workflow_jobs.member" in words
        if is_member and process.info["environ"].get("SLURM_PROCID") == "1":
            process.kill()
            return
    raise AssertionError("there is no second process")


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


def timed(label: str, check: Callable[..., None], *arguments: Any) -> None:
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
        # The gate's tests run beside it: the calls do not stand back for them.
        (folder / "nice.yaml").write_text("nice: 0\n", encoding="utf-8")
        SMOKE.append(str(folder / "nice.yaml"))
        with one_node(folder / "cluster"):
            version = subprocess.check_output(["sinfo", "--version"], text=True)
            print(version.strip())
            refusals = "what the cluster does not have is refused"
            timed(refusals, check_refusals, folder / "refused")
            timed("a part of the smoke preset", check_smoke, folder / "smoke", expected)
            cancelled = "a cancelled training, and one of two tasks"
            timed(cancelled, check_cancelled, folder / "cancelled", expected)
            timed("the generic profile", check_generic, folder / "generic", expected)
        # Slurm's programs are there, but the cluster is down.
        timed("no cluster", refused, folder / "refused", "Slurm does not answer")


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1], "smoke").is_dir():
        sys.exit("usage: python tests/cluster/slurm.py RESULTS, of the smoke preset")
    # Being terminated ends the `with` blocks too, and with them the cluster.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    os.environ.pop("SNAKEMAKE_PROFILE", None)
    main(Path(sys.argv[1]).resolve())
