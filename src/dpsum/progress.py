"""Progress of long work: occasional lines for a terminal or the log of a job."""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Callable
from typing import TextIO

_LINES = 20
"""Number of lines where no times are printed."""


class Progress:
    """Printer of progress, rate and remaining time.

    It prints whole lines, since several jobs share a terminal. The interval between two
    lines grows with the elapsed time, so that hours of work fit on a page. Where the
    duration is private, it prints a line at each twentieth of the steps, without a
    rate.

    Args:
        label: name of the work.
        total: number of steps.
        unit: unit of the rate, e.g. "clients".
        done: number of steps finished earlier (a resumed run).
        every: least seconds between two lines at first; later a twentieth of the
            elapsed time, up to half a minute on a terminal and ten minutes in a file.
        out: output stream; by default standard error.
        timed: whether the output and its times may depend on the duration of the work.
    """

    def __init__(
        self,
        label: str,
        total: int,
        *,
        unit: str,
        done: int = 0,
        every: float = 5.0,
        out: TextIO | None = None,
        timed: bool = True,
    ) -> None:
        self._label = label
        self._total = total
        self._unit = unit
        self._every = every
        self._timed = timed
        self._out = out or sys.stderr
        if self._out.isatty():
            self._at_most = 30.0
        else:
            self._at_most = 600.0
        self._first = done
        self._start = time.monotonic()
        self._last = time.monotonic()
        self._work = 0

    def step(self, done: int, work: int, note: Callable[[], str] | None = None) -> None:
        """Report progress.

        Args:
            done: number of steps finished in all.
            work: units processed since the last call.
            note: returns a text to append to the line.
        """
        if not self._timed:
            total = max(self._total, 1)
            if _LINES * done // total > _LINES * (done - 1) // total:
                self._say(f"{self._label}: {done}/{self._total}", note)
            return
        self._work += work
        now = time.monotonic()
        share = (now - self._start) / 20
        silence = max(self._every, min(self._at_most, share))
        if now - self._last < silence and done < self._total:
            return
        self._last = now
        spent = max(now - self._start, 1e-9)
        passed = max(done - self._first, 1)
        seconds_left = spent / passed * (self._total - done)
        rate = (
            f"{self._work / spent:.1f} {self._unit}/s,"
            f" {datetime.timedelta(seconds=round(seconds_left))} left"
        )
        self._say(f"{self._label}: {done}/{self._total}, {rate}", note)

    def _say(self, line: str, note: Callable[[], str] | None) -> None:
        text = ""
        if note:
            text = note()
        if text:
            line = f"{line}, {text}"
        print(line, file=self._out, flush=True)
