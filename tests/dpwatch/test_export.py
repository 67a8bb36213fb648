"""Exported reports: the schema holds and refuses, and metrics reach trackers."""

import dataclasses
import json
import math

import jsonschema
import numpy as np
import pytest

import dpsum
from dpsum import DpsumError
from dpwatch import export
from dpwatch.audit.anything import audited

SCHEMA = json.loads(export.SCHEMA.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def audit():
    rng = np.random.default_rng(0)

    def release(rows):
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        clipped = rows * np.minimum(1, 1 / np.maximum(norms, 1e-12))
        return clipped.sum(axis=0) + rng.standard_normal(30)

    return audited(release, dimension=30, noise_multiplier=1.0)


@pytest.fixture
def report(write_ledger, audit):
    path = write_ledger("ledger.jsonl")
    account = dpsum.account(path, delta=1e-5)
    return export.report(account=account, audit=audit, ledger=path)


def test_schema_accepts_every_report(report, audit):
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    unclaimed_audit = dataclasses.replace(audit, claimed=None, little=math.nan)
    for values in (
        report,
        export.report(account=dpsum.account([], delta=1e-5)),
        export.report(audit=unclaimed_audit),
    ):
        jsonschema.validate(values, SCHEMA)


def test_report_writes_an_infinite_epsilon_as_text(write_ledger):
    releases = [
        dataclasses.replace(release, data_dependent_threshold=True, reason="raw norms")
        for release in dpsum.read_ledger(write_ledger("ledger.jsonl"))
    ]
    values = export.report(account=dpsum.account(releases, delta=1e-5))
    jsonschema.validate(values, SCHEMA)
    assert values["account"]["profiles"]["proven"]["epsilon_high"] == "inf"
    assert export.metrics(values)["privacy/epsilon_proven"] == math.inf


def test_report_has_an_audit_that_was_read_again(report, tmp_path):
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report))
    assert export.report(audit=export.read_audit(path))["audit"] == report["audit"]
    path.write_text(json.dumps(report | {"version": 7}))
    with pytest.raises(DpsumError, match="version 1"):
        export.read_audit(path)


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_reads_the_written_metrics(report, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    export.to_tensorboard(report, tmp_path / "log", step=3)
    events = EventAccumulator(str(tmp_path / "log")).Reload()
    for name, value in export.metrics(report).items():
        (event,) = events.Tensors(name)
        assert event.step == 3
        assert event.tensor_proto.float_val[0] == pytest.approx(value, rel=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_mlflow_reads_the_logged_metrics(report, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run() as run:
        export.to_mlflow(report)
    metrics = mlflow.get_run(run.info.run_id).data.metrics
    assert metrics == pytest.approx(export.metrics(report))
