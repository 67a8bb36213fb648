"""Progress: how often a line is printed."""

import io
import itertools

import pytest

from dpsum import progress as progress_module
from dpsum.progress import Progress


class Clock(io.StringIO):
    """Output that records the time of each line; it is also the clock."""

    def __init__(self, is_terminal):
        super().__init__()
        self.seconds = 0.0
        self.times = []
        self.is_terminal = is_terminal

    def isatty(self):
        return self.is_terminal

    def write(self, text):
        if text != "\n":
            assert "\r" not in text
            self.times.append(self.seconds)
        return len(text)


def times_of_lines(monkeypatch, *, is_terminal, hours):
    """Return the seconds at which lines are printed, with one step a second."""
    clock = Clock(is_terminal)
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: clock.seconds)
    steps = int(hours * 3600)
    progress = Progress("train", steps, unit="clients", out=clock)
    for step in range(1, steps + 1):
        clock.seconds = float(step)
        progress.step(step, 1)
    return clock.times


def test_progress_in_a_log_prints_ever_less_often(monkeypatch):
    """Silence after t seconds is max(5, t/20), at most 600: 20 lines until 100 s, then
    ln(12000/100) / ln(20/19) = 93 until silence is 600 s, then ten more; fewer because
    of whole seconds. Lines every 5 s would be 3,600.
    """
    times = times_of_lines(monkeypatch, is_terminal=False, hours=5)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times[:-1])]
    assert times[:3] == [5, 10, 15]
    assert times[-1] == 5 * 3600
    assert gaps == sorted(gaps)
    assert 400 < gaps[-1] <= 600
    assert 100 < len(times) < 130


def test_progress_on_a_terminal_is_silent_for_half_a_minute_at_most(monkeypatch):
    times = times_of_lines(monkeypatch, is_terminal=True, hours=1)
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) == 30


@pytest.mark.parametrize("steps", [7, 20, 250])
def test_progress_without_times_ignores_the_clock(monkeypatch, steps):
    """Lines stand at the first step at or after each twentieth."""
    outputs = []
    for seconds in (0.001, 1000.0):
        clock = itertools.count(step=seconds)
        monkeypatch.setattr(progress_module.time, "monotonic", clock.__next__)
        out = io.StringIO()
        progress = Progress("train", steps, unit="clients", out=out, timed=False)
        for step in range(1, steps + 1):
            progress.step(step, 400, lambda: "z 1")
        outputs.append(out.getvalue().splitlines())
    printed_steps = sorted({-(-twentieth * steps // 20) for twentieth in range(1, 21)})
    expected = [f"train: {step}/{steps}, z 1" for step in printed_steps]
    assert outputs == [expected, expected]
