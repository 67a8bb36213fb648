"""The workflow's terminal: one line of progress in place of Snakemake's messages.

The line says how many jobs are done, how much time is left, and which cell of a table
or figure the running jobs are for. Each finished table or figure gets a line with its
path. Warnings and errors of Snakemake are printed as they are, and Snakemake's log file
has everything.

Progress within a job is the last line of the job's log. No clock of a training with
secret cohorts is read (`JobTimes`).
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from snakemake_interface_logger_plugins.common import LogEvent

from workflow_jobs.hand_over import handle_interrupt

Stream = TextIO | io.TextIOBase
"""Stream of text: a file, a terminal, or an object that stands for one."""

QUIET = "DPFEDBENCH_QUIET_JOBS"
"""Environment variable that tells jobs to print nothing but warnings and errors."""

_STOPPED = "stopped; the same command continues"
_SHOWN_RULES = ("table", "figure", "frontier_table", "privacy", "page", "page_of_paper")
"""Rules whose output is announced when it is finished."""
_SHOWN_SUFFIXES = (".md", ".png", ".html")
_NOTHING_TO_DO = "Nothing to be done"
_USER_REQUEST = "Terminating processes on user request"
_STEPS = re.compile(r": (\d+)/(\d+)")
_TAIL = 2048
"""Bytes at the end of a job's log in which its last line is looked for."""
_PLAIN_SHARE = 20
"""Without a terminal, progress is printed at each such fraction of the jobs."""


@dataclass(frozen=True)
class JobLine:
    """A running job.

    Attributes:
        rule: name of its rule.
        label: what the job makes, for people.
        outputs: paths of its output files.
        log: path of its log; None without one.
    """

    rule: str
    label: str
    outputs: tuple[str, ...]
    log: Path | None


class JobTimes:
    """Estimate of the time that the remaining jobs take.

    Each job has an estimate in seconds of a reference machine. The estimates are scaled
    by the measured times of finished jobs, of which `is_public` says that their time
    reveals nothing of secret cohorts.

    Args:
        estimates: seconds of each planned job on the reference machine, by job id.
        is_public: whether the time of a job may be measured, by job id.
        slots: number of jobs that run side by side.
    """

    _LEAST = 20.0
    """Estimated seconds of finished jobs from which the scale is measured."""

    def __init__(
        self,
        estimates: Mapping[int, float],
        is_public: Mapping[int, bool],
        slots: int,
    ) -> None:
        self._remaining = dict(estimates)
        self._is_public = is_public
        self._slots = max(1, slots)
        self._started: dict[int, float] = {}
        self._estimated = 0.0
        self._measured = 0.0

    def start(self, job: int, now: float) -> None:
        """Note the start of a job at `now`, in seconds."""
        if self._is_public.get(job, False):
            self._started[job] = now

    def finish(self, job: int, now: float) -> None:
        """Note the end of a job at `now`, in seconds."""
        estimate = self._remaining.pop(job, 0.0)
        if job in self._started:
            self._estimated += estimate
            self._measured += now - self._started.pop(job)

    @property
    def seconds_left(self) -> float:
        """Seconds until all jobs are finished."""
        scale = 1.0
        if self._estimated >= self._LEAST:
            scale = self._measured / self._estimated
        return scale * sum(self._remaining.values()) / self._slots


def duration_text(seconds: float) -> str:
    """Return a duration for readers, e.g. "about 12 min"."""
    if seconds < 90:
        return "about a minute"
    if seconds < 5400:
        return f"about {seconds / 60:.0f} min"
    return f"about {seconds / 3600:.1f} h"


def last_line(log: Path) -> str:
    """Return the last complete or incomplete line of a log; "" if there is none."""
    try:
        with open(log, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL))
            lines = file.read().decode("utf-8", errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


class TerminalHandler(logging.Handler):
    """Handler of Snakemake's log records that shows one line of progress.

    Args:
        inner: Snakemake's own handler. It prints warnings and errors.
        stream: stream of the terminal or file.
    """

    def __init__(self, inner: logging.Handler, stream: TextIO) -> None:
        super().__init__()
        self._inner = inner
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._jobs: dict[int, JobLine] = {}
        self._labels: Callable[[str, Mapping[str, str]], str] = _rule_label
        self._times: JobTimes | None = None
        self._done = 0
        self._total = 0
        self._shown = ""
        self._printed_share = 0
        self._is_stopping = False
        self._write_lock = threading.RLock()
        self._ended = threading.Event()

    def begin(
        self, labels: Callable[[str, Mapping[str, str]], str], times: JobTimes
    ) -> None:
        """Start to show progress.

        Args:
            labels: returns the text of a job from its rule and wildcards.
            times: estimates the remaining time.
        """
        self._labels = labels
        self._times = times
        if self._is_terminal:
            thread = threading.Thread(
                target=self._refresh, name="progress line", daemon=True
            )
            thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        with self._write_lock:
            self._handle(record)

    def close(self) -> None:
        self._ended.set()
        with self._write_lock:
            self._erase()
        super().close()

    def _handle(self, record: logging.LogRecord) -> None:
        event = getattr(record, "event", None)
        if event == LogEvent.JOB_INFO:
            self._start(record)
        elif event == LogEvent.JOB_FINISHED:
            self._finish(getattr(record, "job_id", -1))
        elif event == LogEvent.PROGRESS:
            self._done = getattr(record, "done", self._done)
            self._total = getattr(record, "total", self._total)
            self._show()
        elif event == LogEvent.RUN_INFO:
            self._total = getattr(record, "stats", {}).get("total", self._total)
        elif _USER_REQUEST in str(record.msg):
            self._is_stopping = True
            self._print(_STOPPED)
        elif self._passes(record):
            self._erase()
            self._inner.handle(record)

    def _passes(self, record: logging.LogRecord) -> bool:
        if self._is_stopping:
            return False
        return record.levelno >= logging.WARNING or _NOTHING_TO_DO in str(record.msg)

    def _start(self, record: logging.LogRecord) -> None:
        fields = vars(record)
        number = fields["jobid"]
        logs = fields["log"] or []
        self._jobs[number] = JobLine(
            rule=fields["rule_name"],
            label=self._labels(fields["rule_name"], fields["wildcards"] or {}),
            outputs=tuple(fields["output"] or ()),
            log=Path(logs[0]) if logs else None,
        )
        if self._times is not None:
            self._times.start(number, time.monotonic())
        if self._is_terminal:
            self._show()

    def _finish(self, number: int) -> None:
        if self._times is not None:
            self._times.finish(number, time.monotonic())
        job = self._jobs.pop(number, None)
        if job is None or job.rule not in _SHOWN_RULES:
            return
        paths = [path for path in job.outputs if path.endswith(_SHOWN_SUFFIXES)]
        self._print(f"{job.label}: {paths[0] if paths else job.outputs[0]}")

    def _refresh(self) -> None:
        while not self._ended.wait(1.0):
            with self._write_lock:
                self._show()

    def _show(self) -> None:
        """Show the progress, once a second on a terminal, else at each twentieth."""
        if self._is_stopping or self._total == 0:
            return
        if self._is_terminal:
            width = shutil.get_terminal_size().columns
            self._erase()
            self._shown = shortened(self._line(), width - 1)
            self._write(self._shown)
            return
        share = _PLAIN_SHARE * self._done // self._total
        if share > self._printed_share:
            self._printed_share = share
            self._print(self._line())

    def _line(self) -> str:
        parts = [f"{self._done} of {self._total} jobs"]
        if self._times is not None and self._done < self._total:
            parts.append(f"{duration_text(self._times.seconds_left)} left")
        running = list(self._jobs.values())
        if running:
            # The job that has run longest is the one that people wait for.
            first = running[0]
            text = first.label
            if steps := _steps_of(first):
                text = f"{text}: {steps}"
            if len(running) > 1:
                text = f"{text} (+{len(running) - 1})"
            parts.append(text)
        return ", ".join(parts[:2]) + "".join(f" | {part}" for part in parts[2:])

    def _print(self, text: str) -> None:
        self._erase()
        self._write(f"{text}\n")

    def _erase(self) -> None:
        if self._shown:
            self._write("\r\033[K")
            self._shown = ""

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the terminal was closed
            self._stream.write(text)
            self._stream.flush()


def _steps_of(job: JobLine) -> str:
    """Return the last "round 3 of 20" of a job's log; "" if it reports no steps."""
    if job.log is None:
        return ""
    steps = _STEPS.search(last_line(job.log))
    if steps is None:
        return ""
    unit = "round" if job.rule == "train" else "step"
    return f"{unit} {steps[1]} of {steps[2]}"


def _rule_label(rule: str, wildcards: Mapping[str, str]) -> str:
    return " ".join([rule.replace("_", " "), *wildcards.values()])


def shortened(text: str, width: int) -> str:
    """Return the text, with an ellipsis at its end if it is wider than `width`."""
    if len(text) <= width:
        return text
    return text[: max(0, width - 1)] + "…"


def is_no_file_notice(record: logging.LogRecord) -> bool:
    """Return False for Snakemake's notices that one configuration file extends another.

    The workflow reads ten files, and each would have such a line.
    """
    return "is extended by additional config" not in str(record.msg)


def is_no_page_warning(record: logging.LogRecord) -> bool:
    """Return False for Snakemake's warning that the page of results exists already.

    A page of the papers that are finished lies there until all are.
    """
    text = str(record.msg)
    return "were not present when the DAG was created" not in text.replace(
        "\n", " "
    ) or not text.rstrip("}'").endswith("index.html")


def install(logger: logging.Logger, stream: TextIO) -> TerminalHandler | None:
    """Replace the handler that writes Snakemake's messages to the terminal.

    Args:
        logger: Snakemake's logger.
        stream: the stream to which that handler writes.

    Returns:
        The new handler; None if a logger plugin writes to the terminal.
    """
    for inner in list(logger.handlers):
        if getattr(inner, "name", "") == "DefaultStreamHandler":
            handler = TerminalHandler(inner, stream)
            logger.removeHandler(inner)
            logger.addHandler(handler)
            os.environ[QUIET] = "yes"
            handle_interrupt(lambda: print(_STOPPED, file=stream))
            return handler
    return None


class OverProgress(io.TextIOBase):
    """Stream that writes lines to a terminal in place of the line of progress.

    Args:
        stream: stream of the terminal.
        start: start of the lines that are written. Jobs print progress to their log;
            the terminal belongs to the workflow.
    """

    def __init__(self, stream: Stream, start: str = "") -> None:
        self._stream = stream
        self._start = start
        self._pending = ""

    def write(self, text: str) -> int:
        *lines, self._pending = (self._pending + text).split("\n")
        for line in lines:
            if line.startswith(self._start):
                print_over_progress(line, self._stream)
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()


def print_over_progress(line: str, stream: Stream) -> None:
    """Print a line in place of the line of progress, which is drawn again below it."""
    if stream.isatty():
        line = f"\r\033[K{line}"
    stream.write(f"{line}\n")
    stream.flush()
