"""python -m dpwatch: numbers, tables, JSON, exit codes and one-line errors."""

import json
import math
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from scipy.optimize import brentq
from scipy.special import ndtr

import dpsum
from dpwatch import export
from dpwatch.__main__ import main

SCHEMA = json.loads(export.SCHEMA.read_text(encoding="utf-8"))
ONE_PASS = ["--kind", "one-pass"]
SIZES = ["--units", 1000, "--cohort", 50, "--rounds", 20]


def gaussian_epsilon(z, delta):
    """Return epsilon of one Gaussian (Balle and Wang 2018, Theorem 8)."""

    def excess(epsilon):
        second = math.exp(epsilon) * ndtr(-0.5 / z - epsilon * z)
        return ndtr(0.5 / z - epsilon * z) - second - delta

    return brentq(excess, 0, 50)


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


def test_account_prints_a_table_and_writes_json(write_ledger, run, tmp_path):
    path = write_ledger("one.jsonl")
    file = tmp_path / "report.json"
    code, out, _ = run("account", path, "--delta", 1e-6, "--json", file)
    assert code == 0
    for profile in ("proven", "replace_one", "claimed", "image_level", "tuning"):
        assert profile in out
    report = json.loads(file.read_text(encoding="utf-8"))
    jsonschema.validate(report, SCHEMA)
    exact = gaussian_epsilon(1.0, 1e-6)
    epsilon = report["account"]["profiles"]["proven"]["epsilon_high"]
    assert epsilon == pytest.approx(exact, rel=1e-9)
    assert f"{exact:.4g}" in out


@pytest.mark.parametrize(("limit", "expected"), [(4.5, 0), (4.3, 3)])
def test_account_exits_with_3_above_a_limit(write_ledger, run, limit, expected):
    """Epsilon at z = 1 is 4.377."""
    code, _, _ = run("account", write_ledger("one.jsonl"), "--at-most", limit)
    assert code == expected


def poisson_epsilon(z):
    """Return dp_accounting's epsilon of 20 rounds at a rate of 1/20."""
    dp_accounting = pytest.importorskip("dp_accounting")
    gaussian = dp_accounting.GaussianDpEvent(z)
    event = dp_accounting.PoissonSampledDpEvent(0.05, gaussian)
    return dp_accounting.pld.PLDAccountant().compose(event, 20).get_epsilon(1e-5)


def test_plan_finds_epsilon_by_participation(run_json):
    code, report = run_json("plan", *SIZES, "--noise-multiplier", 1.1)
    plans = plans_of(report)
    assert code == 0
    assert {"balls-and-bins", "poisson-lots"} <= set(plans)
    one_pass = plans["one-pass"]["epsilon_high"]
    assert one_pass == pytest.approx(gaussian_epsilon(1.1, 1e-5), rel=1e-9)
    poisson = plans["poisson"]["epsilon_high"]
    assert poisson == pytest.approx(poisson_epsilon(1.1), abs=1e-3)


def test_plan_finds_noise_by_participation(run_json):
    kinds = [*ONE_PASS, "--kind", "poisson"]
    _, report = run_json("plan", *SIZES, "--epsilon", 2.0, *kinds)
    multipliers = {
        name: row["noise_multiplier"] for name, row in plans_of(report).items()
    }
    assert set(multipliers) == {"one-pass", "poisson"}
    z = multipliers["one-pass"]
    assert gaussian_epsilon(z, 1e-5) <= 2.0 < gaussian_epsilon(z * 0.999, 1e-5)
    epsilon = poisson_epsilon(multipliers["poisson"])
    assert epsilon == pytest.approx(2.0, abs=2e-3)


def test_plan_takes_settings_of_a_participation(run_json):
    """Two known rounds 20 apart are one Gaussian of z / sqrt(2)."""
    words = ["--noise-multiplier", 1.0, "--kind", "min-separation"]
    words += ["--set", "separation=20", "--set", "participations=2"]
    sizes = ["--units", 1000, "--cohort", 50, "--rounds", 30]
    _, report = run_json("plan", *sizes, *words)
    epsilon = report["plans"][0]["epsilon_high"]
    assert epsilon == pytest.approx(gaussian_epsilon(2**-0.5, 1e-5), rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"noise_multiplier": 1.25}, "1.0, but the other ledger has 1.25"),
        ({"participation": dpsum.Poisson}, "another sampler"),
    ],
)
def test_compare_finds_another_noise_or_sampler(
    write_ledger, run_json, changes, difference
):
    first = write_ledger("one.jsonl")
    code, report = run_json("compare", first, first)
    assert (code, report["same"]) == (0, True)
    code, report = run_json("compare", first, write_ledger("two.jsonl", **changes))
    assert code == 3
    assert difference in report["difference"]


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
        assert report["audit"]["claimed"] == pytest.approx(gaussian_epsilon(1.0, 1e-5))
        assert report["audit"]["refuted"] == (code == 3)


def test_audit_takes_rounds_or_a_participation(release_file, run):
    rounds = ["--kind", "poisson", "--units", 1000, "--cohort", 100, "--rounds", 10]
    words = ["audit", "of_mine:right", *AUDIT]
    code, out, _ = run(*words, *rounds, "--at-most", 0.1)
    assert code == 3
    assert "not refuted" in out
    words += ["--participation", "of_mine:plan", "--calls", 100]
    code, out, plan = run(*words)
    assert code == 0
    assert "over rounds" in out
    assert "as the participation draws them" in plan


@pytest.mark.parametrize("content", ["", '{"loss": 1.0}\n', "cut"])
def test_account_refuses_a_ledger_that_is_not_whole(write_ledger, run, content):
    path = Path(write_ledger("ledger.jsonl"))
    if content == "cut":
        content = path.read_text(encoding="utf-8")[:-40]
    path.write_text(content, encoding="utf-8")
    code, out, errors = run("account", path)
    assert (code, out) == (1, "")
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1


@pytest.mark.parametrize("value", ["nan", "inf", "", "-1"])
@pytest.mark.parametrize("option", ["--delta", "--at-most"])
def test_account_refuses_a_number_out_of_range(capsys, option, value):
    """No comparison with NaN would ever fail a limit."""
    with pytest.raises(SystemExit) as ended:
        main(["account", "a", f"{option}={value}"])
    assert ended.value.code == 2
    assert capsys.readouterr().out == ""
