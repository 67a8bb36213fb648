"""The time that a dry run prints below Snakemake's table of jobs."""

import logging
from types import SimpleNamespace

from snakemake_interface_logger_plugins.common import LogEvent

from workflow_jobs.start import DryRunEstimate

SECONDS = {"train": 5400.0, "account": 900.0}


def estimate(rules: list[str], cores: int) -> str:
    """Return the text of a record with a table of jobs, after the filter.

    Snakemake writes the table again at the end, when no job is waiting any more.
    """
    jobs = [
        SimpleNamespace(rule=SimpleNamespace(name=rule), wildcards_dict={})
        for rule in rules
    ]
    dag = SimpleNamespace(needrun_jobs=lambda: iter(jobs))
    descriptions = SimpleNamespace(seconds=lambda rule, wildcards: SECONDS[rule])
    workflow = SimpleNamespace(dag=dag, cores=cores)
    dry_run = DryRunEstimate(workflow, descriptions)
    texts = []
    for _ in ("start", "end"):
        record = logging.makeLogRecord({"msg": "the table", "event": LogEvent.RUN_INFO})
        assert dry_run.filter(record)
        texts.append(str(record.msg))
        jobs.clear()
    assert texts[0] == texts[1]
    return texts[0]


def test_dry_run_prints_the_hours_of_its_jobs_on_all_cores() -> None:
    """Two trainings of 1.5 h and two accounts of 15 minutes are 3.5 h of one core."""
    text = estimate(["train", "account", "train", "account"], cores=2)
    table, line = text.strip().split("\n")
    assert table == "the table"
    assert line.startswith("Estimated time: about 1.8 h on 2 cores,")
    assert "86 % of it is training" in line
    assert "about 15 min on 1 core," in estimate(["account"], cores=1)


def test_dry_run_leaves_other_messages_as_they_are() -> None:
    record = logging.makeLogRecord({"msg": "rule train:", "event": LogEvent.JOB_INFO})
    assert DryRunEstimate(SimpleNamespace(), SimpleNamespace()).filter(record)
    assert record.msg == "rule train:"
