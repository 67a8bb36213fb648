"""The constant threshold that is the median norm of a run without privacy."""

import math

import numpy as np
import pytest

from dpfedbench.audit.report import audit
from dpfedbench.errors import BenchError
from dpfedbench.parts.clipping.reference import MedianOfRun

from .conftest import (
    PLAIN,
    accounted,
    history_in,
    ledger_in,
    make_config,
    stop_before,
    train,
    training_in,
)

MEDIAN = {"clipping": {"kind": "median-of-run", "threshold": None}}


def write_history(folder, *medians):
    path = folder / "history.csv"
    rows = [f"{index},{median}" for index, median in enumerate(medians, start=1)]
    path.write_text("\n".join(["round,norm_q50", *rows, ""]))
    return path


def test_median_of_run_refers_to_the_same_run_without_privacy():
    rate = {"server": {"rate": 0.02}}
    reference = {"history.csv": make_config(PLAIN, rate)}
    assert make_config(MEDIAN, rate).references == reference
    assert make_config(PLAIN).references == make_config().references == {}


def test_median_of_run_clips_at_the_median_and_proves_no_epsilon(federation, tmp_path):
    config = make_config(MEDIAN)
    train(config.references["history.csv"], federation, tmp_path / "plain")
    run_dir = tmp_path / "private"
    references = {"history.csv": tmp_path / "plain" / "history.csv"}
    train(config, federation, run_dir, references=references)
    median = float(np.median(history_in(tmp_path / "plain")["norm_q50"]))
    ledger = ledger_in(run_dir)
    for line in ledger:
        assert line.threshold == median
        assert line.data_dependent_threshold
        assert "without privacy" in line.reason
    proof = accounted(config, run_dir, federation[1])["profiles"]["proven"]
    assert proof["status"] == "void"
    assert "without privacy" in proof["explanation"]
    assert history_in(run_dir)["epsilon_proven"].map(math.isinf).all()
    notices = training_in(run_dir)["notices"]
    assert any("median norm of a run without privacy" in text for text in notices)
    report = audit(config, ledger, canaries=20)
    assert math.isinf(report["epsilon_proven"])
    assert report["epsilon"] >= 0


def test_checkpoint_of_another_median_is_refused(federation, tmp_path, monkeypatch):
    """The reference run was trained again and has another median. A run must not mix
    the two.
    """
    run_dir = tmp_path / "run"
    references = {"history.csv": write_history(tmp_path, 2)}
    config = make_config(MEDIAN)
    with monkeypatch.context() as patch, pytest.raises(stop_before(patch, 3)):
        train(config, federation, run_dir, 1, 0, references=references)
    write_history(tmp_path, 3)
    message = r"belongs to another run \(its threshold differ\)"
    with pytest.raises(BenchError, match=message):
        train(config, federation, run_dir, references=references)


def test_first_threshold_is_the_median_over_rounds_of_the_cohorts_medians(tmp_path):
    """A round without clients has no median."""
    path = write_history(tmp_path, 10, "", 1, 2)
    assert MedianOfRun().first_threshold(path, make_config(MEDIAN)) == 2.0
