"""Run a library at its tutorials' settings in a separate process, and write its rows.

The script uses the library of this Python where it is installed here, as with
--use-conda. Otherwise it installs into a folder those packages of the library's
environment that this Python lacks, or has in another version. The process searches that
folder before this Python's own packages.
"""

import importlib.metadata
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import yaml

from dpfedbench.errors import BenchError
from dpfedbench.files import atomic_path, write_text
from dpfedbench.plugins import package_folder
from workflow_jobs.rule_job import rule_job


def read_pins(environment: Path) -> list[str]:
    """Return the pip section of an environment's file."""
    text = environment.read_text(encoding="utf-8")
    for section in yaml.safe_load(text)["dependencies"]:
        if isinstance(section, dict):
            return list(section["pip"])
    raise ValueError(f"{environment} has no pip section")


def select_missing(pins: Sequence[str]) -> list[str]:
    """Return the pins that this Python does not satisfy, unchanged."""
    missing = []
    for pin in pins:
        name, _, version = pin.partition("==")
        try:
            installed = importlib.metadata.version(re.split("[<>=]", name)[0])
        except importlib.metadata.PackageNotFoundError:
            installed = ""
        if not installed or (version and installed.partition("+")[0] != version):
            missing.append(pin)
    return missing


def install_packages(package: str, pins: Sequence[str], folder: Path) -> list[Path]:
    """Install the packages of a library that this Python lacks.

    Args:
        package: the library, as the package index names it.
        pins: all packages of its environment.
        folder: where they are installed. What an earlier call installed there is used
            again if the missing pins are the same.

    Returns:
        The folders to search before this Python's own packages; none where the library
        is installed here.

    Raises:
        BenchError: the packages cannot be installed.
    """
    if not select_missing([pin for pin in pins if pin.startswith(f"{package}==")]):
        return []
    missing = select_missing(pins)
    record = folder / "pins.txt"
    if record.is_file() and record.read_text(encoding="utf-8").splitlines() == missing:
        return [folder]
    shutil.rmtree(folder, ignore_errors=True)
    # Without --no-deps pip and uv would also install dependencies that this Python
    # has, such as torch.
    options = ["install", "-q", "--no-deps", "--target", str(folder), *missing]
    uv = shutil.which("uv")
    if uv:
        command = [uv, "pip", *options, "--no-config", "--python", sys.executable]
    else:
        command = [sys.executable, "-m", "pip", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        message = " ".join((done.stderr or done.stdout).split())
        raise BenchError(
            f"{package} is not installed, and its packages cannot be had"
            f" ({message[:300] or done.returncode}): let this machine reach a package"
            " index (UV_DEFAULT_INDEX or PIP_INDEX_URL name one) and call again, or"
            " leave the library out, e.g. --config libraries=opacus; the other"
            " libraries' rows are made all the same"
        )
    write_text(record, "\n".join(missing) + "\n")
    return [folder]


def write_rows(
    source: Path, environment: Path, *, rows: Path, packages: Path, path: Path
) -> None:
    """Write the rows of a library.

    Args:
        source: the library's file in `libraries/`.
        environment: the file of its environment, with its pins.
        rows: the script `rows.py`, which the process runs.
        packages: the folder for packages that this Python lacks.
        path: the JSON file of the rows.

    Raises:
        BenchError: the library's packages cannot be installed.
    """
    package = runpy.run_path(str(source))["PACKAGE"]
    folders = install_packages(package, read_pins(environment), packages)
    with tempfile.TemporaryDirectory() as link_folder, atomic_path(path) as temporary:
        # The process imports these packages through links, so that other packages that
        # lie beside them are not found.
        for name in ("dploss", "dpsum", "dpwatch"):
            Path(link_folder, name).symlink_to(package_folder(name))
        searched = [*folders, Path(link_folder)]
        python_path = os.pathsep.join(str(folder.resolve()) for folder in searched)
        done = subprocess.run(
            [sys.executable, "-P", str(rows), str(source), str(temporary)],
            env=os.environ | {"PYTHONPATH": python_path},
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stderr)


if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(snakemake, f"library {snakemake.params.library}"):
        scripts = Path(snakemake.scriptdir)
        path = Path(snakemake.output[0])
        write_rows(
            scripts / "libraries" / f"{snakemake.params.library}.py",
            scripts.parent / "envs" / snakemake.params.environment,
            rows=scripts / "rows.py",
            packages=path.parent / "packages" / snakemake.params.library,
            path=path,
        )
