"""Kill the workflow, fill its disk and call it twice at once: all results are those of
an undisturbed call.

    uv run python tests/cluster/kill_workflow.py RESULTS [SEED]

RESULTS is the results folder of a finished local run of the smoke preset. A part of
that preset is made anew in a temporary folder. Each of `EVENTS` disturbs it, and the
same command is called again, for one more target:

- the whole process group, or Snakemake alone, so that its jobs outlive it, or a single
  training, meta-test or audit, or the warm process, of which the jobs at work are
  forks, are killed (-9), at a random moment;
- the disk is filled at a random moment (a small tmpfs, which needs root);
- two calls of one command run at once.

In the end every compared file (tests/cluster/compare.py) must have the bits it has in
RESULTS, and no temporary file and no process may be left. The moments are drawn from
SEED (0).
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
from compare import differences

from workflow_jobs.hand_over import START, WORKFLOW

ROOT = Path(__file__).resolve().parents[2]
# Each event, and the targets that are called from then on, of the files of RESULTS: runs
# that no earlier event has. Audits are those of the runs that there are by then.
EVENTS = (
    ("group", "smoke/tables/adap-dp-fl/accuracy-b.md"),
    ("train", "smoke/figures/dp-fedmeta/figure2b.csv"),
    ("Snakemake", "smoke/tables/dp-fnas/table1.md"),
    ("meta_test", "smoke/tables/dp-maml/table3.md"),
    ("warm", "smoke/tables/secure-aggregation/bits.md"),
    ("full disk", "runs/*reptile/docstrings/**/metrics.json"),
    ("audit", "runs/*dp-fl/**/audit.json"),
    ("two calls", "smoke/figures/dp-fedmeta/figure4b.csv"),
)
COMMAND = [sys.executable, "-m", "snakemake", "--cores", "all"]
COMMAND += ["--snakefile", str(ROOT / "Snakefile")]
COMMAND += ["--configfile", str(ROOT / "config/presets/smoke.yaml")]
COMMAND += ["--config", "machine={checkpoint_seconds: 0.01}", "terminal=snakemake"]
DISK = 256 * 2**20  # bytes of the tmpfs; the results take a fifth
LIMIT = 600  # seconds that any one call may take
TRIES = 5  # calls for one event, each disturbed in half the time of the one before


class Folder:
    """The folder in which the workflow is called, with its targets."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = path.parent / "snakemake.log"
        self.targets = list[str]()

    def start(self, log: Path | None = None) -> subprocess.Popen[bytes]:
        """Start the workflow in a process group of its own."""
        command = [*COMMAND, "--directory", str(self.path), "--", *self.targets]
        with open(log or self.log, "wb") as out:
            return subprocess.Popen(
                command, stdout=out, stderr=out, start_new_session=True
            )

    def end(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for the end of a call; return its exit code."""
        try:
            return process.wait(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise AssertionError(f"no end in {LIMIT} s: {self.end_of_log()}") from None

    def end_of_log(self) -> str:
        """Return the end of the log."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-5000:]

    def start_until(
        self,
        ready: Callable[[subprocess.Popen[bytes]], object],
        label: str,
        seconds: float,
    ) -> tuple[subprocess.Popen[bytes], str]:
        """Start a call and wait for a condition and some seconds; return it and when.

        On a fast machine the call may have ended by then. Its files are then deleted,
        and it is called again for half as many seconds.
        """
        for _ in range(TRIES):
            existing = {*self.path.rglob("*")}
            process = self.start()
            deadline = time.monotonic() + LIMIT
            while process.poll() is None and not ready(process):
                assert time.monotonic() < deadline, f"no {label} in {LIMIT} s"
                time.sleep(0.02)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=seconds)
            if process.poll() is None:
                return process, f"{seconds:.1f} s after {label}"
            assert process.returncode == 0, self.end_of_log()
            for path in {*self.path.rglob("*")} - existing:
                if path.is_file() and ".snakemake" not in path.parts:
                    path.unlink()
            seconds /= 2
        raise AssertionError(f"{TRIES} calls ended before {label} or soon after it")

    def finished(self) -> int:
        """Return the number of finished jobs of this call."""
        text = self.log.read_text(encoding="utf-8", errors="replace")
        return text.count("Finished jobid")

    def warm(self, process: subprocess.Popen[bytes]) -> list[psutil.Process]:
        """Return the warm process of a call, then its forks, whose environment names the
        call.
        """
        members = []
        for member in psutil.process_iter(["cmdline", "environ"]):
            environment = member.info["environ"] or {}
            is_marked = f" {process.pid} " in environment.get(WORKFLOW, "")
            if is_marked and START in (member.info["cmdline"] or ()):
                members.append(member)
        return sorted(members, key=lambda member: member.create_time())

    def processes(self, script: str = "") -> list[psutil.Process]:
        """Return the processes that work in the folder, or those of one script."""
        workers = []
        for process in psutil.process_iter(["cmdline"]):
            words = [
                word for word in process.info["cmdline"] or () if str(self.path) in word
            ]
            is_worker = any(word.endswith(script) for word in words)
            if is_worker and process.pid != os.getpid():
                workers.append(process)
        return workers


def disturb(event: str, folder: Folder, moments: random.Random) -> str:
    """Call the workflow and disturb it; return a description for the user."""
    if event == "two calls":
        logs = [folder.log, folder.log.with_suffix(".second")]
        calls = [folder.start(log) for log in logs]
        codes = [folder.end(call) for call in calls]
        return f"two calls at once, which ended with {codes[0]} and {codes[1]}"
    # Seconds after a number of jobs, or after one has begun: so the moments fall into
    # every stage.
    jobs = moments.randint(1, 3)
    seconds = moments.uniform(0, 1)
    script = f".{event}.py"
    if event in ("group", "Snakemake", "full disk"):
        ready = (lambda _: folder.finished() >= jobs), f"{jobs} jobs"
    elif event == "warm":
        ready = (lambda call: len(folder.warm(call)) > 1), "the first fork"
    else:
        ready = (lambda _: folder.processes(script)), f"a job of {event}"
    process, moment = folder.start_until(*ready, seconds)
    if event == "full disk":
        ballast = folder.path / "ballast"
        with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as handle:
            while True:
                handle.write(bytes(2**20))
        code = folder.end(process)
        ballast.unlink()
        assert code, "the workflow ended well on a full disk"
        return f"the disk filled: {moment}"
    if event == "group":
        os.killpg(process.pid, signal.SIGKILL)
    elif event == "Snakemake":
        process.kill()  # nobody tells its jobs
        moment += f"; {len(folder.processes())} processes outlive it"
    else:
        warm = folder.warm(process)
        victims = warm if event == "warm" else folder.processes(script)
        for victim in victims[:1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.kill()
    code = folder.end(process)
    if event == "warm":
        assert not code, f"jobs did not do their work themselves: {folder.end_of_log()}"
    elif event in ("group", "Snakemake"):
        time.sleep(2)
        survivors = folder.processes() + folder.warm(process)
        assert not survivors, "processes outlived their workflow by two seconds"
    return f"{event} killed: {moment}"


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[bool]:
    """Make a folder, on a small disk of its own where possible; yield whether it is."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(path)]
    small = (
        os.geteuid() == 0
        and sys.platform == "linux"
        and subprocess.run(mount, check=False).returncode == 0
    )
    try:
        yield small
    finally:
        if small:
            subprocess.run(["umount", "--lazy", str(path)], check=True)


def main(expected: Path, seed: int) -> None:
    """Disturb, call again, compare."""
    moments = random.Random(seed)
    started = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="dpfedbench-killed-") as name,
        small_disk(Path(name, "work")) as small,
    ):
        folder = Folder(Path(name, "work"))
        for number, (event, target) in enumerate(EVENTS, start=1):
            targets = [
                Path("results", path.relative_to(expected))
                for path in sorted(expected.glob(target))
            ]
            if event == "audit":
                targets = [
                    path for path in targets if (folder.path / path.parent).exists()
                ]
            assert targets, target
            folder.targets += map(str, targets)
            if event == "full disk" and not small:
                print(f"{number}: the disk is not filled: that takes a tmpfs")
                continue
            description = disturb(event, folder, moments)
            seconds = time.monotonic() - started
            print(f"{number}: {description} ({seconds:.0f} s)", flush=True)
        assert folder.end(folder.start()) == 0, folder.end_of_log()
        assert not folder.processes(), "processes of a killed workflow are still alive"
        results = folder.path / "results"
        faults, compared = differences(results, expected, part=True)
        faults += [f"{path} was left" for path in results.rglob("*.part*")]
        assert not faults, "\n".join(faults)
        assert all((folder.path / target).exists() for target in folder.targets)
        assert folder.end(folder.start()) == 0
        assert "Nothing to be done" in folder.end_of_log()
    seconds = time.monotonic() - started
    print(f"{len(EVENTS)} events, {compared} files compared, equal ({seconds:.0f} s)")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or not Path(sys.argv[1], "smoke").is_dir():
        sys.exit("usage: kill_workflow.py RESULTS [SEED], results of the smoke preset")
    os.environ.pop("SNAKEMAKE_PROFILE", None)
    main(Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) == 3 else 0)
