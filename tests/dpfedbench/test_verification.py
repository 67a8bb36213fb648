"""Forged accounts and ledgers, damaged folders, and readers that do not use a
manifest.
"""

import math
import os
import re

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

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


def reseal(*names):
    """Write the digests of changed files into their manifests."""
    for name in names:
        line = f"{files.sha256(RUN_FOLDER / name)}  {name}"
        old_line = re.compile(rf"^[0-9a-f]{{64}}  {name}$", re.MULTILINE)
        for path in (RUN_FOLDER / FOLDER).iterdir():
            path.write_text(old_line.sub(line, path.read_text()))


def test_manifests_are_those_of_sha256sum(results_copy):
    assert os.system(f"cd {RUN_FOLDER} && sha256sum --quiet --check manifest/*") == 0
    (RUN_FOLDER / "metrics.json").write_text("{}")
    assert os.system(f"cd {RUN_FOLDER} && sha256sum --status --check manifest/*") != 0


def test_manifest_has_the_hash_of_the_code(results_copy):
    meta_test(code="0123456789ab")
    manifest = RUN_FOLDER / FOLDER / "meta_test-metrics.sha256"
    assert "\n# code 0123456789ab\n" in manifest.read_text()


def doubled_multiplier(line):
    line.update(noise_multiplier=2.0, noise_std=1.0)


def halved_deviation(line):
    line.update(noise_std=line["noise_std"] / 2)


def halved_sensitivity(line):
    line.update(sensitivity=line["sensitivity"] / 2, noise_std=line["noise_std"] / 2)


@pytest.mark.parametrize(
    "change", [doubled_multiplier, halved_deviation, halved_sensitivity]
)
def test_forged_ledger_with_fitting_checksums_and_chain_is_found(results_copy, change):
    rewrite_ledger(RUN_FOLDER, change)
    reseal("ledger.jsonl", "training.json")
    (line,) = find_faults()
    assert line.startswith(f"{RUN_FOLDER / 'ledger.jsonl'}")


def test_forged_epsilon_is_found(results_copy, capsys):
    """One Gaussian release of z = 1: delta = F(1/2z - ez) - exp(e) F(-1/2z - ez)."""
    assert not find_faults()

    def excess_delta(epsilon):
        gain = math.exp(epsilon) * norm.cdf(-0.5 - epsilon)
        return norm.cdf(0.5 - epsilon) - gain - 1e-3

    exact = brentq(excess_delta, 0, 20)
    account = read_json(RUN_FOLDER / "privacy.json")
    account["profiles"]["proven"]["epsilon_high"] = exact / 2
    write_json(RUN_FOLDER / "privacy.json", account)
    reseal("privacy.json")
    (line,) = find_faults()
    numbers = re.search("epsilon_high proven of clients is (.*), .* gives (.*):", line)
    stated, computed = map(float, numbers.groups())
    assert stated == pytest.approx(exact / 2)
    assert computed == pytest.approx(exact, rel=1e-6)
    with pytest.raises(SystemExit):
        verify()
    assert f"verify: {line}" in capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("name", "change"),
    [("training.json", {"rounds_run": math.inf}), ("privacy.json", {"profiles": [[]]})],
)
def test_verification_of_odd_values_ends_with_one_line(results_copy, name, change):
    path = RUN_FOLDER / name
    write_json(path, read_json(path) | change)
    reseal(name)
    assert any(str(path) in line for line in find_faults())


def test_verification_follows_a_linked_folder(results_copy, tmp_path):
    runs = RUN_FOLDER.parents[4]
    runs.rename(tmp_path / "elsewhere")
    runs.symlink_to(tmp_path / "elsewhere")
    assert not find_faults()
    path = RUN_FOLDER / "metrics.json"
    path.write_text("{}")
    assert [line.split(" differs from")[0] for line in find_faults()] == [str(path)]


# Readers that do not use a manifest


def flip_bits(path, count=100):
    """Write the file with one flipped bit, for each of some random bits."""
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    positions = rng.integers(len(data), size=count)
    bits = rng.integers(8, size=count)
    for position, bit in zip(positions, bits, strict=True):
        flipped = bytes([data[position] ^ (1 << bit)])
        path.write_bytes(data[:position] + flipped + data[position + 1 :])
        yield


def read_weights(path):
    return np.concatenate(load_members(path, RUN.tested_net((16, 16, 1)))).tolist()


@pytest.mark.parametrize(
    ("name", "read", "least"),
    [
        ("config.yaml", read_run_file, 81),
        ("model.safetensors", read_weights, 99),
    ],
)
def test_flipped_bit_is_refused_or_changes_no_value(results_copy, name, read, least):
    path = RUN_FOLDER / name
    before = read(path)
    refused = 0
    for _ in flip_bits(path):
        try:
            assert read(path) == before
        except BenchError:
            refused += 1
    assert refused >= least
