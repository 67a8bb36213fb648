"""`dpwatch check`: unedited scripts under watch, their reports, and planted pitfalls."""

import json
import subprocess
import sys
from pathlib import Path

import opacus  # noqa: F401, imported before the scripts fork
import pytest
import torch
from checked_scripts import PITFALLS, PLANTED, check_script, pitfall_of, titles

from dpsum import DpsumError
from dpsum.ledger import read_ledger
from dpwatch.__main__ import main
from dpwatch.adapters.watch import guarded
from dpwatch.check.command import check
from dpwatch.check.pitfalls import PITFALLS as TITLES
from dpwatch.check.text_search import findings_of

RIGHT = PITFALLS / "right"
PAGE = Path(__file__).parents[1] / "docs" / "pitfalls.md"


def page_row(pitfall):
    """Return the row of a pitfall in the page: its scripts, and the verdict of each."""
    cells = [TITLES[pitfall]]
    for library in ("jax", "opacus", "flower", "torch"):
        verdicts = [
            f"`{name.partition('/')[2]}`: {verdict}"
            for name, (verdict, _) in PLANTED.items()
            if name.startswith(f"{library}/") and pitfall_of(name) == pitfall
        ]
        cells.append("; ".join(verdicts) or "–")
    return f"| {' | '.join(cells)} |"


def test_page_has_what_the_check_says_of_each_pitfall():
    page = PAGE.read_text(encoding="utf-8").splitlines()
    for pitfall in TITLES:
        assert page_row(pitfall) in page
    planted = {pitfall_of(name) for name in PLANTED if name.startswith("jax/")}
    assert planted == set(TITLES)


@pytest.mark.parametrize(
    "name", [name for name in PLANTED if not name.startswith("jax/")]
)
def test_check_catches_a_planted_pitfall(name, tmp_path):
    if name.startswith("flower/"):
        pytest.importorskip("flwr")
    report = check_script(PITFALLS / f"{name}.py", tmp_path)
    verdict, words = PLANTED[name]
    assert report["exit_code"] == 0, (tmp_path / "output.txt").read_text()
    assert report["verdict"] == verdict, report["why"]
    assert words in f"{report['why']} {titles(report)}"


@pytest.mark.parametrize("name", [name for name in PLANTED if name.startswith("jax/")])
def test_text_search_finds_each_pitfall_in_jax_privacy(name):
    """Without the library: each script has one finding, and the right one has none."""
    (finding,) = findings_of(PITFALLS / f"{name}.py")
    assert finding.pitfall == pitfall_of(name)
    assert findings_of(PITFALLS / "jax" / "right.py") == []


def test_check_raises_no_alarm_for_a_right_flower_server(tmp_path):
    pytest.importorskip("flwr")
    report = check_script(PITFALLS / "flower" / "right.py", tmp_path)
    assert (report["verdict"], report["findings"]) == ("proven", []), report["why"]


@pytest.mark.parametrize(
    ("name", "seed"),
    [("plain", seed) for seed in range(12)]
    + [
        (name, seed)
        for name in ("ghost", "two_sizes", "target_epsilon", "per_layer")
        for seed in (0, 1)
    ],
)
def test_check_raises_no_alarm_for_a_right_training(name, seed, tmp_path):
    """Twenty right trainings without an alarm: at most 14 % false alarms, at 95 %.

    (1 - p)^20 = 0.05 for p = 0.139.
    """
    report = check_script(RIGHT / f"{name}.py", tmp_path, str(seed))
    assert report["exit_code"] == 0, (tmp_path / "output.txt").read_text()
    assert (report["verdict"], report["findings"]) == ("proven", []), report["why"]
    (training,) = report["watched"]
    profiles = training["account"]["profiles"]
    assert profiles["proven"]["epsilon_high"] <= profiles["claimed"]["epsilon_high"]
    assert profiles["claimed"]["status"] == "void"  # it is for add-or-remove
    assert report["delta"] == {"value": 1e-5, "from": "the script"}
    assert report["paragraph"].startswith("Opacus ")
    assert "one record" in report["paragraph"]


def test_check_takes_a_claim_from_the_accountant_itself(tmp_path):
    """Opacus's imdb.py asks the accountant, and not the engine, for its epsilon."""
    text = (RIGHT / "plain.py").read_text(encoding="utf-8")
    assert "engine.get_epsilon(1e-5)" in text
    script = tmp_path / "train.py"
    script.write_text(
        text.replace("engine.get_epsilon(1e-5)", "engine.accountant.get_epsilon(3e-6)")
    )
    report = check_script(script, tmp_path)
    assert report["delta"] == {"value": 3e-6, "from": "the script"}
    (claim,) = report["claims"]
    printed = (tmp_path / "output.txt").read_text(encoding="utf-8")
    assert printed == f"epsilon {claim['epsilon']:.2f}\n"


def test_check_takes_no_claim_from_a_calibration(tmp_path):
    """The one claim of a targeted training is its target, until it asks for epsilon."""
    text = (RIGHT / "target_epsilon.py").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if "engine.get_epsilon" not in line]
    script = tmp_path / "train.py"
    script.write_text("\n".join(lines) + "\n")
    report = check_script(script, tmp_path)
    assert [claim["epsilon"] for claim in report["claims"]] == [4.0]


def test_check_finds_nothing_watched_in_a_right_loop_of_torch(tmp_path):
    report = check_script(PITFALLS / "torch" / "no_watch.py", tmp_path)
    assert report["verdict"] == "nothing watched"
    assert report["findings"] == []
    assert "dpsum.Release" in report["paragraph"]
    assert any("5 steps of SGD" in line for line in report["not_seen"])


def test_check_changes_no_bit_of_the_training(tmp_path):
    """The saved weights of a script are equal with the hooks and without, as files."""
    script = tmp_path / "train.py"
    text = (RIGHT / "plain.py").read_text(encoding="utf-8")
    end = "torch.save(model.state_dict(), sys.argv[2])\n"
    script.write_text(text + end)
    weights = {}
    for name in ("with", "without"):
        path = tmp_path / f"{name}.pt"
        words = [sys.executable, str(script), "3", str(path)]
        if name == "with":
            code = main(["check", "--audit-calls", "0", "--", *words])
            assert code == 0
        else:
            subprocess.run(words, check=True, capture_output=True, cwd=tmp_path)
        weights[name] = torch.load(path)
    assert weights["with"].keys() == weights["without"].keys()
    for key, value in weights["with"].items():
        assert torch.equal(value, weights["without"][key])


def test_check_searches_the_script_and_the_modules_beside_it(tmp_path):
    (tmp_path / "beside.py").write_text("import torch\nnoise = torch.randn(3)\n")
    text = "import jax_privacy\nf = clipped_grad(g, normalize_by=len(b))\n"
    script = tmp_path / "train.py"
    script.write_text(
        f"import beside\nif beside is None:\n    {text.splitlines()[1]}\n"
    )
    report = check([sys.executable, str(script)])
    assert [finding["place"] for finding in report["findings"]] == ["train.py:3"]
    assert report["verdict"] == "nothing watched"


def test_check_writes_report_and_ledgers(tmp_path, capfd):
    """A command that fails, with a full report of the steps before its end."""
    script = tmp_path / "train.py"
    text = (RIGHT / "plain.py").read_text(encoding="utf-8")
    script.write_text(text + "raise SystemExit(7)\n")
    words = [sys.executable, str(script)]
    options = ["--json", str(tmp_path / "report.json"), "--keep", str(tmp_path / "k")]
    assert main(["check", *options, "--audit-calls", "20", "--", *words]) == 5
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["exit_code"] == 7
    (training,) = report["watched"]
    lines = read_ledger(tmp_path / "k" / training["ledger"])
    assert len(lines) == training["releases"] == 20
    assert {line.sampler["rounds"] for line in lines} == {20}
    assert training["audit"]["refuted"] is False
    out = capfd.readouterr().out
    assert "The reader has to believe:" in out
    assert report["findings"] == []
    assert "ended with exit code 7" in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "no command"),
        (["no-such-command-anywhere"], "cannot be started"),
        ([sys.executable, "-I", "-c", "pass"], "started no Python process"),
    ],
)
def test_check_refuses_a_command_in_one_line(words, line, capsys):
    assert main(["check", "--", *words]) == 1
    errors = capsys.readouterr().err
    assert (errors.count("\n"), line in errors) == (1, True)


def test_check_refuses_a_folder_with_files(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DpsumError, match="has files"):
        check([sys.executable, "-c", "pass"], folder=tmp_path)


def test_guarded_calls_the_method_once_and_raises_its_errors():
    calls = []
    faults = []

    def fails_before(method, value):
        raise ValueError("before")

    def fails_after(method, value):
        method(value)
        raise ValueError("after")

    def double(value):
        calls.append(value)
        if value == 0:
            raise KeyError("its own")
        return 2 * value

    assert guarded(fails_before, double, faults.append, 3) == 6
    assert guarded(fails_after, double, faults.append, 4) == 8
    with pytest.raises(KeyError):
        guarded(fails_after, double, faults.append, 0)
    assert calls == [3, 4, 0]
    assert [str(error) for error in faults] == ["before", "after"]


# The search of a text, by lines that a colleague may write


def search(tmp_path, text):
    path = tmp_path / "script.py"
    path.write_text(text, encoding="utf-8")
    return [(finding.pitfall, finding.place) for finding in findings_of(path)]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("import jax_privacy\nf = clipped_grad(g, normalize_by=len(batch))", [2]),
        ("import jax_privacy\nf = clipped_grad(g, normalize_by=64)", []),
    ],
)
def test_text_search_reads_the_divisor(text, lines, tmp_path):
    expected = [("division-by-batch-size", f"script.py:{line}") for line in lines]
    assert search(tmp_path, text) == expected


def test_text_search_reads_every_file_of_this_repository(tmp_path):
    """It ends without an error for any Python text, and for none."""
    for path in Path(__file__).parents[1].rglob("*.py"):
        findings_of(path)
    assert findings_of(tmp_path / "missing.py") == []
    assert search(tmp_path, "def broken(:") == []
