"""docs/results/real.md says of each table and figure of the `real` preset what the plan
and the measurements say.
"""

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOOL = runpy.run_path(str(ROOT / "tools" / "real_rows.py"))


def test_the_page_is_that_of_the_plan() -> None:
    """Every table and figure is there; runs that stand are found by hand for three, and
    each names a measurement.
    """
    plan = TOOL["read_plan"]()
    text = (ROOT / "docs" / "results" / "real.md").read_text(encoding="utf-8")
    assert text == TOOL["make_page"](plan), (
        "docs/results/real.md is old: run `python tools/real_rows.py`"
    )
    rows = {
        line.split(" | ")[0][2:]: line[:-2].split(" | ")[3:]
        for line in text.splitlines()
        if line.startswith(("| tables/", "| figures/"))
    }
    assert {tuple(name.split("/")[1:]) for name in rows} == set(plan.items)
    # Three seeds of five methods; four rows of k of one seed, and the published row at
    # k = 90, and two rows by layer at four k that were not run; one row of six, and two.
    # Table 2 shares runs with the tables of M100, M101, M103 and M110.
    assert rows["tables/dp-fedmeta/table2"] == [
        "15",
        "all",
        "M4, M65, M100, M101, M103, M110, R2, R4, R5",
    ]
    assert rows["figures/dp-maml/figure6a"][:2] == ["17", "5"]
    assert rows["figures/dp-fnas/entropy"] == ["3", "none", "–"]
    known = set(
        re.findall(
            r"^\| ([MR]\d+) \|",
            (ROOT / "docs" / "measurements.md").read_text(encoding="utf-8"),
            flags=re.MULTILINE,
        )
    )
    assert {row for row, *_ in TOOL["MEASURED"]} <= known


def test_public_starts_by_small_batches_train_as_the_row_of_maml_does() -> None:
    """What MAML's training follows from is the same, but for the data: an update every
    4 of 16,000 tasks, 5 query examples of a class, 0.003 on a cosine.
    """
    plan = TOOL["read_plan"]()
    of_glyphs, of_omniglot = (
        {
            run.key: run.plain() | {"dataset": ""}
            for run in plan.runs.values()
            if (run.method, run.dataset, run.task.shots) == ("maml", dataset, 1)
            and run.task.ways == 5
            and run.participation.cohort == 4
        }
        for dataset in ("glyphs", "omniglot")
    )
    assert len(of_glyphs) == 1
    (run,) = of_glyphs.values()
    assert run["participation"]["rounds"] == 4000
    assert run["clients"]["query_per_class"] == 5
    assert run["server"]["rate"] == 0.003
    assert run["server"]["schedule"]["kind"] == "cosine"
    assert any(
        {key: other[key] for key in ("clients", "participation", "server", "model")}
        == {key: run[key] for key in ("clients", "participation", "server", "model")}
        for other in of_omniglot.values()
    )
