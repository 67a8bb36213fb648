"""The benchmark of the five papers without the packages beside it, in a copy.

`uv run` works there too: no list that uv reads names `packages/dpwatch` or
`packages/further`.
"""

import re
import shutil
import tomllib

import numpy as np
import pytest

from tests.calls import ROOT, call_snakemake, copy_checkout
from tests.conftest import SOURCES
from tests.pages import rows_of
from tests.shipped import parsed
from tests.small_data import draw_glyphs
from tests.workflow.conftest import seal_glyphs

FULL = ("--configfile", "config/presets/full.yaml")
SMOKE = ("--configfile", "config/presets/smoke.yaml")
TABLE = "results/smoke/tables/dp-maml/table3.csv"
# Other environments may have the packages installed, from the checkout or elsewhere.
UNINSTALL = """
import importlib.metadata
import sys

sys.path[:] = [folder for folder in sys.path if folder not in {sources!r}]
for name in {removed!r}:
    sys.modules[name] = None
entry_points = importlib.metadata.entry_points


def of_other_packages(**selection):
    return [
        point
        for point in entry_points(**selection)
        if point.module.partition(".")[0] not in {removed!r}
    ]


importlib.metadata.entry_points = of_other_packages
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """Copy the checkout, and remove dpwatch and further."""
    folder = tmp_path_factory.mktemp("removed") / "copy"
    copy_checkout(folder)
    for name in ("dpwatch", "further"):
        shutil.rmtree(folder / "packages" / name, ignore_errors=True)
    glyphs = folder / "results" / "data" / "glyphs"
    images = draw_glyphs(np.random.default_rng(0), train=12, held_out=6)
    images.save(glyphs, {"name": "glyphs"})
    seal_glyphs(glyphs)
    return folder


def call(copy, removed, *words):
    """Call Snakemake in the copy; `removed` are packages that Python does not find."""
    site = copy.parent / "-".join(removed)
    site.mkdir(exist_ok=True)
    code = UNINSTALL.format(sources=SOURCES, removed=removed)
    (site / "sitecustomize.py").write_text(code, encoding="utf-8")
    done = call_snakemake(*words, folder=copy, PYTHONPATH=str(site))
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def tables_of_papers():
    """Return the tables of the experiments in config/experiments, by their files."""
    tables = set()
    for path in (ROOT / "config" / "experiments").glob("*.yaml"):
        for name, experiment in parsed(path).get("experiments", {}).items():
            tables |= {
                f"results/full/tables/{name}/{table}.csv"
                for table, section in (experiment.get("tables") or {}).items()
                if section is not None
            }
    return tables


def test_five_papers_plan_every_table_without_dpwatch_and_further(copy):
    expected = tables_of_papers()
    assert len({path.split("/")[3] for path in expected}) >= 5
    output = call(copy, ("dpwatch", "further"), "--dry-run", *FULL)
    planned = set(re.findall(r"results/full/tables/[\w-]+/[\w-]+\.csv", output))
    assert expected <= planned
    counts = re.findall(r"^train +(\d+)$", output, flags=re.MULTILINE)
    assert int(counts[0]) > 50


# Faster: the test above, of the plan, and of a training without dpkernels
# test_dpfedbench_imports_and_trains_without_dpkernels.
@pytest.mark.slow
def test_table_is_made_without_dpwatch_and_further_then_without_dpkernels(copy):
    """The second call trains the same runs again, by torch's automatic gradients. No
    letters are drawn.
    """
    call(copy, ("dpwatch", "further"), TABLE, *SMOKE)
    rows = rows_of(copy / TABLE)
    assert rows
    for name in ("clients", "runs", "smoke"):
        shutil.rmtree(copy / "results" / name)
    shutil.rmtree(copy / "packages" / "dpkernels")
    call(copy, ("dpkernels", "dpwatch", "further"), TABLE, *SMOKE)
    repeated = rows_of(copy / TABLE)
    assert [row["method"] for row in repeated] == [row["method"] for row in rows]


def test_pyproject_has_no_requirement_that_is_removed():
    """Otherwise `uv run` would fail after the removal, before it starts anything."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    lists = [
        pyproject["project"]["dependencies"],
        pyproject["project"]["optional-dependencies"],
        pyproject["dependency-groups"],
        pyproject["tool"]["uv"]["sources"],
    ]
    assert not re.search("dpwatch|further", str(lists))
