"""The command that messages show: that of the caller, which can be called again."""

import shlex
from pathlib import Path

import pytest

from dpfedbench.experiments.targets import own_command

ROOT = Path("/somewhere/dpfedbench")


def test_own_command_is_the_command_of_the_caller(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    plain = own_command(
        through_uv=False, through_conda=False, files=[], values=[], root=ROOT
    )
    assert plain == "snakemake --cores all {target}"
    files = [ROOT / "config" / "presets" / "real.yaml", tmp_path / "my own.yaml"]
    values = ["seeds=[0]", "machine={threads: 4, gpu: 1}"]
    command = own_command(
        through_uv=True, through_conda=True, files=files, values=values, root=ROOT
    )
    assert shlex.split(command) == [
        "uv",
        "run",
        "snakemake",
        "--cores",
        "all",
        "--use-conda",
        "{target}",
        "--configfile",
        "config/presets/real.yaml",
        "my own.yaml",
        "--config",
        "seeds=[0]",
        "machine={threads: 4, gpu: 1}",
    ]


def test_own_command_of_an_installed_package_is_dpfedbench_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    root = Path("/site-packages/dpfedbench/workflow")
    files = [root / "config" / "presets" / "smoke.yaml", tmp_path / "own.yaml"]
    command = own_command(
        through_uv=False, through_conda=False, files=files, values=[], root=root
    )
    assert command == "dpfedbench run --preset smoke {target} --configfile own.yaml"
