"""Skellam noise in shares: its settings, what is refused, a run with it, its history
and a restart.
"""

import csv
import math

import numpy as np
import pytest

from dpfedbench.errors import BenchError
from dpfedbench.federation.accounts import ledger_of
from dpfedbench.parts.compatibility import check_part
from dpsum import randomness
from dpsum.accounting.analyses.skellam import FACTOR
from dpsum.accounting.gaussian import gaussian_epsilon
from dpsum.ledger import read_ledger
from dpsum.skellam_noise import Skellam
from tests.dpfedbench.federation.conftest import (
    accounted,
    federation,  # noqa: F401
    make_config,
    releases_of,
    stop_before,
    train,
)

RUN = {"method": "dp-agr-secagg", "noise": {"multiplier": 2.0}}


def test_what_left_is_the_sum_of_the_clipped_with_noise_of_that_deviation():
    """Over 40,000 coordinates of 12 rounds: within 5 deviations of the deviation, false
    alarm below 1e-5.
    """
    config = make_config(RUN)
    gradients = np.zeros((48, 4000))
    gradients[:, 0] = 100.0
    seen = releases_of(config, gradients)
    left = np.stack([values[0] * 4 for _, values in seen])
    line = seen[0][0][0]
    assert left[:, 1:].std() == pytest.approx(
        line.noise_std, rel=5 / math.sqrt(2 * left[:, 1:].size)
    )
    assert left[:, 0].mean() == pytest.approx(
        4 * 0.5, abs=5 * line.noise_std / math.sqrt(12)
    )
    assert abs(np.corrcoef(left[:, 1:])[np.triu_indices(12, 1)]).max() < 6 / math.sqrt(
        4000
    )
    assert line.noise_std == 2.0 * line.sensitivity > 2.0 * 0.5


def test_a_killed_run_ends_with_the_same_bits_and_its_account_is_one_gaussians(
    federation,  # noqa: F811
    tmp_path,
    monkeypatch,
):
    config = make_config(RUN, {"noise": {"dropped": 0.25, "dropped_at_most": 0.25}})
    whole = train(config, federation, tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(stop_before(patch, 7)):
        train(config, federation, tmp_path / "killed", checkpoint_seconds=0)
    assert train(config, federation, tmp_path / "killed") == whole
    assert train(config, federation, tmp_path / "threads", threads=2) == whole
    holds = accounted(config, tmp_path / "whole", federation[1])["profiles"]["holds"]
    assert holds["epsilon_high"] == gaussian_epsilon(2.0 / FACTOR, 1e-3)
    assert (
        holds["observer"] == "server"
        and "counts 3 of 4 clients' shares" in holds["explanation"]
    )
    with open(
        tmp_path / "whole" / "history.csv", encoding="utf-8", newline=""
    ) as handle:
        rows = list(csv.DictReader(handle))
    assert {(row["wrapped"], row["dropped"], row["loss"]) for row in rows} == {
        ("0", "1", "")
    }


def test_no_stream_is_drawn_from_twice(monkeypatch):
    """Each client's noise and rounding, and each round's rotation and drop-outs; the
    ledger names the noise's.
    """
    drawn, named = [], randomness.stream
    monkeypatch.setattr(
        randomness, "stream", lambda *given: drawn.append(given) or named(*given)
    )
    seen = releases_of(make_config(RUN), np.ones((48, 3)))
    noise = {(0, "noise", index, place) for index in range(12) for place in range(4)}
    assert len(drawn) == len(set(drawn)) and noise < set(drawn)
    assert {what for _, what, *_ in drawn} == {
        "noise",
        "noise-rounding",
        "noise-rotation",
        "noise-dropout",
    }
    assert [lines[0].noise_stream for lines, _ in seen] == [
        f"0/noise/{index}" for index in range(12)
    ]


def test_a_ledger_of_other_whole_numbers_is_refused(federation, tmp_path):  # noqa: F811
    train(make_config(RUN), federation, tmp_path)
    assert (
        len(ledger_of(make_config(RUN), tmp_path))
        == len(read_ledger(tmp_path / "ledger.jsonl"))
        == 12
    )
    for other in ({"bits": 15}, {"deviations": 5.0}, {"colluding": 0.25}):
        with pytest.raises(
            BenchError, match=r"in round 0 whole numbers of query-gradient-sum of"
        ):
            ledger_of(make_config(RUN, {"noise": other}), tmp_path)


def test_a_null_multiplier_is_that_of_one_gaussian():
    """z = 2.907 for (1.5, 1e-6), where one pass with normal noise has 2.905
    (docs/privacy.md).
    """
    config = make_config(
        RUN, {"noise": {"multiplier": None}, "budget": {"epsilon": 1.5, "delta": 1e-6}}
    )
    assert releases_of(config, np.zeros((48, 2)))[0][0][0].noise_multiplier == 2.907


def test_the_percentile_of_releases_moves_the_granularity_with_the_threshold():
    seen = releases_of(
        make_config(RUN, {"clipping": "percentile-of-releases"}), np.zeros((48, 8))
    )
    first, last = seen[0][0][0], seen[-1][0][0]
    assert last.threshold != first.threshold
    assert last.secure["granularity"] / first.secure["granularity"] == pytest.approx(
        last.threshold / first.threshold
    )


@pytest.mark.parametrize(
    ("overlay", "line"),
    [
        (
            {"participation": "poisson"},
            ('participation.kind is "poisson"'),
        ),
        (
            {"participation": "balls-and-bins"},
            'participation.kind is "balls-and-bins"',
        ),
        # Its count would be a release that the server adds noise to, who may not see
        # what it is of.
        (
            {"clipping": "private-quantile"},
            'clipping.kind is "private-quantile"',
        ),
        (
            {"noise": {"kind": "fixed"}},
            'noise.kind is "fixed"',
        ),
        (
            {"noise": {"multiplier": None}},
            "noise.multiplier and budget.epsilon are both null: give one",
        ),
        (
            {"noise": {"dropped": 0.25}},
            (
                "noise.dropped is 0.25, more than noise.dropped_at_most (0.0): those"
                " who stay w"
            ),
        ),
        (
            {"noise": {"dropped": 0.3, "dropped_at_most": 0.25}},
            "noise.dropped is 0.3, more than noise.dropped_at_most (0.25)",
        ),
        (
            {"noise": {"dropped_at_most": 0.75, "colluding": 0.25}},
            "noise.dropped_at_most and noise.colluding leave no",
        ),
        ({"noise": {"colluding": 0.5}}, "noise.colluding is 0.5"),
        ({"noise": {"bits": 1}}, "noise.bits is 1"),
        (
            {"budget": {"epsilon": 1.0, "profile": "as_claimed"}},
            "budget.profile is as_claimed, but",
        ),
    ],
)
def test_bad_values_are_one_line(overlay, line):
    with pytest.raises(BenchError) as caught:
        make_config(RUN, overlay)
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value)


def test_a_modulus_too_small_stops_a_run_before_its_first_round(federation, tmp_path):  # noqa: F811
    with pytest.raises(
        BenchError,
        match=(
            r"^noise\.bits is 4, too few for the sum of 4 clients' \d+ coordinates at"
            r" z = 2"
        ),
    ):
        train(make_config(RUN, {"noise": {"bits": 4}}), federation, tmp_path)
    assert not (tmp_path / "ledger.jsonl").exists()


def test_a_delta_that_nothing_gives_is_refused():
    config = make_config(
        RUN,
        {"noise": {"multiplier": None}, "budget": {"epsilon": 1e-3, "delta": 1e-30}},
    )
    with pytest.raises(
        BenchError,
        match=r"^no noise multiplier up to 10,000 meets epsilon 0\.001 at delta 1e-30",
    ):
        releases_of(config, np.zeros((48, 2)))


def test_a_method_that_takes_more_is_refused_by_the_noise_itself():
    for kind in ("poisson", "balls-and-bins"):
        run = make_config({"method": "dp-agr"}, {"participation": kind})
        with pytest.raises(
            BenchError,
            match=(
                rf"^participation\.kind is {kind}, but the server of a secure sum knows"
            ),
        ):
            check_part(run, Skellam())


def test_several_processes_are_refused_before_anything_is_started():
    config = make_config(RUN)
    config.check_processes(1)
    with pytest.raises(
        BenchError,
        match=r"machine.processes is 2, but the sum of .* in one process: set it to 1",
    ):
        config.check_processes(2)
