"""Damaged folders, forged accounts, and readers that do not use a manifest."""

import contextlib
import json
import math
import os
import re
import signal
from collections.abc import Callable, Iterator
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
from dpfedbench.manifests import FOLDER
from dpfedbench.models.members import load_members
from dpfedbench.papers import read_run_file
from tests.finished_run import (
    RUN,
    RUN_FOLDER,
    find_faults,
    meta_test,
    rewrite_ledger,
    verify,
)

RESULTS = Path("results")


def reseal(*names: str) -> None:
    """Write the digests of changed files into their manifests."""
    for name in names:
        line = f"{files.sha256(RUN_FOLDER / name)}  {name}"
        old_line = re.compile(rf"^[0-9a-f]{{64}}  {name}$", re.MULTILINE)
        for path in (RUN_FOLDER / FOLDER).iterdir():
            path.write_text(old_line.sub(line, path.read_text()))


def test_manifests_are_those_of_sha256sum(results_copy: Path) -> None:
    assert os.system(f"cd {RUN_FOLDER} && sha256sum --quiet --check manifest/*") == 0
    (RUN_FOLDER / "metrics.json").write_text("{}")
    assert os.system(f"cd {RUN_FOLDER} && sha256sum --status --check manifest/*") != 0


def test_manifest_has_the_hash_of_the_code(results_copy: Path) -> None:
    meta_test(code="0123456789ab")
    manifest = RUN_FOLDER / FOLDER / "meta_test-metrics.sha256"
    assert "\n# code 0123456789ab\n" in manifest.read_text()


def doubled_multiplier(line: dict[str, Any]) -> None:
    line.update(noise_multiplier=2.0, noise_std=1.0)


def halved_deviation(line: dict[str, Any]) -> None:
    line.update(noise_std=line["noise_std"] / 2)


def halved_sensitivity(line: dict[str, Any]) -> None:
    for key in ("sensitivity", "noise_std"):
        line[key] /= 2


@pytest.mark.parametrize(
    "change", [doubled_multiplier, halved_deviation, halved_sensitivity]
)
def test_forged_ledger_with_fitting_checksums_and_chain_is_found(
    results_copy: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    rewrite_ledger(RUN_FOLDER, change)
    reseal("ledger.jsonl", "training.json")
    (line,) = find_faults()
    assert line.startswith(f"{RUN_FOLDER / 'ledger.jsonl'}")


def test_forged_epsilon_is_found(
    results_copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One Gaussian release of z = 1: delta = F(1/2z - ez) - exp(e) F(-1/2z - ez)."""
    assert not find_faults()

    def excess_delta(epsilon: float) -> float:
        gain = math.exp(epsilon) * norm.cdf(-0.5 - epsilon)
        return float(norm.cdf(0.5 - epsilon) - gain - 1e-3)

    exact = brentq(excess_delta, 0, 20)
    account = read_json(RUN_FOLDER / "privacy.json")
    account["profiles"]["proven"]["epsilon_high"] = exact / 2
    write_json(RUN_FOLDER / "privacy.json", account)
    reseal("privacy.json")
    (line,) = find_faults()
    epsilons = re.fullmatch(
        rf"{RUN_FOLDER}/privacy.json: its epsilon_high proven of clients is (.*), but its"
        r" ledger gives (.*): make it again .*",
        line,
    )
    assert epsilons
    assert math.isclose(float(epsilons[1]), exact / 2)
    assert math.isclose(float(epsilons[2]), exact, rel_tol=1e-6)
    with pytest.raises(SystemExit):
        verify()
    assert f"verify: {line}" in capsys.readouterr().err.splitlines()


@pytest.fixture(autouse=True)
def time_limit() -> Iterator[None]:
    """Fail after two minutes: a reader that opens a pipe would wait for ever."""

    def fail(*_: Any) -> None:
        raise TimeoutError("a reader waits")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def replace_file(name: str, make: Callable[[Path], Any]) -> Callable[[], Path]:
    """Return a function that replaces a file of the run, and returns its path."""

    def replace() -> Path:
        path = RUN_FOLDER / name
        path.unlink(missing_ok=True)
        make(path)
        return path

    return replace


def change_json(name: str, **changes: Any) -> Callable[[], Path]:
    """Return a function that changes values of a JSON file and seals it again."""

    def change() -> Path:
        path = RUN_FOLDER / name
        values = json.loads(path.read_text()) | changes
        path.write_text(json.dumps(values))
        reseal(name)
        return path

    return change


def write_latin(path: Path) -> None:
    path.write_bytes(b"method: caf\xe9\n")
    reseal(path.name)


def write_deep_json(path: Path) -> None:
    path.write_text("[" * 100_000)
    reseal(path.name)


FAULTS = {
    "a folder as a file": replace_file("metrics.json", os.mkdir),
    "a link to itself": replace_file(
        "metrics.json", lambda path: path.symlink_to(path.name)
    ),
    "a pipe": replace_file("metrics.json", os.mkfifo),
    "a pipe for the configuration": replace_file("config.yaml", os.mkfifo),
    "a pipe for a manifest": replace_file("manifest/train-model.sha256", os.mkfifo),
    "a history that is not UTF-8": replace_file("history.csv", write_latin),
    "deeply nested lists": replace_file("training.json", write_deep_json),
    "infinite rounds": change_json("training.json", rounds_run=math.inf),
    "an account of lists": change_json("privacy.json", profiles=[[]]),
}
# The checksum fits, and no account is computed from the file.
UNDETECTED = {"a history that is not UTF-8"}
PROPERTIES = ("history", "metrics", "training", "ledger", "account", "trained")


@pytest.mark.parametrize("name", FAULTS)
def test_verification_of_a_malformed_file_ends_with_one_line(
    results_copy: Path, name: str
) -> None:
    """The other readers end with one line too, or do not read the file."""
    path = FAULTS[name]()
    lines = find_faults()
    is_detected = any(str(path) in line for line in lines)
    assert is_detected == (name not in UNDETECTED), lines
    with contextlib.suppress(BenchError):
        dpfedbench.load_runs(RESULTS)
    with contextlib.suppress(BenchError):
        run = dpfedbench.open_run(RUN_FOLDER)
        for key in PROPERTIES:
            getattr(run, key)


def test_verification_follows_a_linked_folder(
    results_copy: Path, tmp_path: Path
) -> None:
    (RESULTS / "runs").rename(tmp_path / "elsewhere")
    (RESULTS / "runs").symlink_to(tmp_path / "elsewhere")
    assert not find_faults()
    path = RUN_FOLDER / "metrics.json"
    path.write_text("{}")
    assert [line.split(" differs from")[0] for line in find_faults()] == [str(path)]


# Readers that do not use a manifest


def flip_bits(path: Path, count: int = 100) -> Iterator[bytes]:
    """Yield the file's content with one flipped bit, at positions from a fixed seed."""
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    positions = rng.integers(len(data), size=count)
    bits = rng.integers(8, size=count)
    for position, bit in zip(positions, bits, strict=True):
        flipped = bytes([data[position] ^ (1 << bit)])
        yield data[:position] + flipped + data[position + 1 :]


def test_flipped_bit_of_a_configuration_is_refused_or_changes_no_value(
    results_copy: Path,
) -> None:
    path = RUN_FOLDER / "config.yaml"
    run = read_run_file(path)
    refused = 0
    for data in flip_bits(path):
        path.write_bytes(data)
        try:
            assert read_run_file(path) == run
        except BenchError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > 80


def test_flipped_bit_of_a_model_is_refused_or_changes_no_weight(
    results_copy: Path,
) -> None:
    path = RUN_FOLDER / "model.safetensors"
    net = RUN.tested_net((16, 16, 1))
    weights = load_members(path, net)
    refused = 0
    for data in flip_bits(path):
        path.write_bytes(data)
        try:
            members = load_members(path, net)
            for member, weight in zip(members, weights, strict=True):
                assert (member == weight).all()
        except BenchError as error:
            assert "\n" not in str(error)
            assert str(path) in str(error)
            refused += 1
    assert refused >= 99
