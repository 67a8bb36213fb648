"""What libraries claim and what is proven: the target, its rows, and the committed page of
the runs that are recorded.
"""

import json
import math
import re
import runpy
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpfedbench.errors import BenchError
from dpfedbench.results import formats
from dpsum.accounting.gaussian import gaussian_epsilon
from tests.calls import Snakemake

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "workflow/scripts"
ENVIRONMENTS = ROOT / "workflow/envs"
RECORDED = ROOT / "docs/libraries"
TABLE = runpy.run_path(str(SCRIPTS / "libraries_table.py"))
# of one Gaussian release at z = 1, delta = 1e-5 (Balle and Wang 2018, Theorem 8)
EXACT = 4.377
PROBE = """
PACKAGE = "numpy"


class Watched:
    def account(self, delta):
        import dpsum
        import numpy as np

        spec = dpsum.SumSpec(
            name="sum", unit="client", observer="everyone",
            clipping=dpsum.Constant(1.0), noise=dpsum.Gaussian(1.0),
        )
        one = dpsum.Mechanism(
            spec, participation=dpsum.OnePass(units=9, cohort=9, rounds=1),
            dimension=3, ledger="probe.jsonl", seed=0,
        )
        total = one.begin_round(0)
        total.add(np.ones((9, 3)))
        one.release(total)
        return dpsum.account("probe.jsonl", delta=delta)


def runs(folder):
    yield {"watched": Watched(), "delta": 1e-5, "audit": False, "claimed": 4.0, "what": "Probe, one release",
           "source": "nowhere", "why": "It claims 4."}
"""
Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def snakemake(call_snakemake: Snakemake, tmp_path: Path) -> Call:
    def call(*arguments: str, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
        given = [
            "--snakefile",
            str(root / "Snakefile"),
            "--directory",
            str(tmp_path),
            "--cores",
            "2",
            *arguments,
        ]
        return call_snakemake(
            *given, folder=Path.cwd(), fresh=root != ROOT, timeout=300
        )

    return call


def recorded() -> dict[str, dict[str, Any]]:
    found = [
        json.loads(path.read_text(encoding="utf-8")) for path in RECORDED.glob("*.json")
    ]
    return {row["what"]: row for told in found for row in told["rows"]}


# The target


def test_it_is_a_target_with_a_job_for_each_library(snakemake: Call) -> None:
    done = snakemake("libraries", "--dry-run")
    assert done.returncode == 0, done.stderr
    plan = done.stdout + done.stderr
    stats = plan.split("Job stats:")[1].split("\n\n")[0]
    found = dict(re.findall(r"^(librar\w+)\s+(\d+)$", stats, flags=re.MULTILINE))
    named = {f"library_{path.stem}" for path in (SCRIPTS / "libraries").glob("*.py")}
    assert {"library_flower", "library_opacus", "library_pfl"} <= named
    assert found == dict.fromkeys({*named, "libraries_table", "libraries"}, "1")
    tables = {"results/tables/libraries.csv", "results/tables/libraries.md"}
    assert tables <= set(re.findall(r"results/[\w./]+", plan))


def test_without_a_package_index_the_other_rows_are_made(
    snakemake: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One library has to be fetched, and cannot; the other, a file more, is one release
    of z = 1 and is here.
    """
    copy = tmp_path / "copy"
    for name in ("workflow", "config", "profiles", "src"):
        shutil.copytree(
            ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(ROOT / "Snakefile", copy)
    own = copy / "workflow/scripts/libraries"
    for name in ("opacus", "pfl"):
        (own / f"{name}.py").unlink()
    (own / "flower.py").write_text('PACKAGE = "no-such-library"\n', encoding="utf-8")
    environment = (copy / "workflow/envs/flower.yaml").read_text(encoding="utf-8")
    (copy / "workflow/envs/flower.yaml").write_text(
        environment.replace("flwr==", "no-such-library=="), "utf-8"
    )
    (own / "probe.py").write_text(PROBE, encoding="utf-8")
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    done = snakemake("libraries", root=copy)
    told = [line for line in done.stderr.splitlines() if "library flower: " in line]
    assert done.returncode == 1 and len(told) == 1, done.stderr
    assert (
        "no-such-library is not installed, and its packages cannot be had (" in told[0]
    )
    assert "UV_DEFAULT_INDEX or PIP_INDEX_URL" in told[0]
    assert "Traceback" not in done.stderr
    results = tmp_path / "results"
    assert not (results / "libraries/flower.json").exists()
    assert not list(results.glob("libraries/packages/*"))
    (row,) = json.loads((results / "libraries/probe.json").read_text(encoding="utf-8"))[
        "rows"
    ]
    assert row["proven"] == pytest.approx(EXACT, abs=1e-3)
    assert not row["right"]
    assert row["claimed"] == 4.0
    chosen = ("libraries", "--config", "libraries=probe")
    assert snakemake(*chosen, root=copy).returncode == 0
    text = (results / "tables/libraries.md").read_text(encoding="utf-8")
    assert "| Probe, one release (numpy " in text
    assert "| 4 | 4.38 | – | 1e-05 | It claims 4. |" in text
    assert "--config libraries=probe" in text
    again = snakemake(*chosen, root=copy)
    assert "Nothing to be done" in again.stdout + again.stderr


# Packages


# The table


def test_the_table_is_of_its_rows(tmp_path: Path) -> None:
    row = {
        "what": "A | B",
        "source": "a guide",
        "claimed": None,
        "proven": None,
        "audited": None,
        "delta": 1e-6,
        "right": False,
        "why": "Because.",
        "quote": "as is",
    }
    rows = [
        row | {"claimed": None, "proven": None, "audited": 0.25},
        row | {"claimed": 0.5, "proven": 70308.2, "audited": None, "quote": ""},
    ]
    path = tmp_path / "one.json"
    path.write_text(
        json.dumps({"package": "one", "version": "1.2", "rows": rows}), encoding="utf-8"
    )
    found = TABLE["read_rows"]([path])
    first, second = formats.csv_text(found).splitlines()[1:]
    assert first == "one 1.2,A | B,a guide,,inf,0.25,1e-06,false,Because.,as is"
    assert second == "one 1.2,A | B,a guide,0.5,70308.2,,1e-06,false,Because.,"
    lines = TABLE["listing"](found).markdown("make it").splitlines()
    assert lines[0] == "# What libraries claim and what is proven"
    assert lines[-1] == "- Made by `make it`."
    assert (
        r"| A \| B (one 1.2) | – | ∞ | ≥ 0.25 | 1e-06 | Because. The library: “as is” |"
        r" a guide |" in lines
    )
    assert (
        r"| A \| B (one 1.2) | 0.5 | 70,308 | – | 1e-06 | Because. | a guide |" in lines
    )
    with pytest.raises(BenchError):
        TABLE["read_rows"]([tmp_path / "none.json"])


def test_the_committed_page_follows_from_the_committed_rows() -> None:
    paths = sorted(RECORDED.glob("*.json"))
    assert {path.stem for path in paths} == {
        path.stem for path in (SCRIPTS / "libraries").glob("*.py")
    }
    page = (ROOT / "docs/libraries.md").read_text(encoding="utf-8")
    assert page == TABLE["listing"](TABLE["read_rows"](paths)).markdown(
        "snakemake --cores all libraries"
    )
    assert (
        len(recorded())
        == 14
        == sum(
            line.startswith(("| Flower", "| Opacus", "| pfl"))
            for line in page.splitlines()
        )
    )


def test_what_holds_of_known_rounds_is_a_gaussian() -> None:
    """Flower's three rounds of z = 1; its local mod's three messages of sensitivity 2;
    pfl's one of epsilon 1.
    """
    found = recorded()
    fixed = found["Flower, fixed clipping at the server, its accountant"]
    assert fixed["proven"] == pytest.approx(
        gaussian_epsilon(1 / math.sqrt(3), 1e-5), rel=1e-6
    )
    local = found["Flower, LocalDpMod: threshold 1, sensitivity 1, ε 1, three rounds"]
    sigma = math.sqrt(2 * math.log(1.25e5))
    assert local["proven"] == pytest.approx(
        gaussian_epsilon(sigma / (2 * math.sqrt(3)), 1e-5), rel=1e-6
    )
    assert found["pfl, one iteration of the Gaussian mechanism"][
        "proven"
    ] == pytest.approx(1.0, abs=1e-3)


def test_nothing_is_shown_above_what_holds() -> None:
    """An audit's bound is wrong at most once in twenty, and none of these is."""
    for what, row in recorded().items():
        if row["audited"] is not None:
            assert row["audited"] <= (
                math.inf if row["proven"] is None else row["proven"]
            ), what
        if row["right"]:
            assert row["claimed"] >= row["proven"] - 2e-2 and row["why"].startswith(
                "Right"
            ), what
        else:
            assert not row["why"].startswith("Right"), what
