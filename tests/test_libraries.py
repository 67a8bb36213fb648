"""The target `libraries`: claimed and proven ε of other libraries, and its page."""

import json
import math
import runpy
from pathlib import Path
from typing import Any

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant

from dploss.gaussian import gaussian_epsilon

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "workflow/scripts"
RECORDED = ROOT / "docs/libraries"
TABLE = runpy.run_path(str(SCRIPTS / "libraries_table.py"))


def recorded() -> dict[str, dict[str, Any]]:
    """Return the committed rows by their titles."""
    rows = {}
    for path in RECORDED.glob("*.json"):
        for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
            rows[row["what"]] = row
    return rows


def test_libraries_page_follows_from_the_committed_rows() -> None:
    paths = sorted(RECORDED.glob("*.json"))
    scripts = (SCRIPTS / "libraries").glob("*.py")
    assert {path.stem for path in paths} == {path.stem for path in scripts}
    page = (ROOT / "docs/libraries.md").read_text(encoding="utf-8")
    listing = TABLE["listing"](TABLE["read_rows"](paths))
    assert page == listing.markdown("snakemake --cores all libraries")
    assert len(recorded()) == 19


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


def test_nvflare_epsilons_follow_from_its_documented_split() -> None:
    """Of 510 coordinates 51 are uploaded; 0.1 is split as 1 to 102^(2/3).

    Each round claims 0.1 and 0.1 for each uploaded value. All 510 answers of the
    selection may be above the threshold, ten times as many as its budget is for.
    """
    row = recorded()["NVFlare, SVTPrivacy"]
    threshold = 0.1 / (1 + 102 ** (2 / 3))
    query = 0.1 - threshold
    assert row["claimed"] == pytest.approx(3 * (0.1 + 51 * 0.1), rel=1e-12)
    expected = 3 * (threshold + 10 * query + 5.1)
    assert row["proven"] == pytest.approx(expected, rel=1e-12)


def test_jax_privacy_epsilons_are_those_of_its_batch_selections() -> None:
    """100 rounds of z = 1: Poisson samples of one example in twenty, and one cycle of
    balls in bins. dp_accounting's privacy loss distribution is the independent one.
    """
    rows = recorded()
    poisson = rows["jax_privacy, CyclicPoissonSampling of one group, dpsgd_event"]
    gaussian = dp_accounting.GaussianDpEvent(1.0)
    sampled = dp_accounting.PoissonSampledDpEvent(0.05, gaussian)
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    accountant.compose(sampled, 100)
    epsilon = accountant.get_epsilon(1e-5)
    assert poisson["claimed"] == pytest.approx(epsilon, rel=1e-3)
    assert poisson["proven"] == pytest.approx(epsilon, rel=1e-3)
    bins = rows["jax_privacy, BallsInBinsSampling, one cycle"]
    assert bins["claimed"] is None
    # Less than in one round that is known.
    assert bins["proven"] < gaussian_epsilon(1.0, 1e-5)


def test_recorded_claims_and_audits_agree_with_the_proven_epsilon() -> None:
    """An audit's bound is wrong at most once in twenty, and none of these is. A claim
    is called right where it covers the proven epsilon.
    """
    for title, row in recorded().items():
        if row["audited"] is not None and row["proven"] is not None:
            assert row["audited"] <= row["proven"], title
        if row["right"]:
            assert row["claimed"] >= row["proven"] - 2e-2, title


def test_every_row_names_the_adjacency_of_its_epsilons() -> None:
    """Local privacy replaces an update by any other; all other rows are for zero-out.
    NVFlare's filters are local too. jax_privacy's plans claim for zero-out, and its event
    of fixed batches for replace-one.
    No library is called right for a private number of units.
    """
    for title, row in recorded().items():
        is_local = "LocalDpMod" in title or title.startswith("NVFlare")
        assert row["adjacency"] == ("replace-one" if is_local else "zero-out"), title
        claimed_for = "zero-out" if is_local else "add-or-remove"
        if title.startswith("NVFlare") or "FixedBatchSampling" in title:
            claimed_for = "replace-one"
        if "dpsgd_event" in title and "Fixed" not in title:
            claimed_for = "zero-out"
        if row["claimed"] is None:
            claimed_for = ""
        assert row["claimed_adjacency"] == claimed_for, title
        if row["why"].startswith("Right where"):
            assert "For add-or-remove it is void" in row["why"], title
    opacus = recorded()["Opacus, poisson_sampling=True"]
    assert opacus["why"].startswith("Right where the number of records is public")
