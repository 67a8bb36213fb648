"""The whole workflow killed (-9) at random moments and called again: are all its results those of an undisturbed one?

    uv run python tests/cluster/kill_workflow.py RESULTS [SEED]

RESULTS is the results folder of a finished local run of the smoke preset. A part of that preset (six runs of two
papers, with data, table and figure) is made anew in a temporary folder: the workflow's process group is killed at five
random moments, each time the same command is called again, nothing else is done in between. Then Snakemake alone is
killed, so that its jobs outlive it, and the same command called at once. In the end every file but logs, costs and
the columns of the clock (tests/cluster/compare.py) must have the bits it has in RESULTS, and no temporary file may be
left. The moments are drawn from SEED (0).
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from compare import differences

ROOT = Path(__file__).resolve().parents[2]
TARGETS = [f"results/smoke/{name}" for name in ("tables/adap-dp-fl/accuracy-b.md", "figures/dp-fedmeta/figure2b.csv")]
COMMAND = [sys.executable, "-m", "snakemake", *TARGETS, "--snakefile", str(ROOT / "Snakefile"), "--cores", "all"]
COMMAND += ["--configfile", str(ROOT / "config/presets/smoke.yaml")]
KILLS = 5
LIMIT = 1800  # seconds that any one call may take


def start(folder: Path, log: Path) -> subprocess.Popen[bytes]:
    """The workflow in a process group of its own."""
    with open(log, "wb") as out:
        return subprocess.Popen([*COMMAND, "--directory", str(folder)], stdout=out, stderr=out, start_new_session=True)


def wait_for(process: subprocess.Popen[bytes], log: Path, finished: int, seconds: float) -> bool:
    """Wait until so many jobs have finished and some seconds more; False if the workflow ended before."""
    deadline, end = time.monotonic() + LIMIT, None
    while process.poll() is None:
        assert time.monotonic() < deadline, f"no end in {LIMIT} s: {log.read_text()[-3000:]}"
        if end is None and log.read_text(encoding="utf-8", errors="replace").count("Finished jobid") >= finished:
            end = time.monotonic() + seconds
        if end is not None and time.monotonic() >= end:
            return True
        time.sleep(0.05)
    return False


def left_over(folder: Path) -> list[psutil.Process]:
    """Processes of a killed workflow that are still alive."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if process.pid != os.getpid() and any(str(folder) in word for word in process.info["cmdline"] or ()):
            found.append(process)
    return found


def main(wanted: Path, seed: int) -> None:
    """Kill, call again, compare."""
    moments, kills, started = random.Random(seed), 0, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dpfedbench-killed-") as name:
        folder, log = Path(name, "work"), Path(name, "snakemake.log")
        while kills < KILLS:
            # Jobs of this call, then seconds: so the moments fall into every stage, on fast and slow machines alike.
            finished, seconds = moments.randint(1, 5), moments.uniform(0, 4)
            process = start(folder, log)
            if not wait_for(process, log, finished, seconds):
                assert process.returncode == 0, log.read_text()[-5000:]
                raise AssertionError(f"finished after {kills} kills only: take another seed or more targets")
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
            print(f"kill {kills}: {finished} jobs and {seconds:.1f} s after the call", flush=True)
        process = start(folder, log)
        if wait_for(process, log, 1, 2.0):
            jobs = [job for job in left_over(folder) if job.pid != process.pid]
            process.kill()  # Snakemake alone: its jobs are told by nobody
            process.wait()
            print(f"Snakemake alone killed, {len(jobs)} processes outlive it", flush=True)
        process = start(folder, log)
        assert process.wait(timeout=LIMIT) == 0, log.read_text()[-5000:]
        assert not left_over(folder), "processes of a killed workflow are still alive"
        found, compared = differences(folder / "results", wanted, part=True)
        found += [f"{path} was left" for path in (folder / "results").rglob("*.part*")]
        assert not found, "\n".join(found)
        assert all((folder / target).exists() for target in TARGETS)
        again = subprocess.run([*COMMAND, "--directory", str(folder)], capture_output=True, text=True, check=True)
        assert "Nothing to be done" in again.stdout + again.stderr
    spent = time.monotonic() - started
    print(f"{kills + 1} kills, {compared} files compared, all equal to the undisturbed run's ({spent:.0f} s)")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or not Path(sys.argv[1], "smoke").is_dir():
        sys.exit("usage: python tests/cluster/kill_workflow.py RESULTS [SEED], results of the smoke preset")
    os.environ.pop("SNAKEMAKE_PROFILE", None)
    main(Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) == 3 else 0)
