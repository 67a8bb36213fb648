"""The workflow killed, starved of disk and called twice at once: are all results those
of an undisturbed one?

    uv run python tests/cluster/kill_workflow.py RESULTS [SEED]

RESULTS is the results folder of a finished local run of the smoke preset. A part of
that preset (runs of all papers, with data, tests, accounts, audits, tables and figures)
is made anew in a temporary folder. It is disturbed by what `EVENTS` says, and each time
the same command is called again, for one more target; nothing else is done in between:

- the whole process group, or Snakemake alone, so that its jobs outlive it, or a single
  training, meta-test or audit, or the warm process, of which the jobs at work are
  forks, are killed (-9), at a random moment;
- the disk is filled at a random moment (a small tmpfs, which needs root; left out
  elsewhere, and said);
- two calls of one command run at once.

In the end every file but logs, costs and the columns of the clock
(tests/cluster/compare.py) must have the bits it has in RESULTS, and no temporary file
and no process may be left. The moments are drawn from SEED (0).
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

from workflow_jobs.jobs import WORKFLOW
from workflow_jobs.warm import START

ROOT = Path(__file__).resolve().parents[2]
# What happens, and what is asked for from then on, of the files of RESULTS: runs that
# no earlier event has. Audits are those of the runs that there are by then.
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
COMMAND = [
    sys.executable,
    "-m",
    "snakemake",
    "--snakefile",
    str(ROOT / "Snakefile"),
    "--cores",
    "all",
]
COMMAND += [
    "--configfile",
    str(ROOT / "config/presets/smoke.yaml"),
    "--config",
    "machine={checkpoint_seconds: 0.01}",
]
DISK = 256 * 2**20  # bytes of the tmpfs; the results take a fifth
LIMIT = 600  # seconds that any one call may take
TRIES = 5  # calls for one event, each disturbed in half the time of the one before


class Folder:
    """Where the workflow is called, and what is asked of it."""

    def __init__(self, path: Path) -> None:
        self.path, self.log, self.targets = (
            path,
            path.parent / "snakemake.log",
            list[str](),
        )

    def start(self, log: Path | None = None) -> subprocess.Popen[bytes]:
        """The workflow in a process group of its own."""
        command = [*COMMAND, "--directory", str(self.path), "--", *self.targets]
        with open(log or self.log, "wb") as out:
            return subprocess.Popen(
                command, stdout=out, stderr=out, start_new_session=True
            )

    def end(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for the end of a call; its exit code."""
        try:
            return process.wait(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise AssertionError(f"no end in {LIMIT} s: {self.said()}") from None

    def said(self) -> str:
        """The end of the log."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-5000:]

    def start_until(
        self,
        ready: Callable[[subprocess.Popen[bytes]], object],
        what: str,
        seconds: float,
    ) -> tuple[subprocess.Popen[bytes], str]:
        """A call in which something is so, some seconds later, and when that was.

        On a fast machine the call may have ended by then. What it made is then deleted,
        and it is called again for half as many seconds.
        """
        for _ in range(TRIES):
            before = {*self.path.rglob("*")}
            process, deadline = self.start(), time.monotonic() + LIMIT
            while process.poll() is None and not ready(process):
                assert time.monotonic() < deadline, (
                    f"no {what} in {LIMIT} s: {self.said()}"
                )
                time.sleep(0.02)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=seconds)
            if process.poll() is None:
                return process, f"{seconds:.1f} s after {what}"
            assert process.returncode == 0, self.said()
            for path in {*self.path.rglob("*")} - before:
                if path.is_file() and ".snakemake" not in path.parts:
                    path.unlink()
            seconds /= 2
        raise AssertionError(
            f"{TRIES} calls ended before or within {seconds:.2f} s of {what}:"
            f" {self.said()}"
        )

    def finished(self) -> int:
        """How many jobs of this call have finished."""
        return self.log.read_text(encoding="utf-8", errors="replace").count(
            "Finished jobid"
        )

    def warm(self, process: subprocess.Popen[bytes]) -> list[psutil.Process]:
        """The warm process of a call, then its forks: the environment that each began
        with names the call.
        """
        found, marked = [], f" {process.pid} "
        for other in psutil.process_iter(["cmdline", "environ"]):
            if marked in (other.info["environ"] or {}).get(WORKFLOW, "") and START in (
                other.info["cmdline"] or ()
            ):
                found.append(other)
        return sorted(found, key=lambda other: other.create_time())

    def processes(self, script: str = "") -> list[psutil.Process]:
        """Processes that work in the folder; those of one script."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or ()
            if process.pid != os.getpid() and any(
                str(self.path) in word and word.endswith(script) for word in words
            ):
                found.append(process)
        return found


def disturb(event: str, folder: Folder, moments: random.Random) -> str:
    """Call the workflow, and let one thing happen to it; says what it was."""
    if event == "two calls":
        logs = [folder.log, folder.log.with_suffix(".second")]
        calls = [folder.start(log) for log in logs]
        codes = [folder.end(call) for call in calls]
        return f"two calls at once, which ended with {codes[0]} and {codes[1]}"
    # Seconds after a number of jobs, or after one has begun: so the moments fall into
    # every stage.
    if event in ("group", "Snakemake", "full disk"):
        jobs = moments.randint(1, 3)
        process, said = folder.start_until(
            lambda _: folder.finished() >= jobs, f"{jobs} jobs", moments.uniform(0, 2)
        )
    elif event == "warm":
        fork, seconds = "the first fork of the warm process", moments.uniform(0, 2)
        process, said = folder.start_until(
            lambda call: len(folder.warm(call)) > 1, fork, seconds
        )
    else:
        script, begun, seconds = (
            f".{event}.py",
            f"the start of a job of {event}",
            moments.uniform(0, 1),
        )
        process, said = folder.start_until(
            lambda _: folder.processes(script), begun, seconds
        )
    if event == "full disk":
        ballast = folder.path / "ballast"
        with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as handle:
            while True:
                handle.write(bytes(2**20))
        code = folder.end(process)
        ballast.unlink()
        assert code, "the workflow ended well on a full disk"
        return f"the disk filled: {said}"
    if event == "group":
        os.killpg(process.pid, signal.SIGKILL)
    elif event == "Snakemake":
        process.kill()  # its jobs are told by nobody
        said += f"; {len(folder.processes())} processes outlive it"
    else:
        for job in (
            folder.warm(process) if event == "warm" else folder.processes(script)
        )[:1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                job.kill()
    code = folder.end(process)
    if event == "warm":
        assert not code, f"jobs did not do their work themselves: {folder.said()}"
    elif event in ("group", "Snakemake"):
        time.sleep(2)
        assert not folder.processes() and not folder.warm(process), (
            "processes outlived their workflow by two seconds"
        )
    return f"{event} killed: {said}"


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[bool]:
    """A folder, on a small disk of its own where that can be had; whether it is."""
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


def main(wanted: Path, seed: int) -> None:
    """Disturb, call again, compare."""
    moments, started = random.Random(seed), time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="dpfedbench-killed-") as name,
        small_disk(Path(name, "work")) as small,
    ):
        folder = Folder(Path(name, "work"))
        for number, (event, target) in enumerate(EVENTS, start=1):
            found = [
                Path("results", path.relative_to(wanted))
                for path in sorted(wanted.glob(target))
            ]
            trained = [
                path
                for path in found
                if event != "audit" or (folder.path / path.parent).exists()
            ]
            assert trained, target
            folder.targets += map(str, trained)
            if event == "full disk" and not small:
                print(
                    f"{number}: the disk is not filled: that takes a tmpfs, and so root"
                    " on Linux",
                    flush=True,
                )
                continue
            print(
                f"{number}: {disturb(event, folder, moments)}"
                f" ({time.monotonic() - started:.0f} s)",
                flush=True,
            )
        assert folder.end(folder.start()) == 0, folder.said()
        assert not folder.processes(), "processes of a killed workflow are still alive"
        results = folder.path / "results"
        found, compared = differences(results, wanted, part=True)
        found += [f"{path} was left" for path in results.rglob("*.part*")]
        assert not found, "\n".join(found)
        assert all((folder.path / target).exists() for target in folder.targets)
        assert folder.end(folder.start()) == 0 and "Nothing to be done" in folder.said()
    spent = time.monotonic() - started
    print(
        f"{len(EVENTS)} events, {compared} files compared, all equal to the undisturbed"
        f" run's ({spent:.0f} s)"
    )


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or not Path(sys.argv[1], "smoke").is_dir():
        sys.exit(
            "usage: python tests/cluster/kill_workflow.py RESULTS [SEED], results of"
            " the smoke preset"
        )
    os.environ.pop("SNAKEMAKE_PROFILE", None)
    main(Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) == 3 else 0)
