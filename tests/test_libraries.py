"""The page of what libraries claim and what holds is made of the runs that are recorded, and the runs add up."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from dpsum.accounting.gaussian import gaussian_epsilon

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def tool() -> Any:
    spec = importlib.util.spec_from_file_location("libraries", ROOT / "tools" / "libraries.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setitem(sys.modules, "libraries", module)  # which dataclasses look up
    spec.loader.exec_module(module)
    monkeypatch.undo()
    return module


def rows() -> dict[str, dict[str, Any]]:
    found = [json.loads(path.read_text(encoding="utf-8")) for path in (ROOT / "docs" / "libraries").glob("*.json")]
    return {row["what"]: row for told in found for row in told["rows"]}


def test_the_page_is_the_runs(tool: Any) -> None:
    assert tool.table() == tool.PAGE.read_text(encoding="utf-8")


def test_what_holds_of_known_rounds_is_a_gaussian() -> None:
    """Flower's three rounds of z = 1; its local mod's three messages of sensitivity 2; pfl's one of epsilon 1."""
    found = rows()
    fixed = found["Flower, fixed clipping at the server, its accountant"]
    assert fixed["holds"] == pytest.approx(gaussian_epsilon(1 / math.sqrt(3), 1e-5), rel=1e-6)
    local = found["Flower, LocalDpMod: clip 1, sensitivity 1, ε 1, three rounds"]
    sigma = math.sqrt(2 * math.log(1.25e5))
    assert local["holds"] == pytest.approx(gaussian_epsilon(sigma / (2 * math.sqrt(3)), 1e-5), rel=1e-6)
    assert found["pfl, one iteration of the Gaussian mechanism"]["holds"] == pytest.approx(1.0, abs=1e-3)


def test_nothing_is_shown_above_what_holds() -> None:
    """An audit's bound is wrong at most once in twenty, and none of these is."""
    for what, row in rows().items():
        if row["audited"] is not None:
            assert row["audited"] <= (math.inf if row["holds"] is None else row["holds"]), what
        if row["right"]:
            assert row["claimed"] >= row["holds"] - 2e-2 and row["why"].startswith("Right"), what
        else:
            assert not row["why"].startswith("Right"), what
