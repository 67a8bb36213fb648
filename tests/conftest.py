"""The package under test is this checkout's, also in the processes that tests start, whatever is installed."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.calls import Snakemake

SRC = str(Path(__file__).resolve().parents[1] / "src")
# They keep what they compile: to read the sources anew takes as long as to import them.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [SRC, os.environ.get("PYTHONPATH")]))


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """With `-n`, tests of one group run in one process, and in the order that is said below."""
    if getattr(config.option, "numprocesses", None) and config.option.dist == "no":
        config.option.dist, config.option.loadscopereorder = "loadgroup", False


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """xdist hands its workers what stands on the command line, and nothing else."""
    node.workerinput["loadgroup"] = node.config.option.dist == "loadgroup"


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        config.option.loadgroup = config.workerinput["loadgroup"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share what a fixture of their module makes are a group; those that call the workflow begin first.

    Loops of double precision, which no run has, are compiled by tests alone: those are a group too, so that two
    processes of a fresh clone do not compile the same, and begin next. What needs a GPU is skipped where there is none;
    torch is loaded for such tests alone.
    """
    places = ("workflow", "tests"), ("kernels", "models")
    items.sort(key=lambda item: next((at for at, names in enumerate(places) if item.path.parent.name in names), 2))
    for item in items:
        if item.get_closest_marker("xdist_group"):
            continue
        if item.path.parent.name in places[1]:
            item.add_marker(pytest.mark.xdist_group("double"))
            continue
        fixtures = [made[-1] for made in item._fixtureinfo.name2fixturedefs.values()]  # type: ignore[attr-defined]
        if any(made.scope == "module" for made in fixtures):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
    marked = [item for item in items if item.get_closest_marker("cuda")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="torch finds no CUDA GPU on this machine"))


@pytest.fixture(scope="session")
def call_snakemake() -> Iterator[Snakemake]:
    found = Snakemake(Path(SRC))
    yield found
    found.end()
