"""Two calls of the workflow in one folder, as real processes."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.calls import ROOT

HOLD = """
import sys
from pathlib import Path
from workflow_jobs.folder_lock import wait_for_other_calls
wait_for_other_calls(Path(sys.argv[1]), sys.argv[2:])
wait_for_other_calls(Path(sys.argv[1]), sys.argv[2:])
print("works", flush=True)
sys.stdin.read()
"""


def start_holder(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLD, str(folder), *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.parametrize("ending", ["ends", "is killed"])
def test_second_call_waits_until_the_first_ends(tmp_path: Path, ending: str) -> None:
    folder = tmp_path / ".snakemake"
    with start_holder(folder) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "works\n"
        with start_holder(folder) as second:
            assert second.stderr is not None
            line = second.stderr.readline()
            assert line.startswith(f"process {first.pid} on ")
            assert line.endswith(f" works in {tmp_path}; waiting for it to end\n")
            assert second.poll() is None
            if ending == "is killed":
                first.kill()
            else:
                first.communicate("")
            assert second.communicate("")[0] == "works\n"


@pytest.mark.parametrize("option", ["-n", "--dry-run", "-pn", "--lint", "--dag"])
def test_call_that_only_reads_does_not_wait(tmp_path: Path, option: str) -> None:
    with start_holder(tmp_path / ".snakemake") as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "works\n"
        with start_holder(tmp_path / ".snakemake", option) as second:
            assert second.communicate("", timeout=60)[0] == "works\n"
        first.communicate("")


def test_folder_that_cannot_be_locked_is_used_without_a_lock(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with start_holder(tmp_path / "file") as call:
        output, errors = call.communicate("")
    assert (output, errors) == ("works\n", "")


def test_two_calls_in_one_new_folder_make_each_file_once(tmp_path: Path) -> None:
    """Each call had deleted what the other had made, under the job that read it."""
    preset = ROOT / "config" / "presets" / "smoke.yaml"
    command = [sys.executable, "-m", "snakemake", "--cores", "1"]
    command += ["--snakefile", str(ROOT / "Snakefile"), "--directory", str(tmp_path)]
    command += ["dp_maml", "--until", "configure", "--configfile", str(preset)]
    command += ["--config", "terminal=snakemake"]
    pipe = subprocess.PIPE
    calls = [
        subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True)
        for _ in range(2)
    ]
    outputs = [call.communicate(timeout=600)[0] for call in calls]
    assert [call.returncode for call in calls] == [0, 0], outputs
    made = [output.count("localrule configure:") for output in outputs]
    configurations = list(tmp_path.glob("results/runs/**/config.yaml"))
    assert configurations
    assert sum(made) == len(configurations)
    assert 0 in made
