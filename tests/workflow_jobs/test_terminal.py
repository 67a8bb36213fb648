"""The line of progress, from log records like Snakemake's."""

import io
import logging
import sys

import pytest
from snakemake_interface_logger_plugins.common import LogEvent

from workflow_jobs import terminal
from workflow_jobs.terminal import JobTimes, OverProgress, TerminalHandler


class Screen(io.StringIO):
    """Stream that may claim to be a terminal."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


class Workflow:
    """Source of log records, as Snakemake makes them."""

    def __init__(self, *, is_terminal: bool) -> None:
        self.screen = Screen(is_terminal)
        inner = logging.StreamHandler(self.screen)
        self.handler = TerminalHandler(inner, self.screen)
        self.handler.begin(
            lambda rule, wildcards: f"{rule} of {wildcards['run']}",
            JobTimes({1: 600.0, 2: 600.0}, {1: True, 2: True}, slots=2),
        )

    def log(self, level: int, message: str | None, **fields: object) -> None:
        record = logging.makeLogRecord({"levelno": level, "msg": message, **fields})
        self.handler.handle(record)

    def start(self, number: int, rule: str, run: str, **fields: object) -> None:
        given = {"output": [], "log": [], **fields}
        self.log(
            logging.INFO,
            None,
            event=LogEvent.JOB_INFO,
            jobid=number,
            rule_name=rule,
            wildcards={"run": run},
            **given,
        )

    def finish(self, number: int, done: int, total: int) -> None:
        self.log(logging.INFO, None, event=LogEvent.JOB_FINISHED, job_id=number)
        self.log(logging.INFO, None, event=LogEvent.PROGRESS, done=done, total=total)

    @property
    def lines(self) -> list[str]:
        """Lines that stay on the screen."""
        return self.screen.getvalue().splitlines()


def test_terminal_without_a_terminal_prints_whole_lines_at_each_twentieth():
    workflow = Workflow(is_terminal=False)
    for number in range(1, 41):
        workflow.start(number, "train", "a")
        workflow.finish(number, number, 40)
    counts = [line.split(" jobs")[0] for line in workflow.lines]
    assert counts == [f"{number} of 40" for number in range(2, 41, 2)]


def test_terminal_line_names_the_run_and_its_round(tmp_path):
    log = tmp_path / "train.log"
    log.write_text("---- train\ntrain reptile/set-800/1way: 7/106, 3 clients/s\n")
    workflow = Workflow(is_terminal=True)
    workflow.log(logging.INFO, "", event=LogEvent.RUN_INFO, stats={"total": 2})
    workflow.start(1, "train", "seed 1", log=[str(log)])
    assert workflow.lines[-1].endswith(
        "0 of 2 jobs, about 10 min left | train of seed 1: round 7 of 106"
    )


def test_terminal_announces_a_finished_table_by_its_markdown_file():
    workflow = Workflow(is_terminal=False)
    workflow.start(1, "table", "Table 2", output=["t/table2.csv", "t/table2.md"])
    workflow.finish(1, 1, 1000)
    assert workflow.lines == ["table of Table 2: t/table2.md"]


def test_terminal_shows_warnings_errors_and_nothing_to_do_but_no_other_message():
    workflow = Workflow(is_terminal=False)
    workflow.log(logging.INFO, "Building DAG of jobs...")
    workflow.log(logging.INFO, "Nothing to be done (all requested files are there).")
    workflow.log(logging.WARNING, "file is missing")
    workflow.log(logging.ERROR, "Error in rule train", event=LogEvent.JOB_ERROR)
    assert workflow.lines == [
        "Nothing to be done (all requested files are there).",
        "file is missing",
        "Error in rule train",
    ]


def test_terminal_ends_with_one_line_when_the_user_stops_the_workflow():
    workflow = Workflow(is_terminal=False)
    workflow.log(logging.INFO, "Terminating processes on user request, this might take")
    workflow.log(logging.ERROR, "Error in rule train", event=LogEvent.JOB_ERROR)
    workflow.log(logging.INFO, "Complete log(s): x.log")
    assert workflow.lines == ["stopped; the same command continues"]


def test_interrupt_before_the_first_job_prints_one_line(monkeypatch):
    """As during the plan, where Snakemake does not catch it."""
    others = []
    monkeypatch.setattr(sys, "excepthook", lambda *error: others.append(error))
    monkeypatch.setenv(terminal.QUIET, "")
    logger = logging.Logger("planning")
    inner = logging.StreamHandler()
    inner.name = "DefaultStreamHandler"
    logger.addHandler(inner)
    screen = Screen(is_terminal=True)
    assert terminal.install(logger, screen) is not None
    sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert screen.getvalue() == "stopped; the same command continues\n"
    sys.excepthook(ValueError, ValueError("a fault"), None)
    assert [error[0] for error in others] == [ValueError]


@pytest.mark.parametrize("width", [80, 120])
def test_terminal_line_fits_the_terminal(monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    workflow = Workflow(is_terminal=True)
    workflow.log(logging.INFO, "", event=LogEvent.RUN_INFO, stats={"total": 2})
    workflow.start(1, "train", "a long name " * 20)
    line = workflow.lines[-1].rpartition("\033[K")[2]
    assert len(line) == width - 1
    assert line.endswith("…")


def test_job_times_scale_by_public_jobs_alone():
    # By hand: 100 s of estimates took 200 s, so 400 estimated seconds in two slots take
    # 400 s. The private job took ten times as long, which must not show.
    estimates = {1: 100.0, 2: 100.0, 3: 400.0}
    times = JobTimes(estimates, {1: True, 2: False, 3: True}, slots=2)
    times.start(1, 0.0)
    times.start(2, 0.0)
    times.finish(1, 200.0)
    times.finish(2, 1000.0)
    assert times.seconds_left == 400.0


def test_lines_over_progress_pass_warnings_and_keep_progress_off_the_terminal():
    screen = Screen(is_terminal=False)
    stream = OverProgress(screen, "warning:")
    print("train a: 3/20", file=stream)
    print("warning: 2 contributions were not finite", file=stream)
    assert screen.getvalue() == "warning: 2 contributions were not finite\n"


def test_duration_text_rounds_for_readers():
    durations = [20, 125, 3600, 9000]
    assert [terminal.duration_text(seconds) for seconds in durations] == [
        "about a minute",
        "about 2 min",
        "about 60 min",
        "about 2.5 h",
    ]


def test_last_line_of_a_missing_log_is_empty(tmp_path):
    assert terminal.last_line(tmp_path / "missing.log") == ""


def test_notices_of_extended_configuration_files_are_left_out():
    notice = "Config file config/config.yaml is extended by additional config."
    records = [logging.makeLogRecord({"msg": text}) for text in (notice, "other")]
    assert list(map(terminal.is_no_file_notice, records)) == [False, True]


def test_warning_of_the_page_so_far_is_left_out():
    """Snakemake warns of any output that was not there when it planned its jobs."""
    warning = (
        "Warning: the following output files of rule page were not present when the DAG"
        " was created:\n{'results/%s'}"
    )
    texts = [warning % "index.html", warning % "tables/answer.csv", "other"]
    records = [logging.makeLogRecord({"msg": text}) for text in texts]
    assert [terminal.is_no_page_warning(record) for record in records] == [
        False,
        True,
        True,
    ]
