"""Settings and fixtures of all tests.

The package under test is that of this checkout, also in processes that tests start.
"""

import gc
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.calls import CallSnakemake, call_snakemake

ROOT = Path(__file__).resolve().parents[1]
SOURCES = [str(ROOT / "src"), *map(str, sorted(ROOT.glob("packages/*/src")))]
# Processes write compiled files: compiling the sources takes as long as importing them.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ.pop("SNAKEMAKE_PROFILE", None)  # that of the user
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [*SOURCES, os.environ.get("PYTHONPATH")])
)
# A sum of a few hundred numbers takes less time than waiting for a second thread. A
# test that needs more threads sets their number.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """With `-n`, run the tests of a file in one process, in the order of this module.

    So a fixture of a file is made once.
    """
    if getattr(config.option, "numprocesses", None) and config.option.dist == "no":
        config.option.dist = "loadfile"
        config.option.loadscopereorder = False


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return one process a core. A further process is not measurably faster."""
    return os.cpu_count() or 1


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the long tests first, and skip tests that need a GPU where there is none.

    Long are the tests that call the workflow, and those that compile kernels. torch is
    imported only if a test needs a GPU.
    """
    ranks = {"workflow": 0, "tests": 0, "dpfedbench": 0, "models": 1, "audit": 1}
    items.sort(key=lambda item: ranks.get(item.path.parent.name, 2))
    marked = [item for item in items if item.get_closest_marker("cuda")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        skip = pytest.mark.skip(reason="torch finds no CUDA GPU on this machine")
        for item in marked:
            item.add_marker(skip)


@pytest.fixture(autouse=True, scope="module")
def garbage_thresholds() -> Iterator[None]:
    """Restore the thresholds of the garbage collector, which `jobs.job` raises.

    Otherwise gigabytes of garbage would stay in the process of the tests.
    """
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)


@pytest.fixture(scope="session")
def finished_run(
    federation: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return a folder with the results of a small run of DP-AGR."""
    from tests.finished_run import make_finished_run

    return make_finished_run(tmp_path_factory.mktemp("finished"), *federation)


@pytest.fixture
def results_copy(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Copy the folder of the finished run, and change to the copy."""
    shutil.copytree(finished_run, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture
def snakemake(tmp_path: Path) -> CallSnakemake:
    """Return a function that calls Snakemake, with results in a temporary folder."""

    def call(
        *arguments: str, directory: Path = tmp_path
    ) -> subprocess.CompletedProcess[str]:
        options = [
            "--snakefile",
            str(ROOT / "Snakefile"),
            "--directory",
            str(directory),
        ]
        return call_snakemake(*options, *arguments, folder=Path.cwd())

    return call


@pytest.fixture(scope="session")
def federation(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return (data folder, clients folder) of 48 few-shot clients."""
    from tests.small_data import save_federation

    return save_federation(tmp_path_factory.mktemp("federation"))


@pytest.fixture(scope="session")
def silos(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return (data folder, clients folder) of four clients that hold records."""
    from tests.small_data import save_silos

    return save_silos(tmp_path_factory.mktemp("silos"))
