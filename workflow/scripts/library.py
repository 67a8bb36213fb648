"""Run a library at its tutorials' settings and write down its rows, in a process of its
own.

The library is this Python's where it is installed here, as under --use-conda. Else the
packages of its environment that this Python lacks, or has in another version, are put
into a folder that lies before this Python's own.
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

import dpsum
from dpfedbench.errors import BenchError
from dpfedbench.files import atomic_path, write_text
from workflow_jobs.manifests import rule_job


def pins(environment: Path) -> list[str]:
    """The pip section of an environment's file."""
    dependencies = yaml.safe_load(environment.read_text(encoding="utf-8"))[
        "dependencies"
    ]
    return list(
        next(section["pip"] for section in dependencies if isinstance(section, dict))
    )


def lacking(wanted: Sequence[str]) -> list[str]:
    """Those of some pins that this Python has not, as they are."""
    missing = []
    for pin in wanted:
        name, _, version = pin.partition("==")
        try:
            here = importlib.metadata.version(re.split("[<>=]", name)[0])
        except importlib.metadata.PackageNotFoundError:
            here = ""
        if not here or (version and here.partition("+")[0] != version):
            missing.append(pin)
    return missing


def layer(package: str, wanted: Sequence[str], folder: Path) -> list[Path]:
    """The folders to search for a library before this Python's own: none where the
    library is installed here.

    Raises:
        BenchError: its packages cannot be had.
    """
    if not lacking([pin for pin in wanted if pin.startswith(f"{package}==")]):
        return []
    missing = lacking(wanted)
    told = folder / "pins.txt"
    if told.is_file() and told.read_text(encoding="utf-8").splitlines() == missing:
        return [folder]
    shutil.rmtree(folder, ignore_errors=True)
    # Without --no-deps pip and uv would bring what this Python has already, torch for
    # one.
    how = ["install", "-q", "--no-deps", "--target", str(folder), *missing]
    if uv := shutil.which("uv"):
        command = [uv, "pip", *how, "--no-config", "--python", sys.executable]
    else:
        command = [sys.executable, "-m", "pip", *how]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        said = " ".join((done.stderr or done.stdout).split())
        raise BenchError(
            f"{package} is not installed, and its packages cannot be had"
            f" ({said[:300] or done.returncode}): let this machine reach a package"
            " index (UV_DEFAULT_INDEX or PIP_INDEX_URL name one) and call again, or"
            " leave the library out, e.g. --config libraries=opacus; the other"
            " libraries' rows are made all the same"
        )
    write_text(told, "\n".join(missing) + "\n")
    return [folder]


def run(
    source: Path, environment: Path, *, rows: Path, packages: Path, told: Path
) -> None:
    """Write the rows of a library to `told`.

    Raises:
        BenchError: its packages cannot be had.
    """
    folders = layer(runpy.run_path(str(source))["PACKAGE"], pins(environment), packages)
    with tempfile.TemporaryDirectory() as own, atomic_path(told) as temporary:
        Path(own, "dpsum").symlink_to(
            Path(dpsum.__file__).parent
        )  # alone: beside it other packages may lie
        places = os.pathsep.join(
            str(place.resolve()) for place in (*folders, Path(own))
        )
        done = subprocess.run(
            [sys.executable, "-P", str(rows), str(source), str(temporary)],
            env=os.environ | {"PYTHONPATH": places},
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
        told = Path(snakemake.output[0])
        run(
            scripts / "libraries" / f"{snakemake.params.library}.py",
            scripts.parent / "envs" / snakemake.params.environment,
            rows=scripts / "rows.py",
            packages=told.parent / "packages" / snakemake.params.library,
            told=told,
        )
