"""The constant threshold that is the median norm of a run without privacy."""

import json
import math

import numpy as np
import pandas as pd
import pytest

from dpfedbench.audit.report import audit
from dpfedbench.errors import BenchError
from dpfedbench.federation.accounts import account_run
from dpfedbench.federation.engine import median_norm, train
from dpfedbench.privacy.ledger import read_ledger

from .conftest import PLAIN, make_config

MEDIAN = {"clipping": {"rule": "median-of-run", "threshold": None}}


def test_the_reference_is_the_same_run_without_privacy():
    config = make_config(MEDIAN, {"server": {"rate": 0.02}})
    assert config.reference == make_config(PLAIN, {"server": {"rate": 0.02}})
    assert config.reference.reference is None and make_config().reference is None


def test_its_threshold_is_the_median_of_that_runs_norms_and_no_epsilon_holds(federation, tmp_path):
    data, clients = federation
    config = make_config(MEDIAN)
    for name, run in (("plain", config.reference), ("private", config)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(run.to_yaml())
        train(
            run, data_dir=data, clients_dir=clients, run_dir=tmp_path / name,
            reference=tmp_path / "plain" / "history.csv",
        )  # fmt: skip
    median = float(np.median(pd.read_csv(tmp_path / "plain" / "history.csv")["norm_q50"]))
    ledger = read_ledger(tmp_path / "private" / "ledger.jsonl")
    assert {event.threshold for event in ledger} == {median}
    assert all(event.data_dependent_threshold and "without privacy" in event.reason for event in ledger)
    account_run(tmp_path / "private", tmp_path / "privacy.json", clients_dir=clients)
    holds = json.loads((tmp_path / "privacy.json").read_text())["profiles"]["holds"]
    assert holds["status"] == "void" and "without privacy" in holds["explanation"]
    assert pd.read_csv(tmp_path / "private" / "history.csv")["epsilon_holds"].map(math.isinf).all()
    notices = json.loads((tmp_path / "private" / "training.json").read_text())["notices"]
    assert any("median norm of a run without privacy" in text for text in notices)
    found = audit(config, ledger, canaries=20)
    assert math.isinf(found["epsilon_holds"]) and found["epsilon"] >= 0


def test_a_reference_that_says_nothing_is_refused(tmp_path):
    config = make_config(MEDIAN)
    with pytest.raises(BenchError, match=r"finds its threshold in the history of maml/.*give it as the reference"):
        median_norm(None, config)
    with pytest.raises(BenchError, match="cannot be read"):
        median_norm(tmp_path / "history.csv", config)
    (tmp_path / "history.csv").write_text("round,norm_q50\n1,\n2,\n")
    with pytest.raises(BenchError, match="no gradient norms"):
        median_norm(tmp_path / "history.csv", config)


@pytest.mark.parametrize(
    ("overlay", "said"),
    [
        ({"clipping": {"threshold": 0.5}}, "clipping.threshold is 0.5, but median-of-run finds it"),
        ({"clipping": {"rule": "constant"}}, "clipping.threshold is null: the rule constant needs a first threshold"),
    ],
)
def test_bad_values_are_one_line(overlay, said):
    with pytest.raises(BenchError) as caught:
        make_config(MEDIAN, overlay)
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)
