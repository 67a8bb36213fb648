"""Skellam noise in clients' shares: releases, streams, ledger, refusals, restart."""

import math

import numpy as np
import pytest

from dpfedbench.errors import BenchError
from dpfedbench.parts.compatibility import check_processes
from dpfedbench.training.accounts import ledger_of
from dploss.gaussian import gaussian_epsilon
from dpsum.accounting.analyses.skellam import FACTOR
from tests.dpfedbench.training import conftest
from tests.dpfedbench.training.conftest import make_config, releases_of, train

RUN = {"method": "dp-agr-secagg", "noise": {"multiplier": 2.0}}


def test_skellam_release_is_the_clipped_sum_with_noise_of_the_stated_deviation():
    """40,000 coordinates of 12 rounds: within 5 deviations, false alarm below 1e-5."""
    gradients = np.zeros((48, 4000))
    gradients[:, 0] = 100.0
    by_round = releases_of(make_config(RUN), gradients)
    sums = np.stack([means[0] * 4 for _, means in by_round])
    (line,), _ = by_round[0]
    noise = sums[:, 1:]
    error = 5 / math.sqrt(2 * noise.size)
    assert noise.std() == pytest.approx(line.noise_std, rel=error)
    error = 5 * line.noise_std / math.sqrt(12)
    assert sums[:, 0].mean() == pytest.approx(4 * 0.5, abs=error)
    assert line.noise_std == 2.0 * line.sensitivity > 2.0 * 0.5


def test_skellam_run_resumes_with_the_same_bits_and_is_one_gaussian(
    federation, tmp_path, monkeypatch
):
    config = make_config(RUN, {"noise": {"dropped": 0.25, "dropped_at_most": 0.25}})
    whole = train(config, federation, tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(conftest.stop_before(patch, 7)):
        train(config, federation, tmp_path / "killed", checkpoint_seconds=0)
    assert train(config, federation, tmp_path / "killed") == whole
    assert train(config, federation, tmp_path / "threads", threads=2) == whole
    account = conftest.accounted(config, tmp_path / "whole", federation[1])
    proof = account["profiles"]["proven"]
    assert proof["epsilon_high"] == gaussian_epsilon(2.0 / FACTOR, 1e-3)
    assert proof["observer"] == "server"
    assert "counts 3 of 4 clients' shares" in proof["explanation"]
    history = conftest.history_in(tmp_path / "whole")
    assert set(history["wrapped"]) == {0}
    assert set(history["dropped"]) == {1}
    assert history["loss"].isna().all()


def test_skellam_streams_are_never_used_twice(monkeypatch):
    """The ledger names the streams of each client's noise."""
    streams = conftest.watch_streams(monkeypatch)
    by_round = releases_of(make_config(RUN), np.ones((48, 3)))
    noise = {(0, "noise", index, share) for index in range(12) for share in range(4)}
    assert len(streams) == len(set(streams))
    assert noise < set(streams)
    purposes = {purpose for _, purpose, *_ in streams}
    kinds = ("-rounding", "-rotation", "-dropout")
    assert purposes == {"noise", *(f"noise{kind}" for kind in kinds)}
    names = [lines[0].noise_stream for lines, _ in by_round]
    assert names == [f"0/noise/{index}" for index in range(12)]


def test_skellam_ledger_of_other_whole_numbers_is_refused(federation, tmp_path):
    train(make_config(RUN), federation, tmp_path)
    assert len(ledger_of(make_config(RUN), tmp_path)) == 12
    message = r"in round 0 whole numbers of query-gradient-sum of"
    for change in ({"bits": 15}, {"deviations": 5.0}, {"colluding": 0.25}):
        with pytest.raises(BenchError, match=message):
            ledger_of(make_config(RUN, {"noise": change}), tmp_path)


def test_skellam_granularity_moves_with_the_threshold():
    config = make_config(RUN, {"clipping": "percentile-of-releases"})
    by_round = releases_of(config, np.zeros((48, 8)))
    (first,), _ = by_round[0]
    (last,), _ = by_round[-1]
    assert last.threshold != first.threshold
    ratio = last.secure["granularity"] / first.secure["granularity"]
    assert ratio == pytest.approx(last.threshold / first.threshold)


def test_skellam_run_by_several_processes_is_refused():
    config = make_config(RUN)
    check_processes(config, 1)
    with pytest.raises(BenchError, match=r"machine.processes is 2, .*: set it to 1"):
        check_processes(config, 2)
