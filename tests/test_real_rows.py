"""docs/results/real.md follows from the plan of the `real` preset and the measurements."""

import re
import runpy
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TOOL = runpy.run_path(str(ROOT / "tools" / "real_rows.py"))


def test_real_page_is_that_of_the_plan() -> None:
    plan = TOOL["read_plan"]()
    text = (ROOT / "docs" / "results" / "real.md").read_text(encoding="utf-8")
    hint = "docs/results/real.md is old: run `python tools/real_rows.py`"
    assert text == TOOL["make_page"](plan), hint
    text = (ROOT / "docs" / "measurements.md").read_text(encoding="utf-8")
    known = set(re.findall(r"^\| ([MR]\d+) \|", text, flags=re.MULTILINE))
    assert {row for row, *_ in TOOL["MEASURED"]} <= known


def test_public_start_is_trained_as_the_row_of_maml() -> None:
    """MAML on glyphs and on Omniglot: an update every 4 of 16,000 tasks, 5 query
    examples a class, and a cosine schedule from 0.003.
    """
    runs: dict[str, dict[str, Any]] = {"glyphs": {}, "omniglot": {}}
    for run in TOOL["read_plan"]().runs.values():
        if run.method != "maml" or run.dataset not in runs:
            continue
        if (run.task.ways, run.task.shots, run.participation.cohort) == (5, 1, 4):
            runs[run.dataset][run.key] = run.plain()
    (start,) = runs["glyphs"].values()
    assert start["participation"]["rounds"] == 4000
    assert start["clients"]["query_per_class"] == 5
    assert start["server"]["rate"] == 0.003
    assert start["server"]["schedule"]["kind"] == "cosine"
    sections = ("clients", "participation", "server", "model")
    values = [start[key] for key in sections]
    omniglot_values = [
        [run[key] for key in sections] for run in runs["omniglot"].values()
    ]
    assert values in omniglot_values
