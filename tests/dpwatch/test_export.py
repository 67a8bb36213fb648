"""What is exported: the schema holds and refuses, metrics reach their trackers."""

import copy
import dataclasses
import json
import math
import sys
import types

import jsonschema
import numpy as np
import pytest

import dpsum
from dpsum.errors import DpsumError
from dpwatch import export
from dpwatch.audit.anything import audited

SCHEMA = json.loads(export.SCHEMA.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def audit():
    rng = np.random.default_rng(0)

    def release(rows):
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        return (rows * np.minimum(1, 1 / np.maximum(norms, 1e-12))).sum(
            axis=0
        ) + rng.standard_normal(30)

    return audited(release, dimension=30, noise_multiplier=1.0)


@pytest.fixture
def report(write_ledger, audit):
    path = write_ledger("ledger.jsonl")
    return export.report(
        account=dpsum.account(path, delta=1e-5), audit=audit, ledger=path
    )


def test_the_schema_is_of_what_is_written(report, write_ledger, audit):
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    jsonschema.validate(report, SCHEMA)
    nothing = dpsum.account([], delta=1e-5)
    jsonschema.validate(export.report(account=nothing), SCHEMA)
    jsonschema.validate(
        export.report(audit=dataclasses.replace(audit, claimed=None, little=math.nan)),
        SCHEMA,
    )


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (["version"], 2),
        (["account", "profiles", "holds", "epsilon_high"], "4.4"),
        (["account", "profiles", "holds", "status"], "fine"),
        (["account", "profiles", "mine"], {}),
        (["account", "delta"], 0),
        (["audit", "epsilon"], None),
        (["audit", "attacks"], []),
        (["ledger", "head"], "abc"),
    ],
)
def test_the_schema_refuses_what_is_not(report, where, value):
    damaged = copy.deepcopy(report)
    *path, last = where
    inside = damaged
    for key in path:
        inside = inside[key]
    inside[last] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(damaged, SCHEMA)


def test_an_account_without_a_bound_is_written_as_text(report, write_ledger):
    releases = dpsum.read_ledger(write_ledger("other.jsonl"))
    raw = [
        dataclasses.replace(
            event, data_dependent_threshold=True, reason="C of raw norms"
        )
        for event in releases
    ]
    found = export.report(account=dpsum.account(raw, delta=1e-5))
    jsonschema.validate(found, SCHEMA)
    assert found["account"]["profiles"]["holds"]["epsilon_high"] == "inf"
    assert export.metrics(found)["privacy/epsilon_proven"] == math.inf


def test_an_audit_is_read_again(report, tmp_path):
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report))
    assert export.report(audit=export.read_audit(path))["audit"] == report["audit"]
    path.write_text(json.dumps(report | {"version": 7}))
    with pytest.raises(DpsumError, match="version 1"):
        export.read_audit(path)


def test_metrics_reach_a_client_as_it_takes_them(report, monkeypatch):
    """Where no client is installed, at least what it would be called with."""
    logged = {}
    client = types.SimpleNamespace(
        log_metrics=lambda metrics, step: logged.update(metrics, step=step)
    )
    monkeypatch.setitem(sys.modules, "mlflow", client)
    export.to_mlflow(report, step=7)
    assert logged["step"] == 7 and logged["privacy/epsilon_proven"] == pytest.approx(
        4.377, abs=1e-3
    )
    assert logged["privacy/audit_refuted"] == 0.0 and logged["privacy/rounds"] == 4


def test_a_client_that_is_missing_is_named(report, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.setitem(sys.modules, "tensorboard.summary", None)
    with pytest.raises(DpsumError, match="pip install mlflow-skinny"):
        export.to_mlflow(report)
    with pytest.raises(DpsumError, match="pip install tensorboard"):
        export.to_tensorboard(report, tmp_path)
    assert not list(tmp_path.glob("events*"))


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_reads_what_was_written(report, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    export.to_tensorboard(report, tmp_path / "log", step=3)
    read = EventAccumulator(str(tmp_path / "log")).Reload()
    for name, value in export.metrics(report).items():
        (event,) = read.Tensors(f"{name}")
        assert event.step == 3 and event.tensor_proto.float_val[0] == pytest.approx(
            value, rel=1e-6
        )


@pytest.mark.filterwarnings("ignore")
def test_mlflow_reads_what_was_logged(report, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run() as run:
        export.to_mlflow(report)
    assert mlflow.get_run(run.info.run_id).data.metrics == pytest.approx(
        export.metrics(report)
    )
