"""The ledger: what is written is read back, and damage and edits are refused."""

import dataclasses
import json

import pytest

from dpsum import DpsumError
from dpsum.ledger import Ledger, read_ledger
from tests.dpsum.accounting.helpers import correlated_releases, skellam_releases
from tests.dpsum.helpers import make_release, make_releases

EVENT = make_release(name="query-gradient-sum")
MISSING = object()


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


def test_ledger_keeps_the_fields_of_other_noise_and_of_parts_alone(tmp_path):
    part = make_release(
        part="training half", adds=2, unit="record", threshold=[0.5] * 2
    )
    releases = [correlated_releases()[0], skellam_releases()[0], part, make_release()]
    releases = [
        dataclasses.replace(release, round=index)
        for index, release in enumerate(releases)
    ]
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for release in releases:
        ledger.append(release)
    assert read_ledger(ledger.path) == releases
    plain_line = json.loads(ledger.path.read_text().splitlines()[3])
    assert not {"combines", "secure", "part", "adds", "groups"} & set(plain_line)


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
    "content", [b"\xff\xfe\x00", b"[" * 100_000, b"1" * 10_000, b"null", b"{}", b"text"]
)
def test_ledger_refuses_content_that_is_no_release(tmp_path, content):
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(content + b"\n")
    message = read_error(path)
    assert "line 1, is not a release" in message or "is not UTF-8 text" in message
    assert path.read_bytes() == content + b"\n"


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
        ("extra", 1, "fields missing or unknown: extra"),
        ("mechanism", MISSING, "fields missing or unknown: mechanism"),
        ("counted_by_paper", "yes", "counted_by_paper is 'yes', not true or false"),
        ("sampler", "poisson", "sampler is 'poisson', not a group of keys"),
        ("sampler", {"rate": 0.5}, "sampler has no kind"),
        ("sampler", {"kind": "poisson", "rate": 1.5}, "sampler.rate is 1.5, not a"),
    ],
)
def test_ledger_refuses_values_that_no_mechanism_wrote(tmp_path, field, value, message):
    path = write_rounds(tmp_path / "ledger.jsonl", 1).path
    values = json.loads(path.read_text(encoding="utf-8")) | {field: value}
    values = {name: value for name, value in values.items() if value is not MISSING}
    path.write_text(json.dumps(values) + "\n", encoding="utf-8")
    assert f"line 1, is not a release ({message}" in read_error(path)
