"""The ledger: what is written is read back, and damage and edits are refused."""

import dataclasses
import json
from pathlib import Path

import pytest

from dpsum import DpsumError
from dpsum.ledger import Ledger, read_ledger
from tests.dpsum.helpers import make_release, make_releases

EVENT = make_release(name="query-gradient-sum")


@pytest.fixture
def ledger(tmp_path):
    """A ledger of four rounds."""
    return write_rounds(tmp_path / "ledger.jsonl")


def write_rounds(path, count=4):
    ledger = Ledger(path)
    for release in make_releases(count):
        ledger.append(release)
    return ledger


def read_error(path, chain=None):
    """Return the one-line message with which reading a ledger is refused."""
    with pytest.raises(DpsumError) as raised:
        read_ledger(path, chain)
    message = str(raised.value)
    assert str(path) in message
    assert "\n" not in message
    assert len(message) < 400
    return message


def test_ledger_is_read_back(ledger):
    assert read_ledger(ledger.path, ledger.chain) == make_releases(4)


def test_ledger_after_a_restart_keeps_the_lines_of_its_checkpoint(tmp_path):
    ledger = write_rounds(tmp_path / "ledger.jsonl", 2)
    chain = ledger.chain
    for release in make_releases(4)[2:]:
        ledger.append(release)
    expected = ledger.path.read_bytes()
    with open(ledger.path, "a", encoding="utf-8") as handle:
        handle.write('{"round": 4, "na')  # torn by a kill
    restarted = Ledger(ledger.path)
    restarted.go_on_after(chain)
    assert read_ledger(ledger.path) == make_releases(2)
    for release in make_releases(4)[2:]:
        restarted.append(release)
    assert ledger.path.read_bytes() == expected


@pytest.mark.parametrize("kept", [slice(0, 1), slice(0, 0), slice(1, 4)])
def test_ledger_after_a_restart_misses_lines_of_its_checkpoint(ledger, kept):
    lines = ledger.path.read_text().splitlines(keepends=True)
    ledger.path.write_text("".join(lines[kept]))
    with pytest.raises(DpsumError, match="does not belong to the checkpoint"):
        Ledger(ledger.path).go_on_after(ledger.chain)


@pytest.mark.parametrize(
    "edit",
    [
        lambda lines: [lines[0], lines[1].replace("1.0", "2.0"), *lines[2:]],
        lambda lines: lines[1:],
        lambda lines: [lines[0], *lines[2:]],
        lambda lines: [lines[1], lines[0], *lines[2:]],
        lambda lines: [lines[0], *lines],
    ],
    ids=["changed", "beginning cut off", "removed", "exchanged", "repeated"],
)
def test_ledger_refuses_edited_lines(ledger, edit):
    lines = ledger.path.read_text().splitlines(keepends=True)
    ledger.path.write_text("".join(edit(lines)))
    error = read_error(ledger.path)
    assert "line before it was changed" in error or "a second run" in error


@pytest.mark.parametrize(
    "edit",
    [
        lambda lines: lines[:3],
        lambda lines: [*lines[:3], lines[3].replace("1.0", "2.0")],
        lambda lines: [],
    ],
    ids=["end cut off", "last line changed", "empty"],
)
def test_ledger_refuses_an_edited_end_by_its_chain(ledger, edit):
    lines = edit(ledger.path.read_text().splitlines(keepends=True))
    ledger.path.write_text("".join(lines))
    read_ledger(ledger.path)
    message = read_error(ledger.path, ledger.chain)
    assert f"has {len(lines)} lines, but training.json" in message


def test_ledger_refuses_two_runs_in_one_file(tmp_path):
    path = tmp_path / "ledger.jsonl"
    for _ in range(2):
        write_rounds(path, 3)
    assert "line 4, starts a second run" in read_error(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe\x00", "is not UTF-8 text"),
        (b"[" * 100_000, "line 1, is not a release"),
        (b"1" * 10_000, "line 1, is not a release"),
        (b"null", "line 1, is not a release"),
        (b"{}", "line 1, is not a release"),
        (b"not json", "line 1, is not a release"),
    ],
)
def test_ledger_refuses_content_that_is_no_release(tmp_path, content, message):
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(content + b"\n")
    assert message in read_error(path)
    assert path.read_bytes() == content + b"\n"


@pytest.mark.parametrize("change", [{"extra": 1}, {"mechanism": None}])
def test_ledger_refuses_unknown_and_missing_fields(tmp_path, change):
    path = write_rounds(tmp_path / "ledger.jsonl", 1).path
    values = json.loads(path.read_text()) | change
    values = {key: value for key, value in values.items() if value is not None}
    path.write_text(json.dumps(values) + "\n")
    assert "fields missing or unknown" in read_error(path)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        *(
            ("noise_multiplier", value, f"noise_multiplier is {value!r}, not a number")
            for value in ("1.0", 1e308, 1e-300, float("nan"), [1.0], True, 0)
        ),
        ("threshold", [0.5, None], "threshold is None, not a number"),
        ("noise_std", -1.0, "noise_std is -1.0, not a number"),
        ("combines", [0.5, "x"], "combines is 'x', not a number"),
        ("round", 1.5, "round is 1.5, not a whole number"),
        ("round", -1, "round is -1 and dimension 3"),
        ("dimension", "3", "dimension is '3', not a whole number"),
        ("name", None, "name is None, not text"),
        ("counted_by_paper", "yes", "counted_by_paper is 'yes', not true or false"),
        ("sampler", "poisson", "sampler is 'poisson', not a group of keys"),
        ("sampler", {"rate": 0.5}, "sampler has no kind"),
        ("sampler", {"kind": "poisson", "rate": 1.5}, "sampler.rate is 1.5, not a"),
    ],
)
def test_ledger_refuses_values_that_no_mechanism_wrote(tmp_path, field, value, message):
    path = write_rounds(tmp_path / "ledger.jsonl", 1).path
    values = json.loads(path.read_text(encoding="utf-8")) | {field: value}
    path.write_text(json.dumps(values) + "\n", encoding="utf-8")
    assert f"line 1, is not a release ({message}" in read_error(path)


def test_ledger_refuses_a_missing_file(tmp_path):
    assert "is missing" in read_error(tmp_path / "ledger.jsonl")


def test_ledger_names_a_full_disk(ledger):
    ledger.path = Path("/dev/full")
    if not ledger.path.exists():
        pytest.skip("no /dev/full here")
    with pytest.raises(DpsumError, match="no room to write /dev/full"):
        ledger.append(dataclasses.replace(EVENT, round=4))
