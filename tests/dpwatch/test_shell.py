"""python -m dpwatch: numbers, tables, JSON, exit codes and one-line errors."""

import json
import math
import os
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


def test_account_prints_a_table_and_writes_json(write_ledger, run, run_json, tmp_path):
    path = write_ledger("one.jsonl")
    file = tmp_path / "report.json"
    words = ["account", path, "--delta", 1e-6]
    code, out, _ = run(*words, "--json", file)
    assert code == 0
    for profile in ("proven", "replace_one", "claimed", "image_level", "tuning"):
        assert profile in out
    report = json.loads(file.read_text(encoding="utf-8"))
    jsonschema.validate(report, SCHEMA)
    exact = gaussian_epsilon(1.0, 1e-6)
    epsilon = report["account"]["profiles"]["proven"]["epsilon_high"]
    assert epsilon == pytest.approx(exact, rel=1e-9)
    assert f"{exact:.4g}" in out
    assert report["ledger"]["lines"] == 4
    assert run_json(*words) == (0, report)
    assert list(tmp_path.glob("*.part")) == []


@pytest.mark.parametrize(("limit", "expected"), [(4.5, 0), (4.3, 3)])
def test_account_exits_with_3_above_a_limit(write_ledger, run, limit, expected):
    """Epsilon at z = 1 is 4.377."""
    code, _, errors = run("account", write_ledger("one.jsonl"), "--at-most", limit)
    assert code == expected
    assert bool(errors) == (expected == 3)


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


def test_plan_states_how_wide_a_bracket_is(run):
    sizes = ["--units", 1_000_000, "--cohort", 1, "--rounds", 1_000_000]
    words = ["--noise-multiplier", 0.5, "--kind", "poisson"]
    _, out, _ = run("plan", *sizes, *words)
    text = " ".join(out.split())
    assert "above the low end (8.8 % of it), since the step of the finest grid" in text


def test_plan_names_a_participation_that_does_not_fit(run):
    words = ["plan", "--units", 1000, "--cohort", 50, "--rounds", 30]
    words += ["--noise-multiplier", 1.0]
    code, out, _ = run(*words)
    assert code == 0
    assert "one pass over the clients has fewer rounds" in " ".join(out.split())
    assert run(*words, "--at-most", 1.0)[0] == 3


def test_plan_takes_settings_of_a_participation(run_json):
    """Two known rounds 20 apart are one Gaussian of z / sqrt(2)."""
    words = ["--noise-multiplier", 1.0, "--kind", "min-separation"]
    words += ["--set", "separation=20", "--set", "participations=2"]
    sizes = ["--units", 1000, "--cohort", 50, "--rounds", 30]
    _, report = run_json("plan", *sizes, *words)
    epsilon = report["plans"][0]["epsilon_high"]
    assert epsilon == pytest.approx(gaussian_epsilon(2**-0.5, 1e-5), rel=1e-6)


@pytest.mark.parametrize(
    ("multiplier", "expected"), [(1e-3, 1e6 / 2 + 4.265 * 1e3), (1e6, 0.0)]
)
def test_plan_answers_at_the_ends_of_the_range_of_noise(run_json, multiplier, expected):
    """mu = 1 / z: epsilon is 0 at z = 1e6, as Phi(mu / 2) - Phi(-mu / 2) = 4e-7 is
    below delta; about mu^2 / 2 + 4.265 mu at z = 1e-3.
    """
    words = ["--noise-multiplier", multiplier, *ONE_PASS]
    sizes = ["--units", 1000, "--cohort", 10, "--rounds", 5]
    code, report = run_json("plan", *sizes, *words)
    assert code == 0
    epsilon = report["plans"][0]["epsilon_high"]
    assert epsilon == pytest.approx(expected, rel=1e-4)


def test_compare_finds_another_noise(write_ledger, run, run_json):
    first = write_ledger("one.jsonl")
    second = write_ledger("two.jsonl", noise_multiplier=1.25)
    code, out, _ = run("compare", first, second)
    rows = {line.split("  ")[0].strip(): line for line in out.splitlines()}
    assert code == 3
    assert rows["noise_multiplier"].endswith("differs")
    assert "differs" not in rows["threshold"]
    assert "noise_multiplier 1.0, but the other ledger has 1.25" in out
    assert f"{gaussian_epsilon(1.25, 1e-5):.4g}" in rows["epsilon proven"]
    code, report = run_json("compare", first, first)
    assert code == 0
    assert report["same"]


def test_compare_finds_another_sampler(write_ledger, run_json):
    first = write_ledger("one.jsonl")
    second = write_ledger("two.jsonl", participation=dpsum.Poisson)
    code, report = run_json("compare", first, second)
    assert code == 3
    assert "another sampler" in report["difference"]


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


def test_audit_as_a_process_passes_right_code(release_file):
    command = [sys.executable, "-m", "dpwatch", "audit", "of_mine:right", *AUDIT]
    command += ["--json", "report.json"]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "not refuted" in done.stdout
    assert done.stderr.startswith("about ")
    assert "is told with chance 0.95" in done.stderr
    report = json.loads(release_file.read_text())
    jsonschema.validate(report, SCHEMA)
    assert report["audit"]["claimed"] == pytest.approx(gaussian_epsilon(1.0, 1e-5))
    assert not report["audit"]["refuted"]


def test_audit_exits_with_3_for_half_the_noise(release_file, run):
    words = [*AUDIT, "--json", "report.json"]
    code, out, _ = run("audit", "of_mine:Mine.half", *words)
    assert code == 3
    assert "REFUTED" in out
    report = json.loads(release_file.read_text())
    jsonschema.validate(report, SCHEMA)
    assert report["audit"]["refuted"]


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
    assert run(*words, *rounds)[2].endswith("leave one out\n")


PLAN_SIZES = "plan --units 10 --cohort {} --rounds 2 --epsilon 1 {}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("account nowhere.jsonl", "nowhere.jsonl"),
        ("account {cut}", "line 4, is not a release"),
        ("account {foreign}", "line 1, is not a release"),
        ("account {empty}", "has no release"),
        (
            "account {ledger} --audit {foreign}",
            "cannot be read as a report with an audit",
        ),
        (
            "account {ledger} --json {ledger}/report.json",
            "a file lies where a folder belongs",
        ),
        ("compare {ledger} {cut}", "line 4, is not a release"),
        (PLAN_SIZES.format(20, "--kind poisson"), "no participation fits"),
        (PLAN_SIZES.format(5, "--set b"), "not KEY=VALUE"),
        (PLAN_SIZES.format(5, "--kind mine"), "no analysis"),
        ("audit math --dimension 3", "is not module:function"),
        ("audit no_such_module:f --dimension 3", "cannot be imported"),
        ("audit math:nothing --dimension 3", "has no nothing"),
        ("audit math:pi --dimension 3", "pass a function"),
        ("audit math:sqrt --dimension 3", "release fails on contributions"),
        ("audit math:sqrt --dimension 3 --kind poisson", "name --units"),
    ],
)
def test_command_reports_an_error_in_one_line(
    write_ledger, tmp_path, run, words, message
):
    text = Path(write_ledger("ledger.jsonl")).read_text(encoding="utf-8")
    (tmp_path / "cut.jsonl").write_text(text[:-40])
    (tmp_path / "foreign.jsonl").write_text('{"loss": 1.0}\n')
    (tmp_path / "empty.jsonl").write_text("")
    names = ("ledger", "cut", "foreign", "empty")
    files = {name: tmp_path / f"{name}.jsonl" for name in names}
    code, _, errors = run(*(word.format(**files) for word in words.split()))
    last_line = errors.splitlines()[-1]  # an audit prints its plan before
    assert code == 1
    assert last_line.startswith("error: ")
    assert message in last_line
    assert "Traceback" not in errors
    assert not list(tmp_path.glob("**/*.part"))


PLAN = {
    "--units": "1000",
    "--cohort": "10",
    "--rounds": "5",
    "--noise-multiplier": "1",
}
AUDIT_OPTIONS = (
    "--dimension --epsilon --delta --units --cohort --rounds --rows --calls"
    " --leak --power --false-alarm --seed --at-most"
)
OPTIONS = [
    *(("plan", option, PLAN) for option in [*PLAN, "--delta", "--at-most"]),
    *(
        ("audit math:sqrt", option, {"--dimension": "3", "--epsilon": "1"})
        for option in AUDIT_OPTIONS.split()
    ),
    ("audit math:sqrt", "--noise-multiplier", {"--dimension": "3"}),
    ("account a", "--delta", {}),
    ("account a", "--at-most", {}),
    ("compare a b", "--delta", {}),
]


@pytest.mark.parametrize(
    "value", ["nan", "inf", "-inf", "1e400", "", "x", "-1", "1e-400", "\uff11"]
)
@pytest.mark.parametrize(("command", "option", "values"), OPTIONS)
def test_command_refuses_a_number_out_of_range(capsys, command, option, values, value):
    """1e-400 is 0, which only --at-most takes. A whole number has no decimal point."""
    if option == "--at-most" and value == "1e-400":
        return
    pairs = [f"{name}={text}" for name, text in (values | {option: value}).items()]
    check_usage_error(capsys, [*command.split(), *pairs], option)


def check_usage_error(capsys, words, option):
    """Check that the command exits with 2 and names the option in one line."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    captured = capsys.readouterr()
    assert ended.value.code == 2
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert option in captured.err


def run_process(words, encoding, stdout=None):
    """Run the command with an encoding and without Python's UTF-8 mode.

    Returns exit code and standard error.
    """
    environment = os.environ | {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "dpwatch", *map(str, words)],
        env=environment,
        stdout=stdout,
        stderr=subprocess.PIPE,
        check=False,
    )
    return done.returncode, done.stderr


def test_output_has_the_same_bytes_in_every_encoding(tmp_path):
    """The message repeats the name of a missing ledger, which is not ASCII."""
    words = ["account", tmp_path / "nö-ε.jsonl"]
    code, errors = run_process(words, "utf-8")
    assert code == 1
    assert "nö-ε.jsonl is missing" in errors.decode("utf-8")
    for encoding in ("latin-1", "ascii"):
        assert run_process(words, encoding) == (1, errors)


@pytest.mark.skipif(os.name != "posix", reason="pipes and /dev/full of Unix")
def test_command_ends_quietly_at_a_closed_pipe_and_with_a_line_at_a_full_disk(
    write_ledger,
):
    words = ["account", write_ledger("one.jsonl")]
    reading, writing = os.pipe()
    os.close(reading)
    assert run_process(words, "utf-8", writing) == (141, b"")
    os.close(writing)
    if Path("/dev/full").exists():
        message = b"error: output cannot be written: No space left on device\n"
        with open("/dev/full", "wb") as full_disk:
            assert run_process(words, "utf-8", full_disk) == (1, message)
