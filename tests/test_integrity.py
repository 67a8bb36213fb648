"""Integrity of a finished run: readers refuse changed files and forged values, in one
line that names the file.
"""

import dataclasses
import itertools
import math
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

import dpfedbench
from dpfedbench import files
from dpfedbench.errors import BenchError
from dpfedbench.files import read_json, write_json
from dpfedbench.manifests import checked, listed
from dpfedbench.models.members import load_members
from dpfedbench.training.accounts import ledger_of
from dpfedbench.training.agreement import check_agrees
from dpfedbench.verification import check_accounts, check_files
from dpsum.sums import CompositionGroup
from tests.dpfedbench.training.conftest import LOTS, make_config, train
from tests.dpsum.test_ledger import EVENT
from tests.finished_run import (
    RUN,
    RUN_FOLDER,
    FileList,
    account,
    audit,
    find_faults,
    meta_test,
    rewrite_ledger,
    script_context,
    verify,
)
from workflow_jobs.manifests import seal
from workflow_jobs.rule_job import rule_job

FILES = {
    "config.yaml": "configure",
    "model.safetensors": "train",
    "history.csv": "train",
    "ledger.jsonl": "train",
    "training.json": "train",
    "metrics.json": "meta_test",
    "privacy.json": "account",
    "audit.json": "audit",
}
MANIFESTS = RUN_FOLDER / "manifest"


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def cut(data: bytes) -> bytes:
    """Remove the last line of a text, or the last bytes of other data."""
    return data[: data.rstrip(b"\n").rfind(b"\n") + 1] or data[:-64]


def edited(data: bytes) -> bytes:
    """Change the last digit that is not zero."""
    index = max(data.rfind(digit) for digit in b"123456789")
    digit = b"2" if data[index : index + 1] == b"1" else b"1"
    return data[:index] + digit + data[index + 1 :]


def error_line(capsys: pytest.CaptureFixture[str], action: Callable[[], None]) -> str:
    """Run a job that fails, and return its error line without the rule's name."""
    with pytest.raises(SystemExit) as caught:
        action()
    lines = capsys.readouterr().err.splitlines()
    assert caught.value.code == 1, lines
    assert len(lines) == 1, lines
    return lines[0].partition(": ")[2]


def reader(path: Path) -> None:
    """Run a rule that reads a file and writes none."""
    with rule_job(script_context("reader", FileList(path), FileList()), "reader"):
        raise AssertionError("a damaged file was read")


def read_all(run: Any) -> None:
    """Read all files of a run as a notebook does, which has no property for the audit."""
    for name in ("history", "metrics", "training", "ledger", "account", "trained"):
        getattr(run, name)
    checked(run.folder / "audit.json")


def seal_files(rule: str) -> None:
    """Write the manifest of a rule's files anew, so that it fits their changes."""
    names = [name for name in FILES if FILES[name] == rule]
    seal(rule, [RUN_FOLDER / name for name in names])


# Files that do not fit their manifest


def test_manifests_of_a_finished_run_name_every_file(results_copy: Path) -> None:
    """Their format is that of `sha256sum --check`."""
    assert {name: rule for name, (_, rule) in listed(RUN_FOLDER).items()} == FILES
    assert {path.name for path in RUN_FOLDER.iterdir() if path.is_file()} == set(FILES)
    assert list(check_files(Path("results"))).count(None) >= len(FILES)
    assert list(check_accounts(Path("results"))) == [None]
    check = "sha256sum --quiet --check manifest/*"
    assert subprocess.run(check, shell=True, cwd=RUN_FOLDER).returncode == 0
    meta_test(code="0123456789ab")
    text = (MANIFESTS / "meta_test-metrics.sha256").read_text()
    assert "\n# code 0123456789ab\n" in text


@pytest.mark.parametrize(
    ("name", "change"),
    [
        *zip(FILES, itertools.cycle([flipped, cut, edited]), strict=False),
        *((name, edited) for name in ("ledger.jsonl", "privacy.json")),
    ],
)
def test_changed_file_is_refused_by_every_reader(
    results_copy: Path,
    name: str,
    change: Callable[[bytes], bytes],
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = RUN_FOLDER / name
    path.write_bytes(change(path.read_bytes()))
    # A rule that reads the file, the check of the whole folder, and a notebook.
    line = error_line(capsys, lambda: reader(path))
    assert line.startswith(f"{path} differs from what the rule {FILES[name]}")
    assert f"`snakemake --cores all {path} --forcerun {FILES[name]}`" in line
    assert line in find_faults()
    with pytest.raises(BenchError, match=f"{name} differs from"):
        read_all(dpfedbench.open_run(RUN_FOLDER))
    assert path.exists()


def test_verify_prints_each_fault(
    results_copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder may lack a job's files, but has all files that a manifest names. The
    folder of runs may be a link.
    """
    runs = Path("results/runs")
    runs.rename("elsewhere")
    runs.symlink_to(Path("elsewhere").resolve())
    verify()
    assert "as written" in capsys.readouterr().err
    (RUN_FOLDER / "privacy.json").unlink()
    (MANIFESTS / "account-privacy.sha256").unlink()
    assert not find_faults()
    (RUN_FOLDER / "history.csv").unlink()
    (RUN_FOLDER / "metrics.json").write_text("{}")
    with pytest.raises(SystemExit, match=r"^1$"):
        verify()
    history, metrics, _ = capsys.readouterr().err.splitlines()
    assert history.startswith(f"verify: {RUN_FOLDER / 'history.csv'} is missing")
    assert metrics.startswith(f"verify: {RUN_FOLDER / 'metrics.json'} differs from")


def test_file_without_a_checksum_is_refused(
    results_copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No rule wrote the first file; the manifests of the others are missing or damaged."""
    (RUN_FOLDER / "notes.txt").write_text("mine")
    (MANIFESTS / "account-privacy.sha256").unlink()
    (MANIFESTS / "meta_test-metrics.sha256").write_bytes(b"\xff\xfe no checksum\n")
    names = ("metrics.json", "notes.txt", "privacy.json")
    unsealed = [fault.split(" has no checksum in")[0] for fault in find_faults()]
    assert unsealed == [f"{RUN_FOLDER / name}" for name in names]
    line = error_line(capsys, lambda: reader(RUN_FOLDER / "privacy.json"))
    assert "privacy.json has no checksum" in line


# Faults that are found although the manifest was made to fit


@pytest.mark.parametrize(
    ("old", "new"), [("delta: 0.001", "delta: 0.1"), ("seed: 0", "seed: 1")]
)
def test_configuration_of_another_run_is_refused(
    results_copy: Path, old: str, new: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = RUN_FOLDER / "config.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    seal_files("configure")
    faults = find_faults()
    error = error_line(capsys, account)
    assert faults == [error]
    assert error.startswith(f"{path} is in the wrong folder: its values belong to ")
    with pytest.raises(BenchError, match="is in the wrong folder"):
        dpfedbench.open_run(RUN_FOLDER)


Change = Callable[[dict[str, Any]], None]


def scaled(factor: float, *keys: str) -> Change:
    return lambda line: line.update({key: factor * line[key] for key in keys})


def replaced(**values: Any) -> Change:
    return lambda line: line.update(values)


def in_sampler(change: Change) -> Change:
    return lambda line: change(line["sampler"])


RARER = in_sampler(scaled(0.01, "rate"))
SENSITIVITY = ("sensitivity", "noise_std")
CHANGES = {
    "in round 0 multipliers of query-gradient-sum": scaled(
        2, "noise_multiplier", "noise_std"
    ),
    "a sampler of query-gradient-sum": in_sampler(replaced(kind="balls-and-bins")),
    "a draw of query-gradient-sum of 0123": in_sampler(replaced(draw="0123")),
    "'rate': ": RARER,
    "a unit of query-gradient-sum of record": replaced(unit="record"),
    "observer of query-gradient-sum of server": replaced(observer="server"),
    "a mechanism of query-gradient-sum": replaced(mechanism="laplace"),
    "a thresholds_may_differ of query-gradient-sum of True": replaced(
        thresholds_may_differ=True
    ),
    "rounds of query-gradient-sum 0": replaced(name="gradient-sum"),
    "a first threshold of query-gradient-sum": scaled(0.5, "threshold", *SENSITIVITY),
    "a sensitivity of query-gradient-sum of 0.25": scaled(0.5, *SENSITIVITY),
    "a deviation of the noise of query-gradient-sum": scaled(0.5, "noise_std"),
    "a stream of ['1', 'noise']": replaced(noise_stream="1/noise/0"),
}


@pytest.mark.parametrize("message", CHANGES)
def test_ledger_of_another_mechanism_is_refused(
    results_copy: Path, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The account, the audit and the check of the folder refuse a ledger that the
    configuration does not determine, although every checksum and the chain fit.
    """
    rewrite_ledger(RUN_FOLDER, CHANGES[message])
    seal_files("train")
    faults = find_faults()
    line = error_line(capsys, account)
    assert error_line(capsys, audit) == line
    assert line in faults
    assert all("made from" in fault for fault in faults if fault != line)
    assert line.startswith(f"{RUN_FOLDER / 'ledger.jsonl'}: ")
    assert message in line
    with pytest.raises(BenchError, match=re.escape(message)):
        dpfedbench.open_run(RUN_FOLDER).ledger  # noqa: B018


@pytest.mark.parametrize(
    ("update_training", "rounds_run", "message"),
    [
        (False, 4, "has 3 lines, but training.json"),
        (True, 4, "rounds of query-gradient-sum 3"),
        (True, 3, "the ledger has rounds 3, but the run's configuration gives 4"),
    ],
)
def test_ledger_without_its_last_round_is_refused(
    results_copy: Path,
    update_training: bool,
    rounds_run: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """training.json has the length and end of the chain, and the number of rounds. The
    configuration has the number too, where no budget stops the training.
    """
    path = RUN_FOLDER / "training.json"
    write_json(path, read_json(path) | {"rounds_run": rounds_run})
    rewrite_ledger(
        RUN_FOLDER, lambda line: None, lines_kept=3, update_training=update_training
    )
    seal_files("train")
    for action in (account, audit):
        assert message in error_line(capsys, action)


@pytest.fixture(scope="module")
def decaying(
    silos: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, Path]:
    """Train a run whose noise decays with a loss, and whose clients release a mean norm
    beside each sum.
    """
    folder = tmp_path_factory.mktemp("decaying")
    values = {
        "clipping": {"kind": "noised-mean-norm"},
        "participation": {"rounds": 6},
        "noise": {"kind": "decaying", "decay": 0.5, "falls": 1},
    }
    run = make_config(values, general=LOTS)
    train(run, silos, folder)
    return run, folder


def double_round_3(line: dict[str, Any]) -> None:
    if line["index"] == 3:
        line["noise_multiplier"] *= 2


def double_gradient_sums(line: dict[str, Any]) -> None:
    if line["name"] == "gradient-sum":
        line["noise_multiplier"] *= 2
        line["noise_std"] = [2 * value for value in line["noise_std"]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (double_round_3, "in round"),
        (double_gradient_sums, r"in round 0 multipliers .* of \(4.0, 2.0"),
        (RARER, "a sampler of gradient-sum"),
    ],
)
def test_ledger_with_noise_that_its_rule_forbids_is_refused(
    decaying: tuple[Any, Path],
    tmp_path: Path,
    change: Change,
    message: str,
) -> None:
    """The noise multiplier may fall, but not rise."""
    run, folder = decaying
    assert len({line.noise_multiplier for line in ledger_of(run, folder)}) > 1
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    rewrite_ledger(tmp_path, change, lines_kept=12)
    with pytest.raises(BenchError, match=message):
        ledger_of(run, tmp_path)


def test_ledger_that_hides_a_threshold_of_raw_norms_is_refused(
    federation: tuple[Path, Path], tmp_path: Path
) -> None:
    """Such a ledger would have a finite epsilon."""
    clipping = {"clipping": {"kind": "percentile-of-raw-norms"}}
    run = make_config(clipping, {"participation": {"rounds": 1}})
    train(run, federation, tmp_path)
    releases = ledger_of(run, tmp_path)
    rewrite_ledger(tmp_path, replaced(data_dependent_threshold=False, reason=""))
    message = "as what query-gradient-sum does not account for"
    with pytest.raises(BenchError, match=message):
        ledger_of(run, tmp_path)
    # A run without private sums has no such ledger.
    with pytest.raises(BenchError, match="further releases"):
        check_agrees(make_config({"method": "maml"}), releases, 1)


def test_ledger_has_the_noise_that_the_budget_is_calibrated_to() -> None:
    """The check calibrates z anew: a higher z would state less than epsilon 3."""
    budget = {"epsilon": 3.0, "profile": "proven"}
    run = make_config({"noise": {"multiplier": None}, "budget": budget})
    sampler = run.participation.plan(clients=48, seed=0).describe()
    plan = CompositionGroup(run.sums()).plan(sampler, claims=run.claims, counted=True)
    z = plan.multipliers[0]

    def check(z: float) -> None:
        values = {"sampler": sampler, "noise_multiplier": z, "noise_std": 0.5 * z}
        event = dataclasses.replace(EVENT, **values)
        ledger = [
            dataclasses.replace(event, round=index, noise_stream=f"0/noise/{index}")
            for index in range(12)
        ]
        check_agrees(run, ledger, 12)

    check(z)
    with pytest.raises(BenchError, match="multipliers of query-gradient-sum"):
        check(1.01 * z)


def test_forged_epsilon_is_found(results_copy: Path) -> None:
    """One Gaussian release of z = 1: delta = F(1/2z - ez) - exp(e) F(-1/2z - ez)."""

    def excess_delta(epsilon: float) -> float:
        gain = math.exp(epsilon) * norm.cdf(-0.5 - epsilon)
        return float(norm.cdf(0.5 - epsilon) - gain - 1e-3)

    exact = brentq(excess_delta, 0, 20)
    values = read_json(RUN_FOLDER / "privacy.json")
    values["profiles"]["proven"]["epsilon_high"] = exact / 2
    write_json(RUN_FOLDER / "privacy.json", values)
    seal_files("account")
    (line,) = find_faults()
    numbers = re.search("epsilon_high proven of clients is (.*), .* gives (.*):", line)
    assert numbers
    stated, computed = map(float, numbers.groups())
    assert stated == pytest.approx(exact / 2)
    assert computed == pytest.approx(exact, rel=1e-6)


# Readers that do not use a manifest, and the manifest itself


def test_flipped_bit_of_a_model_is_refused(results_copy: Path) -> None:
    """A model to start from has no manifest. One of the bits changes no value."""
    path = RUN_FOLDER / "model.safetensors"
    net = RUN.tested_net((16, 16, 1))
    weights = np.concatenate(load_members(path, net))
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for position in rng.integers(len(data), size=100):
        damaged = bytearray(data)
        damaged[position] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        try:
            assert np.array_equal(np.concatenate(load_members(path, net)), weights)
        except BenchError:
            refused += 1
    assert refused >= 99


def test_manifest_has_the_files_that_a_job_writes_beside_its_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A preview, but no download or checkpoint."""
    monkeypatch.chdir(tmp_path)
    folder = Path("results/x")
    outputs = FileList(folder / "a.csv")
    names = ("a.csv", "preview.csv")
    unlisted = ("download/archive.zip", "checkpoint/state.pt")
    with rule_job(script_context("some_rule", FileList(), outputs), "x"):
        for name in (*names, *unlisted):
            files.write_text(folder / name, name)
    assert set(listed(folder)) == {"a.csv", "preview.csv"}
    assert len(list(folder.rglob("manifest"))) == 1
