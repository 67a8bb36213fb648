"""Progress of long work: occasional lines for a terminal or the log of a job."""

import dataclasses
import datetime
import sys
import time
from collections.abc import Callable

_LINES = 20
"""Number of lines where no times are printed."""


@dataclasses.dataclass
class Progress:
    """Printer of progress, rate and remaining time on standard error.

    It prints whole lines, since several jobs share a terminal. The interval between two
    lines grows with the elapsed time, so that hours of work fit on a page: from five
    seconds to half a minute on a terminal and ten minutes in a file. Where the duration
    is private, it prints a line at each twentieth of the steps, without a rate.

    Attributes:
        label: name of the work.
        total: number of steps.
        unit: unit of the rate, e.g. "clients".
        done: number of steps finished earlier (a resumed run).
        timed: whether the output and its times may depend on the duration of the work.
    """

    label: str
    total: int
    _: dataclasses.KW_ONLY
    unit: str
    done: int = 0
    timed: bool = True

    def __post_init__(self) -> None:
        """Start the clock."""
        self._longest_silence = 30.0 if sys.stderr.isatty() else 600.0
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
        if not self.timed:
            total = max(self.total, 1)
            if _LINES * done // total > _LINES * (done - 1) // total:
                self._say(f"{self.label}: {done}/{self.total}", note)
            return
        self._work += work
        now = time.monotonic()
        share = (now - self._start) / 20
        silence = max(5.0, min(self._longest_silence, share))
        if now - self._last < silence and done < self.total:
            return
        self._last = now
        spent = max(now - self._start, 1e-9)
        passed = max(done - self.done, 1)
        seconds_left = spent / passed * (self.total - done)
        rate = (
            f"{self._work / spent:.1f} {self.unit}/s,"
            f" {datetime.timedelta(seconds=round(seconds_left))} left"
        )
        self._say(f"{self.label}: {done}/{self.total}, {rate}", note)

    def _say(self, line: str, note: Callable[[], str] | None) -> None:
        text = ""
        if note:
            text = note()
        if text:
            line = f"{line}, {text}"
        print(line, file=sys.stderr, flush=True)
