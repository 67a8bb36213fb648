"""Damaged folders, forged accounts, and readers that ask for no manifest."""

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
from tests import test_integrity
from tests.dpfedbench.federation.conftest import federation, silos  # noqa: F401
from tests.test_integrity import (
    PLACE,
    RUN,
    Given,
    Params,
    call,
    faults,
    finished,  # noqa: F401
    rewrite,
    there,  # noqa: F401
)

RESULTS = Path("results")


def sealed_again(*names: str) -> None:
    """Write the digests of changed files into their manifests."""
    for name in names:
        digest = files.sha256(PLACE / name)
        for path in (PLACE / FOLDER).iterdir():
            path.write_text(
                re.sub(
                    rf"^[0-9a-f]{{64}}  {name}$",
                    f"{digest}  {name}",
                    path.read_text(),
                    flags=re.MULTILINE,
                )
            )


def test_manifests_are_those_of_sha256sum(there: Path) -> None:  # noqa: F811
    assert os.system(f"cd {PLACE} && sha256sum --quiet --check manifest/*") == 0
    (PLACE / "metrics.json").write_text("{}")
    assert os.system(f"cd {PLACE} && sha256sum --status --check manifest/*") != 0


def test_a_manifest_has_the_hash_of_the_code(there: Path) -> None:  # noqa: F811
    given = Given(
        config=[PLACE / "config.yaml"],
        images=test_integrity.DATA / "images.npy",
        model=PLACE / "model.safetensors",
    )
    call(
        "meta_test",
        given,
        Given(PLACE / "metrics.json"),
        params=Params(code="0123456789ab"),
    )
    manifest = PLACE / FOLDER / "meta_test-metrics.sha256"
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
def test_a_ledger_with_fitting_checksums_and_chain_is_found(
    there: Path,  # noqa: F811
    change: Callable[[dict[str, Any]], None],
) -> None:
    rewrite(PLACE, change)
    sealed_again("ledger.jsonl", "training.json")
    (line,) = faults()
    assert line.startswith(f"{PLACE / 'ledger.jsonl'}")


def test_a_forged_epsilon_is_found(
    there: Path,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One Gaussian release of z = 1: delta = F(1/2z - ez) - exp(e) F(-1/2z - ez)."""
    assert not faults()
    exact = brentq(
        lambda e: norm.cdf(0.5 - e) - math.exp(e) * norm.cdf(-0.5 - e) - 1e-3, 0, 20
    )
    account = read_json(PLACE / "privacy.json")
    account["profiles"]["proven"]["epsilon_high"] = exact / 2
    write_json(PLACE / "privacy.json", account)
    sealed_again("privacy.json")
    (line,) = faults()
    stated = re.fullmatch(
        rf"{PLACE}/privacy.json: its epsilon_high proven is (.*), but it is (.*),"
        r" computed .*",
        line,
    )
    assert stated
    assert math.isclose(float(stated[1]), exact / 2)
    assert math.isclose(float(stated[2]), exact, rel_tol=1e-6)
    with pytest.raises(SystemExit):
        test_integrity.verify()
    assert f"verify: {line}" in capsys.readouterr().err.splitlines()


@pytest.fixture(autouse=True)
def no_waiting() -> Iterator[None]:
    """A pipe that is opened is waited for, for ever."""

    def late(*_: Any) -> None:
        raise TimeoutError("something waits")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def replaced(name: str, make: Callable[[Path], Any]) -> Callable[[], Path]:
    def odd() -> Path:
        path = PLACE / name
        if path.is_dir():
            import shutil

            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        make(path)
        return path

    return odd


def stated(name: str, change: Callable[[Any], Any]) -> Callable[[], Path]:
    def odd() -> Path:
        values = json.loads((PLACE / name).read_text())
        change(values)
        (PLACE / name).write_text(json.dumps(values))
        sealed_again(name)
        return PLACE / name

    return odd


def latin(path: Path) -> None:
    path.write_bytes(b"method: caf\xe9\n")
    sealed_again(path.name)


def deep_json(path: Path) -> None:
    path.write_text("[" * 100_000)
    sealed_again(path.name)


ODD = {
    "a folder in place of a file": replaced("metrics.json", lambda path: path.mkdir()),
    "a link to itself": replaced(
        "metrics.json", lambda path: path.symlink_to(path.name)
    ),
    "a pipe": replaced("metrics.json", os.mkfifo),
    "a pipe for the configuration": replaced("config.yaml", os.mkfifo),
    "a pipe for a manifest": replaced("manifest/train-model.sha256", os.mkfifo),
    "a history that is not UTF-8": replaced("history.csv", latin),
    "lists in lists": replaced("training.json", deep_json),
    "rounds without end": stated(
        "training.json", lambda values: values.update(rounds_run=math.inf)
    ),
    "an account of lists": stated(
        "privacy.json", lambda values: values.update(profiles=[[]])
    ),
}


FITTING_CHECKSUMS = {"a history that is not UTF-8"}


def read_all(folder: Path) -> None:
    run = dpfedbench.open_run(folder)
    run.history, run.metrics, run.training, run.ledger, run.account, run.trained  # noqa: B018


@pytest.mark.parametrize("name", ODD)
def test_what_is_odd_is_a_line_and_the_rest_goes_on(there: Path, name: str) -> None:  # noqa: F811
    path = ODD[name]()
    lines = faults()
    found = any(str(path) in line for line in lines)
    # Checksums of these were made to fit, and no account is computed from them.
    assert found == (name not in FITTING_CHECKSUMS), lines
    with contextlib.suppress(BenchError):
        dpfedbench.load_runs(RESULTS)
    with contextlib.suppress(BenchError):  # a line, where what is odd is read at all
        read_all(PLACE)


def test_a_linked_folder_is_checked(there: Path, tmp_path: Path) -> None:  # noqa: F811
    (RESULTS / "runs").rename(tmp_path / "elsewhere")
    (RESULTS / "runs").symlink_to(tmp_path / "elsewhere")
    assert not faults()
    (PLACE / "metrics.json").write_text("{}")
    assert [line.split(" is damaged")[0] for line in faults()] == [
        str(PLACE / "metrics.json")
    ]


# Readers that ask for no manifest


def flips(path: Path, count: int = 100) -> Iterator[bytes]:
    """The file with one bit of one byte another, at places from a fixed seed."""
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    for place, bit in zip(
        rng.integers(len(data), size=count), rng.integers(8, size=count), strict=True
    ):
        yield data[:place] + bytes([data[place] ^ (1 << bit)]) + data[place + 1 :]


def test_a_flipped_bit_of_a_configuration_is_refused_in_a_line_or_means_the_same(
    there: Path,  # noqa: F811
) -> None:
    path = PLACE / "config.yaml"
    run = read_run_file(path)
    refused = 0
    for data in flips(path):
        path.write_bytes(data)
        try:
            assert read_run_file(path) == run
        except BenchError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > 80


def test_a_flipped_bit_of_a_model_is_refused_or_changes_no_weight(
    there: Path,  # noqa: F811
) -> None:
    path = PLACE / "model.safetensors"
    net = RUN.tested_net((16, 16, 1))
    weights = load_members(path, net)
    refused = 0
    for data in flips(path):
        path.write_bytes(data)
        try:
            assert all(
                (one == two).all()
                for one, two in zip(load_members(path, net), weights, strict=True)
            )
        except BenchError as error:
            assert "\n" not in str(error)
            assert str(path) in str(error)
            refused += 1
    assert refused >= 99
