"""Settings and fixtures of the tests: the sources also in processes of tests."""

import os
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1]
# dpsum lies in the folder src of the repository, in which this package is developed.
SOURCES = [str(PACKAGE / "src"), str(PACKAGE.parents[1] / "src")]
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [*SOURCES, os.environ.get("PYTHONPATH")])
)
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture
def path(tmp_path):
    """Return the path of a ledger that a watch will write."""
    return tmp_path / "ledger.jsonl"


@pytest.fixture
def write_ledger(tmp_path):
    """Run a mechanism and return its ledger's path."""
    from ledgers import run_mechanism

    def write(name, **changes):
        run_mechanism(tmp_path / name, **changes)
        return str(tmp_path / name)

    return write
