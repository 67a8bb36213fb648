"""docs/results/real.md follows from the plan of the `real` preset and the measurements."""

import re
import runpy
from pathlib import Path

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
