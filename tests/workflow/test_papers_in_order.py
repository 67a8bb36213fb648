"""One paper's page comes before the trainings of the others, and says what is missing.

The whole workflow runs, with scripts that only write their outputs.
"""

import json
import re

import pytest

from tests.calls import call_snakemake, copy_checkout
from tests.shipped import without_others
from tests.workflow.conftest import planned_rules
from tests.workflow.test_rerun import STUB

TWO_PAPERS = """
preset: null
seeds: [3]
experiments:
  dp-fedmeta:
    tables:
      table2: {tasks: [omniglot-1shot], series: {dp-agrlr: null, gbml: null}}
      table3-time: null
      repairs: null
      baselines: null
      as-released: null
      table2-by-tensor: null
    figures:
      frontier: null
      figure2b: null
      figure3: null
      figure4a: null
      figure4b: null
      figure4c: null
      figure4d: null
      figure5: null
  dp-fnas:
    tables: {table1: null, table2: null}
    figures: {entropy: null}
"""
PROVENANCE = """
import json
path.write_text(json.dumps(snakemake.params.stand_ins))
"""
PAGE = """
if snakemake.rule == "page_so_far":
    from workflow_jobs.page_so_far import write_page_so_far
    state = pathlib.Path(snakemake.output[0])
    write_page_so_far(
        "so far", state.parents[2] / "index.html", state, inputs=snakemake.input,
        finished=list(snakemake.params.papers), missing=snakemake.params.missing,
    )
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Copy the workflow, with stubs for scripts, and make a small run on one core.

    By the reference's rates the searches of DP-FNAS take longer than Table 2 of
    DP-FedMeta on letters.
    """
    copy = tmp_path_factory.mktemp("finished") / "copy"
    copy_checkout(copy)
    for script in (copy / "workflow" / "scripts").glob("*.py"):
        text = STUB
        if script.stem == "page":
            text += PAGE
        if script.stem == "provenance":
            text += PROVENANCE
        script.write_text(text, encoding="utf-8")
    (copy / "two.yaml").write_text(without_others(TWO_PAPERS), encoding="utf-8")
    done = run(copy)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    return copy


def run(copy, *arguments):
    options = ["--cores", "1", "--configfile", str(copy / "two.yaml")]
    # `--cores 1` stands after the two cores of the call.
    return call_snakemake(*arguments, *options, folder=copy, PYTHONPATH="")


def planned(copy):
    done = run(copy, "--dry-run")
    assert done.returncode == 0, done.stderr
    return {rule for rule, _ in planned_rules(done.stdout + done.stderr)}


def test_first_papers_page_comes_before_trainings_of_the_second(finished):
    (log,) = (finished / ".snakemake" / "log").glob("*.log")
    jobs = planned_rules(log.read_text(encoding="utf-8"))
    started = []
    for rule, text in jobs:
        method = re.search(r"method=([\w-]+)", text)
        started.append(f"{rule} {method[1]}" if method else rule)
    page = started.index("page_so_far")
    assert {"train random", "train maml", "train dp-agr"} <= set(started[:page])
    assert {"train fnas", "train dp-fnas"} <= set(started[page:])
    assert not any("fnas" in job for job in started[:page])


def test_file_of_the_first_page_names_finished_and_missing_papers(finished):
    text = (finished / "results" / "so-far" / "1" / "page.json").read_text()
    state = json.loads(text)
    assert state["finished"] == ["dp-fedmeta"]
    assert state["missing"] == ["DP-FNAS"]


def test_provenance_of_the_first_page_names_the_stand_ins_of_its_papers(finished):
    path = finished / "results" / "so-far" / "1" / "provenance.json"
    assert json.loads(path.read_text()) == {"omniglot": "glyphs"}


def test_second_call_of_a_finished_run_does_nothing(finished):
    assert planned(finished) == set()


# Faster: test_page_so_far_names_the_missing_papers, of tests/dpfedbench/results, and the
# tests above.
@pytest.mark.slow
def test_page_so_far_of_a_stopped_call_is_made_again(finished):
    """The page was finished once. Then a call makes the first page again and stops,
    although nothing has changed but the file of that page.
    """
    results = finished / "results"
    milestone = results / "so-far" / "1" / "page.json"
    (results / "manifest").mkdir(exist_ok=True)
    manifest = results / "manifest" / "page-index.sha256"
    manifest.write_text("of the finished page", encoding="utf-8")
    milestone.unlink()
    assert run(finished, "results/so-far/1/page.json").returncode == 0
    assert (results / "index.html").read_text() == "so far"
    assert not manifest.exists()
    assert {"page"} <= planned(finished)
    assert run(finished).returncode == 0
    assert (results / "index.html").read_text() != "so far"
    assert planned(finished) == set()
