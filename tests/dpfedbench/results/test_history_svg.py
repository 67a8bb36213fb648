"""Small plots of histories: which curves there are, and what their lines show."""

import re
from pathlib import Path

import numpy as np
import pytest

from dpfedbench.errors import BenchError
from dpfedbench.results.history_svg import Curve, draw, read_curves, thinned


def curve(values: list[float], seed: int = 0) -> Curve:
    return Curve(
        seed=seed, rounds=np.arange(1.0, len(values) + 1), values=np.array(values)
    )


def points(svg: str) -> list[list[tuple[float, float]]]:
    return [
        [(float(x), float(y)) for x, y in (pair.split(",") for pair in line.split())]
        for line in re.findall(r'points="([^"]+)"', svg)
    ]


def test_quantities_are_those_that_every_seed_filled_in(tmp_path: Path) -> None:
    for seed, accuracy in ((0, ",50,60"), (1, ",55,")):
        first, second, third = accuracy.split(",")
        rows = f"1,{first},2.0,\n2,{second},1.0,\n3,{third},0.5,\n"
        (tmp_path / f"{seed}.csv").write_text(
            f"round,test_accuracy,loss,threshold\n{rows}", encoding="utf-8"
        )
    both = read_curves([(0, tmp_path / "0.csv"), (1, tmp_path / "1.csv")])
    # Seed 1 has a single accuracy, nobody has a threshold.
    assert list(both) == ["loss"] and [found.seed for found in both["loss"]] == [0, 1]
    alone = read_curves([(0, tmp_path / "0.csv")])
    assert list(alone) == ["test_accuracy", "loss"]
    assert alone["test_accuracy"][0].rounds.tolist() == [2, 3] and alone[
        "test_accuracy"
    ][0].values.tolist() == [50, 60]


@pytest.mark.parametrize("text", [None, "", "seconds\n1\n"])
def test_a_damaged_history_is_one_line(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "history.csv").write_text(text, encoding="utf-8")
    with pytest.raises(
        BenchError,
        match=(
            r"history.csv (is missing|cannot be read .*: delete it and).* run the work"
        ),
    ):
        read_curves([(0, tmp_path / "history.csv")])


def test_thinning_keeps_a_peak_of_one_round() -> None:
    values = np.sin(np.arange(30_000) / 3000)
    values[12_345] = 9.0
    values[20_001] = -7.0
    kept = thinned(curve(values.tolist()), buckets=50)
    assert len(kept.values) <= 100 and (np.diff(kept.rounds) > 0).all()
    assert (
        kept.rounds[kept.values.argmax()] == 12_346
        and kept.values.max() == 9.0
        and kept.values.min() == -7.0
    )


def test_the_line_runs_from_the_first_to_the_last_round_and_from_low_to_high() -> None:
    (line,) = points(draw([curve([2.0, 4.0, 3.0])], label="loss"))
    xs, ys = zip(*line, strict=True)
    # The frame is 270 x 120 with margins of 54 and 3, 8 and 18: ys point downwards.
    assert xs == pytest.approx([54, 160.5, 267]) and ys == pytest.approx([102, 8, 55])


def test_a_level_line_is_drawn() -> None:
    (line,) = points(draw([curve([5.0, 5.0])], label="C"))
    assert [y for _, y in line] == [55, 55]


def test_an_axis_over_decades_is_logarithmic_and_says_so() -> None:
    svg = draw([curve([1.0, 10.0, 100.0])], label="norm")
    (line,) = points(svg)
    assert [y for _, y in line] == pytest.approx(
        [102, 55, 8]
    ) and "logarithmic axis" in svg
    assert "logarithmic" not in draw([curve([-1.0, 10.0, 100.0])], label="norm")


def test_each_seed_has_its_line_and_its_ends_in_words() -> None:
    svg = draw(
        [curve([1.0, 2.0]), curve([1.5, 3.0], seed=1)], label="a < b", small=True
    )
    assert len(points(svg)) == 2
    assert 'aria-label="a &lt; b, rounds 1 to 2: seed 0 1 to 2, seed 1 1.5 to 3"' in svg
