"""The constant threshold that is the median norm of a run without privacy."""

import json
import math

import numpy as np
import pandas as pd
import pytest

from dpfedbench.audit.report import audit
from dpfedbench.errors import BenchError
from dpfedbench.parts.clipping.median_of_run import MedianOfRun
from dpsum.ledger import read_ledger

from .conftest import PLAIN, accounted, make_config, stop_before, train

MEDIAN = {"clipping": {"kind": "median-of-run", "threshold": None}}


def test_the_reference_is_the_same_run_without_privacy():
    config = make_config(MEDIAN, {"server": {"rate": 0.02}})
    assert config.references == {
        "history.csv": make_config(PLAIN, {"server": {"rate": 0.02}})
    }
    assert make_config(PLAIN).references == make_config().references == {}


def test_its_threshold_is_the_median_of_that_runs_norms_and_no_epsilon_proven(
    federation, tmp_path
):
    config = make_config(MEDIAN)
    (plain,) = config.references.values()
    train(plain, federation, tmp_path / "plain")
    train(
        config,
        federation,
        tmp_path / "private",
        references={"history.csv": tmp_path / "plain" / "history.csv"},
    )
    median = float(
        np.median(pd.read_csv(tmp_path / "plain" / "history.csv")["norm_q50"])
    )
    ledger = read_ledger(tmp_path / "private" / "ledger.jsonl")
    assert {event.threshold for event in ledger} == {median}
    assert all(
        event.data_dependent_threshold and "without privacy" in event.reason
        for event in ledger
    )
    holds = accounted(config, tmp_path / "private", federation[1])["profiles"]["holds"]
    assert holds["status"] == "void" and "without privacy" in holds["explanation"]
    assert (
        pd.read_csv(tmp_path / "private" / "history.csv")["epsilon_proven"]
        .map(math.isinf)
        .all()
    )
    notices = json.loads((tmp_path / "private" / "training.json").read_text())[
        "notices"
    ]
    assert any("median norm of a run without privacy" in text for text in notices)
    found = audit(config, ledger, canaries=20)
    assert math.isinf(found["epsilon_proven"]) and found["epsilon"] >= 0


def test_a_checkpoint_of_another_threshold_is_refused(
    federation, tmp_path, monkeypatch
):
    """The run without privacy was trained again, and its median is another: half a run
    of each is no run.
    """
    (tmp_path / "history.csv").write_text("round,norm_q50\n1,2\n")
    files = {"references": {"history.csv": tmp_path / "history.csv"}}
    with monkeypatch.context() as patch, pytest.raises(stop_before(patch, 3)):
        train(
            make_config(MEDIAN),
            federation,
            tmp_path / "run",
            checkpoint_seconds=0,
            **files,
        )
    (tmp_path / "history.csv").write_text("round,norm_q50\n1,3\n")
    with pytest.raises(
        BenchError, match=r"belongs to another run \(its threshold differ\)"
    ):
        train(make_config(MEDIAN), federation, tmp_path / "run", **files)


def test_the_median_is_over_rounds_of_the_cohorts_medians(tmp_path):
    """Of 1, 2 and 10 it is 2; a round without clients has none."""
    (tmp_path / "history.csv").write_text("round,norm_q50\n1,10\n2,\n3,1\n4,2\n")
    assert (
        MedianOfRun().first_threshold(tmp_path / "history.csv", make_config(MEDIAN))
        == 2.0
    )


def test_a_reference_that_says_nothing_is_refused(federation, tmp_path):
    config, rule = make_config(MEDIAN), MedianOfRun()
    with pytest.raises(
        BenchError, match=r"needs history\.csv of maml/.*give it as a reference"
    ):
        train(config, federation, tmp_path / "run")
    (tmp_path / "history.csv").write_text("round,norm_q50\n1,\n2,\n")
    with pytest.raises(BenchError, match="no gradient norms"):
        rule.first_threshold(tmp_path / "history.csv", config)
