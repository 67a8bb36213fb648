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


def gaussian_epsilon(z, delta):
    """Balle and Wang 2018, Theorem 8."""
    return brentq(
        lambda e: ndtr(0.5 / z - e * z) - math.exp(e) * ndtr(-0.5 / z - e * z) - delta,
        0,
        50,
    )


def run(capsys, *words):
    """Exit code, standard output, standard error."""
    code = main([str(word) for word in words])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_account_prints_a_table_and_writes_json(write_ledger, capsys, tmp_path):
    path, out = write_ledger("one.jsonl"), tmp_path / "report.json"
    code, said, _ = run(capsys, "account", path, "--delta", 1e-6, "--json", out)
    assert code == 0 and all(
        name in said
        for name in ("holds", "replace_one", "as_claimed", "image_level", "tuning")
    )
    report = json.loads(out.read_text(encoding="utf-8"))
    jsonschema.validate(report, SCHEMA)
    exact = gaussian_epsilon(1.0, 1e-6)
    assert report["account"]["profiles"]["holds"]["epsilon_high"] == pytest.approx(
        exact, rel=1e-9
    )
    assert f"{exact:.4g}" in said and report["ledger"]["lines"] == 4
    code, said, _ = run(capsys, "account", path, "--delta", 1e-6, "--json", "-")
    assert json.loads(said) == report
    assert list(tmp_path.glob("*.part")) == []


@pytest.mark.parametrize(("most", "code"), [(4.5, 0), (4.3, 3)])
def test_at_most_is_for_continuous_integration(write_ledger, capsys, most, code):
    """4.377 at z = 1."""
    found, _, errors = run(
        capsys, "account", write_ledger("one.jsonl"), "--at-most", most
    )
    assert found == code and bool(errors) == (code == 3)


def test_plan_finds_noise_and_epsilon_by_participation(capsys):
    words = ["plan", "--units", 1000, "--cohort", 50, "--rounds", 20, "--delta", 1e-5]
    code, said, _ = run(capsys, *words, "--noise-multiplier", 1.1, "--json", "-")
    plans = {row["participation"]: row for row in json.loads(said)["plans"]}
    assert code == 0 and {
        "one-pass",
        "balls-and-bins",
        "poisson",
        "poisson-lots",
    } <= set(plans)
    assert plans["one-pass"]["epsilon_high"] == pytest.approx(
        gaussian_epsilon(1.1, 1e-5), rel=1e-9
    )
    accounting = pytest.importorskip("dp_accounting")
    from dp_accounting.pld import PLDAccountant

    event = accounting.PoissonSampledDpEvent(0.05, accounting.GaussianDpEvent(1.1))
    reference = PLDAccountant().compose(event, 20).get_epsilon(1e-5)
    assert plans["poisson"]["epsilon_high"] == pytest.approx(reference, abs=1e-3)
    code, said, _ = run(
        capsys,
        *words,
        "--epsilon",
        2.0,
        "--kind",
        "one-pass",
        "--kind",
        "poisson",
        "--json",
        "-",
    )
    plans = {row["participation"]: row for row in json.loads(said)["plans"]}
    assert set(plans) == {"one-pass", "poisson"}
    z = plans["one-pass"]["noise_multiplier"]
    assert gaussian_epsilon(z, 1e-5) <= 2.0 < gaussian_epsilon(z * 0.999, 1e-5)
    event = accounting.PoissonSampledDpEvent(
        0.05, accounting.GaussianDpEvent(plans["poisson"]["noise_multiplier"])
    )
    assert PLDAccountant().compose(event, 20).get_epsilon(1e-5) == pytest.approx(
        2.0, abs=2e-3
    )


def test_a_plan_says_how_wide_a_bracket_is_and_why(capsys):
    words = "--units 1000000 --cohort 1 --rounds 1000000 --noise-multiplier 0.5"
    given = ["plan", *words.split(), "--delta", 1e-5, "--kind", "poisson"]
    _, said, _ = run(capsys, *given)
    text = " ".join(said.split())
    assert "above the low end (8.8 % of it), since the step of the finest grid" in text


def test_a_plan_says_what_its_numbers_do_not_go_with(capsys):
    words = [
        "plan",
        "--units",
        1000,
        "--cohort",
        50,
        "--rounds",
        30,
        "--noise-multiplier",
        1.0,
    ]
    code, said, _ = run(capsys, *words)
    assert code == 0 and "the clients do not last for so many rounds" in " ".join(
        said.split()
    )
    assert run(capsys, *words, "--at-most", 1.0)[0] == 3
    # Twice in known rounds 20 apart: one Gaussian of z / sqrt(2).
    apart = [
        *words,
        "--kind",
        "min-separation",
        "--set",
        "separation=20",
        "--set",
        "participations=2",
        "--json",
        "-",
    ]
    code, said, _ = run(capsys, *apart)
    assert json.loads(said)["plans"][0]["epsilon_high"] == pytest.approx(
        gaussian_epsilon(2**-0.5, 1e-5), rel=1e-6
    )


def test_compare_says_whether_two_ledgers_are_of_one_mechanism(write_ledger, capsys):
    one, two = (
        write_ledger("one.jsonl"),
        write_ledger("two.jsonl", noise_multiplier=1.25),
    )
    code, said, _ = run(capsys, "compare", one, two)
    lines = {line.split("  ")[0].strip(): line for line in said.splitlines()}
    assert (
        code == 3
        and lines["noise_multiplier"].endswith("differs")
        and "differs" not in lines["threshold"]
    )
    assert "noise_multiplier 1.0, the other ledger's 1.25" in said
    assert f"{gaussian_epsilon(1.25, 1e-5):.4g}" in lines["epsilon holds"]
    code, said, _ = run(capsys, "compare", one, one, "--json", "-")
    assert code == 0 and json.loads(said)["same"]
    sampled = write_ledger("three.jsonl", participation=dpsum.Poisson)
    code, said, _ = run(capsys, "compare", one, sampled, "--json", "-")
    assert code == 3 and "another sampler" in json.loads(said)["difference"]


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


def test_audit_of_a_function_in_the_current_folder(tmp_path, monkeypatch, capsys):
    """As a step of continuous integration runs it: a process, an exit code, and no
    traceback.
    """
    (tmp_path / "of_mine.py").write_text(RELEASE)
    words = ["--dimension", "30", "--noise-multiplier", "1.0", "--json", "report.json"]

    def shell(name, *more):
        return subprocess.run(
            [
                sys.executable,
                "-m",
                "dpwatch",
                "audit",
                f"of_mine:{name}",
                *words,
                *more,
            ],
            cwd=tmp_path,
            text=True,
            capture_output=True,
            check=False,
        )

    done = shell("right")
    assert done.returncode == 0 and "not refuted" in done.stdout, done.stderr
    assert (
        done.stderr.startswith("about ") and "is told with chance 0.95" in done.stderr
    )
    report = json.loads((tmp_path / "report.json").read_text())
    jsonschema.validate(report, SCHEMA)
    assert (
        report["audit"]["claimed"] == pytest.approx(gaussian_epsilon(1.0, 1e-5))
        and not report["audit"]["refuted"]
    )
    monkeypatch.chdir(tmp_path)
    code, said, _ = run(capsys, "audit", "of_mine:Mine.half", *words)
    report = json.loads((tmp_path / "report.json").read_text())
    jsonschema.validate(report, SCHEMA)
    assert code == 3 and "REFUTED" in said and report["audit"]["refuted"]
    rounds = ["--kind", "poisson", "--units", 1000, "--cohort", 100, "--rounds", 10]
    code, said, _ = run(
        capsys, "audit", "of_mine:right", *words, *rounds, "--at-most", 0.1
    )
    assert code == 3 and "not refuted" in said
    tried = [*words[:-2], "--participation", "of_mine:plan", "--calls", 100]
    code, said, plan = run(capsys, "audit", "of_mine:right", *tried)
    assert (
        code == 0
        and "over rounds" in said
        and "as the participation draws them" in plan
    )
    assert run(capsys, "audit", "of_mine:right", *tried, *rounds)[2].endswith(
        "leave one out\n"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["account", "nowhere.jsonl"], "nowhere.jsonl"),
        (["account", "{cut}"], "line 4, is not a release"),
        (["account", "{other}"], "line 1, is not a release"),
        (["account", "{empty}"], "has no release"),
        (
            ["account", "{ledger}", "--audit", "{other}"],
            "cannot be read as a report with an audit",
        ),
        (
            ["account", "{ledger}", "--json", "{ledger}/report.json"],
            "a file lies where a folder belongs",
        ),
        (["compare", "{ledger}", "{cut}"], "line 4, is not a release"),
        (
            [
                "plan",
                "--units",
                "10",
                "--cohort",
                "20",
                "--rounds",
                "2",
                "--epsilon",
                "1",
                "--kind",
                "poisson",
            ],
            "no participation goes with",
        ),
        (
            [
                "plan",
                "--units",
                "9",
                "--cohort",
                "3",
                "--rounds",
                "3",
                "--epsilon",
                "1",
                "--set",
                "b",
            ],
            "no KEY=VALUE",
        ),
        (
            [
                "plan",
                "--units",
                "10",
                "--cohort",
                "5",
                "--rounds",
                "2",
                "--epsilon",
                "1",
                "--kind",
                "mine",
            ],
            "no analysis",
        ),
        (["audit", "math", "--dimension", "3"], "is no module:function"),
        (["audit", "no_such_module:f", "--dimension", "3"], "cannot be imported"),
        (["audit", "math:nothing", "--dimension", "3"], "has no nothing"),
        (["audit", "math:pi", "--dimension", "3"], "hand over a function"),
        (["audit", "math:sqrt", "--dimension", "3"], "release fails on contributions"),
        (
            ["audit", "math:sqrt", "--dimension", "3", "--kind", "poisson"],
            "name --units",
        ),
    ],
)
def test_errors_are_one_line(write_ledger, tmp_path, capsys, words, said):
    text = Path(write_ledger("ledger.jsonl")).read_text(encoding="utf-8")
    (tmp_path / "cut.jsonl").write_text(text[:-40])
    (tmp_path / "other.jsonl").write_text('{"loss": 1.0}\n')
    (tmp_path / "empty.jsonl").write_text("")
    names = {
        name: tmp_path / f"{name}.jsonl" for name in ("ledger", "cut", "other", "empty")
    }
    code, _, error = run(capsys, *(word.format(**names) for word in words))
    *_, last = error.splitlines()  # an audit says its plan before
    assert (
        code == 1
        and last.startswith("error: ")
        and said in last
        and "Traceback" not in error
    )
    assert not list(tmp_path.glob("**/*.part"))


def test_help_says_the_exit_codes(capsys):
    for words in (["--help"], ["account", "--help"], ["audit", "--help"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0 and "exit codes: 0" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["plan"])
    assert ended.value.code == 2


PLAN = {"--units": "1000", "--cohort": "10", "--rounds": "5", "--noise-multiplier": "1"}
AUDIT = {"--dimension": "3", "--epsilon": "1"}
NOT_NUMBERS = ["nan", "inf", "-inf", "1e400", "", "x", "-1", "1e-400", "\uff11"]


@pytest.mark.parametrize("value", NOT_NUMBERS)
@pytest.mark.parametrize(
    ("command", "option"),
    [
        *(("plan", option) for option in [*PLAN, "--delta", "--at-most"]),
        *(
            ("audit", option)
            for option in (
                *AUDIT,
                "--noise-multiplier",
                "--delta",
                "--units",
                "--cohort",
                "--rounds",
                "--rows",
                "--calls",
                "--leak",
                "--power",
                "--false-alarm",
                "--seed",
                "--at-most",
            )
        ),
        ("account", "--delta"),
        ("account", "--at-most"),
        ("compare", "--delta"),
    ],
)
def test_a_number_out_of_range_is_told_in_one_line(capsys, command, option, value):
    """1e-400 is 0, which no option but --at-most takes; a whole number has no point."""
    given = {"plan": PLAN, "audit": AUDIT}.get(command, {})
    if command == "audit" and option == "--noise-multiplier":
        given = {"--dimension": "3"}
    words = {"audit": ["math:sqrt"], "account": ["a"], "compare": ["a", "b"]}
    pairs = [f"{name}={text}" for name, text in ({**given, option: value}).items()]
    if option == "--at-most" and value == "1e-400":
        return
    with pytest.raises(SystemExit) as ended:
        main([command, *words.get(command, []), *pairs])
    said = capsys.readouterr()
    assert ended.value.code == 2 and said.out == ""
    assert said.err.count("\n") == 1 and option in said.err


@pytest.mark.parametrize("setting", ["separation=nan", "separation=1e400"])
def test_a_setting_that_is_no_number_is_told_in_one_line(capsys, setting):
    with pytest.raises(SystemExit) as ended:
        main(["plan", *(f"{k}={v}" for k, v in PLAN.items()), "--set", setting])
    assert ended.value.code == 2 and capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("multiplier", [1e-3, 1e6])
def test_the_ends_of_the_range_of_noise_have_an_answer(capsys, multiplier):
    """Of one Gaussian release mu = 1 / z: epsilon is 0 at z = 1e6, as Phi(mu / 2) -
    Phi(-mu / 2) = 4e-7 is below delta; about mu^2 / 2 + 4.265 mu at z = 1e-3.
    """
    words = ["--noise-multiplier", multiplier, "--kind", "one-pass", "--json", "-"]
    options = ["--units", 1000, "--cohort", 10, "--rounds", 5]
    code, said, _ = run(capsys, "plan", *options, *words)
    (row,) = json.loads(said)["plans"]
    expected = 0.0 if multiplier > 1 else 1e6 / 2 + 4.265 * 1e3
    assert code == 0 and row["epsilon_high"] == pytest.approx(expected, rel=1e-4)


def piped(words, locale, **how):
    """The command as a process in a locale, with Python's UTF-8 mode off."""
    environment = os.environ | {"PYTHONIOENCODING": locale, "PYTHONUTF8": "0"}
    return subprocess.Popen(
        [sys.executable, "-m", "dpwatch", *map(str, words)],
        env=environment,
        stderr=subprocess.PIPE,
        **how,
    )


def test_output_is_the_same_bytes_in_every_locale(tmp_path):
    """The name of a missing ledger, which is said again, is not ASCII."""
    outputs = []
    for locale in ("utf-8", "latin-1", "ascii"):
        with piped(["account", tmp_path / "nö-ε.jsonl"], locale) as process:
            _, errors = process.communicate()
        assert process.returncode == 1
        outputs.append(errors)
    assert "nö-ε.jsonl is missing" in outputs[0].decode("utf-8")
    assert outputs[1:] == outputs[:1] * 2


@pytest.mark.skipif(os.name != "posix", reason="pipes and /dev/full of Unix")
def test_a_closed_pipe_ends_quietly_and_a_full_disk_in_one_line(write_ledger):
    words = ["account", write_ledger("one.jsonl")]
    reading, writing = os.pipe()
    os.close(reading)
    with piped(words, "utf-8", stdout=writing) as process:
        errors = process.communicate()[1]
    os.close(writing)
    assert (process.returncode, errors) == (141, b"")
    if not Path("/dev/full").exists():
        return
    with open("/dev/full", "wb") as full, piped(words, "utf-8", stdout=full) as process:
        errors = process.communicate()[1]
    assert process.returncode == 1
    assert errors == b"error: output cannot be written: No space left on device\n"
