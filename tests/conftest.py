"""The package under test is this checkout's, also in the processes that tests start,
whatever is installed.
"""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.calls import Snakemake

SRC = str(Path(__file__).resolve().parents[1] / "src")
# They keep what they compile: to read the sources anew takes as long as to import them.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [SRC, os.environ.get("PYTHONPATH")])
)
# Sums of a few hundred numbers wait for a second thread longer than they take. What
# wants more threads asks for them.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """With `-n`, tests of a file run in one process, so that fixtures are made once,
    and in the order said below.
    """
    if getattr(config.option, "numprocesses", None) and config.option.dist == "no":
        config.option.dist = "loadfile"
        config.option.loadscopereorder = False


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One for each core: one more was not measurably faster, and imports everything
    once more.
    """
    return os.cpu_count() or 1


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that call the workflow begin first, then those that compile what no run
    has: both are long.

    What needs a GPU is skipped where there is none; torch is loaded for such tests
    alone.
    """
    places = ("workflow", "tests"), ("dpkernels", "models")
    items.sort(
        key=lambda item: next(
            (at for at, names in enumerate(places) if item.path.parent.name in names), 2
        )
    )
    marked = [item for item in items if item.get_closest_marker("cuda")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(
                pytest.mark.skip(reason="torch finds no CUDA GPU on this machine")
            )


@pytest.fixture(autouse=True, scope="module")
def garbage_is_looked_for() -> Iterator[None]:
    """A job looks for garbage more seldom (`jobs.job`). In the tests' own process
    gigabytes of it would stay.
    """
    usual = gc.get_threshold()
    yield
    gc.set_threshold(*usual)


@pytest.fixture(scope="session")
def call_snakemake() -> Iterator[Snakemake]:
    found = Snakemake(Path(SRC))
    yield found
    found.end()
