"""The target `libraries`: claimed and proven ε of other libraries, and its page."""

import json
import math
import re
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest

from dpfedbench.errors import BenchError
from dpfedbench.results import formats
from dpsum.accounting.gaussian import gaussian_epsilon
from tests.calls import CallSnakemake

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "workflow/scripts"
ENVIRONMENTS = ROOT / "workflow/envs"
RECORDED = ROOT / "docs/libraries"
TABLE = runpy.run_path(str(SCRIPTS / "libraries_table.py"))
# Epsilon of one Gaussian release at z = 1, delta = 1e-5 (Balle and Wang 2018,
# Theorem 8).
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


def recorded() -> dict[str, dict[str, Any]]:
    """Return the committed rows by their titles."""
    rows = {}
    for path in RECORDED.glob("*.json"):
        for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
            rows[row["what"]] = row
    return rows


def test_libraries_target_has_a_job_for_each_library(snakemake: CallSnakemake) -> None:
    done = snakemake("libraries", "--dry-run")
    assert done.returncode == 0, done.stderr
    plan = done.stdout + done.stderr
    stats = plan.split("Job stats:")[1].split("\n\n")[0]
    counts = dict(re.findall(r"^(librar\w+)\s+(\d+)$", stats, flags=re.MULTILINE))
    scripts = (SCRIPTS / "libraries").glob("*.py")
    rules = {f"library_{path.stem}" for path in scripts}
    assert {"library_flower", "library_opacus", "library_pfl"} <= rules
    assert counts == dict.fromkeys({*rules, "libraries_table", "libraries"}, "1")
    tables = {"results/tables/libraries.csv", "results/tables/libraries.md"}
    assert tables <= set(re.findall(r"results/[\w./]+", plan))


def test_libraries_target_makes_the_other_rows_without_a_package_index(
    snakemake: CallSnakemake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One library would have to be downloaded. The other is installed, and makes one
    release at z = 1.
    """
    copy = tmp_path / "copy"
    for name in ("workflow", "config", "profiles", "src"):
        shutil.copytree(
            ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(ROOT / "Snakefile", copy)
    scripts = copy / "workflow/scripts/libraries"
    for name in ("opacus", "pfl"):
        (scripts / f"{name}.py").unlink()
    unavailable = 'PACKAGE = "no-such-library"\n'
    (scripts / "flower.py").write_text(unavailable, encoding="utf-8")
    environment = copy / "workflow/envs/flower.yaml"
    text = environment.read_text(encoding="utf-8")
    environment.write_text(text.replace("flwr==", "no-such-library=="), "utf-8")
    (scripts / "probe.py").write_text(PROBE, encoding="utf-8")
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    done = snakemake("libraries", root=copy)
    errors = [line for line in done.stderr.splitlines() if "library flower: " in line]
    assert done.returncode == 1, done.stderr
    assert len(errors) == 1, done.stderr
    message = "no-such-library is not installed, and its packages cannot be had ("
    assert message in errors[0]
    assert "UV_DEFAULT_INDEX or PIP_INDEX_URL" in errors[0]
    assert "Traceback" not in done.stderr
    results = tmp_path / "results"
    assert not (results / "libraries/flower.json").exists()
    assert not list(results.glob("libraries/packages/*"))
    probe = json.loads((results / "libraries/probe.json").read_text(encoding="utf-8"))
    (row,) = probe["rows"]
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


def test_libraries_table_has_its_rows(tmp_path: Path) -> None:
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
        row
        | {
            "claimed": 0.5,
            "proven": 70308.2,
            "audited": None,
            "quote": "",
        },
    ]
    path = tmp_path / "one.json"
    values = {"package": "one", "version": "1.2", "rows": rows}
    path.write_text(json.dumps(values), encoding="utf-8")
    frame = TABLE["read_rows"]([path])
    first, second = formats.csv_text(frame).splitlines()[1:]
    assert first == "one 1.2,A | B,a guide,,inf,0.25,1e-06,false,Because.,as is"
    assert second == "one 1.2,A | B,a guide,0.5,70308.2,,1e-06,false,Because.,"
    lines = TABLE["listing"](frame).markdown("make it").splitlines()
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


def test_libraries_page_follows_from_the_committed_rows() -> None:
    paths = sorted(RECORDED.glob("*.json"))
    scripts = (SCRIPTS / "libraries").glob("*.py")
    assert {path.stem for path in paths} == {path.stem for path in scripts}
    page = (ROOT / "docs/libraries.md").read_text(encoding="utf-8")
    listing = TABLE["listing"](TABLE["read_rows"](paths))
    assert page == listing.markdown("snakemake --cores all libraries")
    libraries = ("| Flower", "| Opacus", "| pfl")
    assert sum(line.startswith(libraries) for line in page.splitlines()) == 14
    assert len(recorded()) == 14


def test_proven_epsilon_of_known_rounds_is_that_of_a_gaussian() -> None:
    """Flower: three rounds of z = 1. Its local mod: three messages of sensitivity 2.
    pfl: one message of epsilon 1.
    """
    rows = recorded()
    fixed = rows["Flower, fixed clipping at the server, its accountant"]
    epsilon = gaussian_epsilon(1 / math.sqrt(3), 1e-5)
    assert fixed["proven"] == pytest.approx(epsilon, rel=1e-6)
    local = rows["Flower, LocalDpMod: threshold 1, sensitivity 1, ε 1, three rounds"]
    sigma = math.sqrt(2 * math.log(1.25e5))
    epsilon = gaussian_epsilon(sigma / (2 * math.sqrt(3)), 1e-5)
    assert local["proven"] == pytest.approx(epsilon, rel=1e-6)
    single = rows["pfl, one iteration of the Gaussian mechanism"]
    assert single["proven"] == pytest.approx(1.0, abs=1e-3)


def test_recorded_audits_are_below_the_proven_epsilon() -> None:
    """An audit's bound is wrong at most once in twenty, and none of these is."""
    for title, row in recorded().items():
        if row["audited"] is not None and row["proven"] is not None:
            assert row["audited"] <= row["proven"], title


def test_recorded_claims_are_called_right_where_they_cover_the_proven_epsilon() -> None:
    for title, row in recorded().items():
        assert row["why"].startswith("Right") == row["right"], title
        if row["right"]:
            assert row["claimed"] >= row["proven"] - 2e-2, title
