"""python -m dpwatch and its reports: numbers, JSON, exit codes and one-line errors."""

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path

import dp_accounting
import jsonschema
import pytest
from closed_forms import sampled_gaussian_epsilon
from example_mechanisms import audit_at_z_1, mechanism

import dpsum
from dpwatch import export
from dpwatch.__main__ import main

SCHEMA = json.loads(export.SCHEMA.read_text(encoding="utf-8"))
ONE_PASS = ["--kind", "one-pass"]
SIZES = ["--units", 1000, "--cohort", 50, "--rounds", 20]


def gaussian_epsilon(z, delta=1e-5):
    return sampled_gaussian_epsilon(z, 1.0, delta)


@pytest.fixture
def run(capsys):
    """Run the command; return its exit code, standard output and standard error."""

    def run_command(*words):
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_command


@pytest.fixture
def run_json(run):
    """Run the command with JSON on standard output; return exit code and report."""

    def run_command(*words):
        code, out, _ = run(*words, "--json", "-")
        return code, json.loads(out)

    return run_command


def plans_of(report):
    return {row["participation"]: row for row in report["plans"]}


def test_account_writes_epsilon_and_exits_with_3_above_a_limit(
    write_ledger, run, tmp_path
):
    """Epsilon at z = 1 is 4.377 at delta = 1e-5."""
    path = write_ledger("one.jsonl")
    file = tmp_path / "report.json"
    code, out, _ = run("account", path, "--delta", 1e-6, "--json", file)
    assert code == 0
    report = json.loads(file.read_text(encoding="utf-8"))
    jsonschema.validate(report, SCHEMA)
    exact = gaussian_epsilon(1.0, 1e-6)
    epsilon = report["account"]["profiles"]["proven"]["epsilon_high"]
    assert epsilon == pytest.approx(exact, rel=1e-9)
    assert f"{exact:.4g}" in out
    for limit, code in ((4.5, 0), (4.3, 3)):
        assert run("account", path, "--at-most", limit)[0] == code


def poisson_epsilon(z):
    """Return dp_accounting's epsilon of 20 rounds at a rate of 1/20."""
    gaussian = dp_accounting.GaussianDpEvent(z)
    event = dp_accounting.PoissonSampledDpEvent(0.05, gaussian)
    return dp_accounting.pld.PLDAccountant().compose(event, 20).get_epsilon(1e-5)


def test_plan_finds_epsilon_by_participation(run_json):
    code, report = run_json("plan", *SIZES, "--noise-multiplier", 1.1)
    plans = plans_of(report)
    assert code == 0
    assert {"balls-and-bins", "poisson-lots"} <= set(plans)
    one_pass = plans["one-pass"]["epsilon_high"]
    assert one_pass == pytest.approx(gaussian_epsilon(1.1), rel=1e-9)
    poisson = plans["poisson"]["epsilon_high"]
    assert poisson == pytest.approx(poisson_epsilon(1.1), abs=1e-3)


def test_plan_finds_noise_by_participation(run_json):
    kinds = [*ONE_PASS, "--kind", "poisson"]
    _, report = run_json("plan", *SIZES, "--epsilon", 2.0, *kinds)
    plans = plans_of(report)
    multipliers = {name: row["noise_multiplier"] for name, row in plans.items()}
    assert set(multipliers) == {"one-pass", "poisson"}
    z = multipliers["one-pass"]
    assert gaussian_epsilon(z) <= 2.0 < gaussian_epsilon(z * 0.999)
    epsilon = poisson_epsilon(multipliers["poisson"])
    assert epsilon == pytest.approx(2.0, abs=2e-3)


def test_plan_takes_settings_of_a_participation(run_json):
    """Two known rounds 20 apart are one Gaussian of z / sqrt(2)."""
    words = ["--noise-multiplier", 1.0, "--kind", "min-separation", "--rounds", 30]
    words += ["--set", "separation=20", "--set", "participations=2"]
    _, report = run_json("plan", "--units", 1000, "--cohort", 50, *words)
    epsilon = report["plans"][0]["epsilon_high"]
    assert epsilon == pytest.approx(gaussian_epsilon(2**-0.5), rel=1e-6)


RELEASE = """
import numpy as np
RNG = np.random.default_rng(0)
def right(rows, scale=1.0):
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    total = (rows * np.minimum(1, 1 / np.maximum(norms, 1e-12))).sum(axis=0)
    return total + scale * RNG.standard_normal(30)
def plan(seed):
    import dpsum
    return dpsum.Poisson(units=100, cohort=10, rounds=10, seed=seed)
class Mine:
    @staticmethod
    def half(rows):
        return right(rows, 0.5)
"""
AUDIT = ["--dimension", "30", "--noise-multiplier", "1.0"]


@pytest.fixture
def release_file(tmp_path, monkeypatch):
    (tmp_path / "of_mine.py").write_text(RELEASE)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "report.json"


def test_audit_as_a_process_passes_right_code_and_refutes_half_the_noise(release_file):
    for name, code in (("right", 0), ("Mine.half", 3)):
        command = [sys.executable, "-m", "dpwatch", "audit", f"of_mine:{name}", *AUDIT]
        command += ["--json", "report.json"]
        done = subprocess.run(command, text=True, capture_output=True, check=False)
        assert done.returncode == code, done.stderr
        report = json.loads(release_file.read_text())
        jsonschema.validate(report, SCHEMA)
        assert report["audit"]["claimed"] == pytest.approx(gaussian_epsilon(1.0))
        assert report["audit"]["refuted"] == (code == 3)


def test_audit_takes_a_participation(release_file, run):
    words = ["audit", "of_mine:right", *AUDIT, "--calls", 100]
    words += ["--participation", "of_mine:plan"]
    code, out, plan = run(*words)
    assert (code, "over rounds" in out) == (0, True)
    assert run(*words, "--at-most", 0.001)[0] == 3
    assert "as the participation draws them" in plan


@pytest.mark.parametrize("content", ['{"loss": 1.0}\n', "cut"])
def test_account_refuses_a_ledger_that_is_not_whole(write_ledger, run, content):
    path = Path(write_ledger("ledger.jsonl"))
    if content == "cut":
        content = path.read_text(encoding="utf-8")[:-40]
    path.write_text(content, encoding="utf-8")
    code, out, errors = run("account", path)
    assert (code, out, errors.count("\n")) == (1, "", 1)
    assert errors.startswith("error: ")


@pytest.mark.parametrize("value", ["nan", "inf", "", "-1"])
@pytest.mark.parametrize("option", ["--delta", "--at-most"])
def test_account_refuses_a_number_out_of_range(capsys, option, value):
    """No comparison with NaN would ever fail a limit."""
    with pytest.raises(SystemExit) as ended:
        main(["account", "a", f"{option}={value}"])
    assert ended.value.code == 2
    assert capsys.readouterr().out == ""


# Reports


@pytest.fixture(scope="module")
def audit():
    return audit_at_z_1(mechanism())


@pytest.fixture
def report(write_ledger, audit):
    path = write_ledger("ledger.jsonl")
    account = dpsum.account(path, delta=1e-5)
    return export.report(account=account, audit=audit, ledger=path)


def test_schema_accepts_every_report(report, audit):
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    unclaimed_audit = dataclasses.replace(audit, claimed=None, little=math.nan)
    no_account = export.report(account=dpsum.account([], delta=1e-5))
    for values in (report, no_account, export.report(audit=unclaimed_audit)):
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


def test_metrics_of_a_report_are_its_numbers_by_name(report, audit):
    metrics = export.metrics(report)
    assert metrics["privacy/epsilon_proven"] == pytest.approx(gaussian_epsilon(1.0))
    assert metrics["privacy/audit_epsilon"] == audit.epsilon
    assert metrics["privacy/audit_refuted"] == 0.0
