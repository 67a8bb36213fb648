"""Hash of the code that a cheap rule depends on.

Snakemake runs a job again when a parameter of its rule changes. The rules below have
the hash of the packages that they use as the parameter `code`. The packages are coarse
on purpose: after an edit a cheap rule may run again without need.

Training and data preparation have no such hash. Training depends on the version of its
method (`Run.made_by`), so that an edited comment never trains a run again.
"""

import functools
import hashlib
from collections.abc import Iterable
from pathlib import Path

from dpfedbench.config.plugin_sources import plugin_files
from dpfedbench.plugins import package_folder

SOURCES = Path(__file__).resolve().parents[2]

_ACCOUNT = (
    "dploss",
    "dpsum",
    "dpfedbench/training",
    "dpfedbench/method.py",
    "dpfedbench/run.py",
    "dpfedbench/breaches.py",
    "dpfedbench/papers",
    "dpfedbench/parts",
    "dpfedbench/config",
)
_TEST = (
    "dpfedbench/evaluation",
    "dpfedbench/run.py",
    "dpfedbench/config/initial_weights.py",
    "dpfedbench/config/model_settings.py",
    "dpfedbench/models",
    "dpfedbench/data",
    "dpfedbench/parts/optimizers",
    "dpfedbench/parts/schedules",
    "dpkernels",
    "dpsum/randomness.py",
)
_REPORT = (
    "dploss",
    "dpsum",
    "dpfedbench/results",
    "dpfedbench/audit/findings.py",
    "dpfedbench/training/accounts.py",
    "dpfedbench/training/history.py",
    "dpfedbench/evaluation",
    "dpfedbench/papers",
)

PACKAGES = {
    # Compares the ledger with the sums of the run's method and parts, computes ε.
    "account": (
        *_ACCOUNT,
        "dpfedbench/data",
        "dpfedbench/models/initial",
    ),
    # Trains a few rounds of the run with canaries in them.
    "audit": (*_ACCOUNT, *_TEST, "dpfedbench/audit"),
    # Adapts a trained model and measures it.
    "meta_test": _TEST,
    # Reads the cells from the weights of a searched network.
    "genotype": (*_REPORT, "dpfedbench/models"),
    # Read accounts and tests of finished runs, average them, print titles of methods.
    "table": _REPORT,
    "figure": _REPORT,
    "export_figure": _REPORT,
    "privacy": _REPORT,
    "frontier": _REPORT,
    "page": _REPORT,
    "libraries_table": _REPORT,
    "collect": _REPORT,
    "archive": ("dpfedbench/results",),
    # Watches and audits another library's training.
    "library": ("dploss", "dpsum", "dpwatch"),
}
"""Packages, or single modules, that each rule's script uses."""


def code_hash(rule: str, files: Iterable[Path] = ()) -> str:
    """Hash the source files of the packages that a rule uses, and of all plugins.

    Args:
        rule: a key of `PACKAGES`.
        files: further files, such as the rule's script.

    Returns:
        Twelve hexadecimal digits.
    """
    lines = [f"{package} {_hash_package(package)}" for package in PACKAGES[rule]]
    for path in sorted([*plugin_files(), *files]):
        lines.append(f"{path.name} {_hash_file(path)}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


def path_of(package: str) -> Path | None:
    """Return a package's folder, or a module's file; None: it is not installed."""
    path = SOURCES / package
    return path if path.exists() else package_folder(package)


@functools.cache
def _hash_package(package: str) -> str:
    """Hash the names and contents of all files of a package, templates included.

    Compiled code of Python and numba, in folders `__pycache__`, is left out.
    """
    folder = path_of(package)
    if folder is None:
        return "not installed"
    if folder.is_file():
        return _hash_file(folder)
    lines = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            lines.append(f"{path.relative_to(folder).as_posix()} {_hash_file(path)}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _hash_file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
