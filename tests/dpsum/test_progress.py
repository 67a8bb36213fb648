"""Progress: whole lines, ever further apart."""

import io
import itertools

import pytest

from dpsum import progress as module
from dpsum.progress import Progress


def lines(
    monkeypatch: pytest.MonkeyPatch, *, tty: bool, hours: float = 5.0
) -> list[float]:
    """When lines come, in seconds, in work of so many hours with a step a second."""
    now, times = [0.0], []

    class Out(io.StringIO):
        def isatty(self) -> bool:
            return tty

        def write(self, text: str) -> int:
            if text != "\n":
                assert "\r" not in text
                times.append(now[0])
            return len(text)

    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    total = int(hours * 3600)
    progress = Progress("train", total, unit="clients", out=Out())
    for step in range(1, total + 1):
        now[0] = float(step)
        progress.step(step, 1)
    return times


def test_lines_in_a_log_come_ever_further_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After t seconds silence is max(5, t/20), at most 600: 20 lines in the first 100
    s, then growth by 1/19 each.
    """
    times = lines(monkeypatch, tty=False)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times[:-1])]
    assert times[:3] == [5, 10, 15] and times[-1] == 5 * 3600
    assert gaps == sorted(gaps) and 400 < gaps[-1] <= 600
    # 20 lines until 100 s; then ln(12000/100)/ln(20/19) = 93 until silence is 600 s;
    # 6000/600 = 10 more; all rounded up to whole seconds, so rather fewer. In lines of
    # 5 s it would be 3,600.
    assert 100 < len(times) < 130


@pytest.mark.parametrize("total", [7, 20, 250])
def test_work_without_times_has_lines_at_twentieths_whatever_the_clock_says(
    monkeypatch: pytest.MonkeyPatch, total: int
) -> None:
    said = []
    for pace in (0.001, 1000.0):
        now, out = itertools.count(step=pace), io.StringIO()
        monkeypatch.setattr(module.time, "monotonic", lambda now=now: next(now))
        progress = Progress("train", total, unit="clients", out=out, timed=False)
        for step in range(1, total + 1):
            progress.step(step, 400, lambda: "z 1")
        said.append(out.getvalue().splitlines())
    expected = sorted(
        {-(-part * total // 20) for part in range(1, 21)}
    )  # the first step at each twentieth or beyond
    assert said[0] == said[1] == [f"train: {step}/{total}, z 1" for step in expected]
    assert len(said[0]) == min(total, 20)


def test_on_a_terminal_half_a_minute_is_the_longest_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = lines(monkeypatch, tty=True, hours=1)
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) == 30
