"""The ledger: what is written is read back, and nothing else passes for a release."""

import dataclasses
import json
from pathlib import Path

import pytest

from dpfedbench.errors import BenchError
from dpsum.ledger import Ledger, Release, read_ledger

EVENT = Release(
    round=0,
    name="query-gradient-sum",
    unit="client",
    adjacency="zero-out",
    observer="everyone",
    noise_multiplier=1.0,
    threshold=0.5,
    sensitivity=0.5,
    noise_std=0.5,
    dimension=3,
    sampler={"kind": "one-pass", "clients": 8, "cohort": 2, "rounds": 4, "rate": 0.25},
    denominator=2.0,
    noise_stream="0/noise/0",
    data_dependent_threshold=False,
    reason="",
    mechanism="gaussian",
    counted_by_paper=True,
)


def events(count):
    return [dataclasses.replace(EVENT, round=index) for index in range(count)]


def written(path, count):
    ledger = Ledger(path)
    for event in events(count):
        ledger.append(event)
    return ledger


def test_releases_are_read_back(tmp_path):
    written(tmp_path / "ledger.jsonl", 3)
    assert read_ledger(tmp_path / "ledger.jsonl") == events(3)


def test_a_restart_keeps_what_the_checkpoint_knows_of(tmp_path):
    ledger = written(tmp_path / "ledger.jsonl", 2)
    known = ledger.chain
    for event in events(4)[2:]:
        ledger.append(event)
    whole = ledger.path.read_bytes()
    with open(ledger.path, "a", encoding="utf-8") as handle:
        handle.write('{"round": 4, "na')  # torn by a kill
    ledger = Ledger(ledger.path)
    ledger.go_on_after(known)
    assert read_ledger(ledger.path) == events(2)
    for event in events(4)[2:]:
        ledger.append(event)
    assert ledger.path.read_bytes() == whole


@pytest.mark.parametrize("cut", [slice(0, 1), slice(0, 0), slice(1, 4)])
def test_a_restart_misses_lines_that_its_checkpoint_knows_of(tmp_path, cut):
    ledger = written(tmp_path / "ledger.jsonl", 4)
    lines = ledger.path.read_text().splitlines(keepends=True)
    ledger.path.write_text("".join(lines[cut]))
    with pytest.raises(
        BenchError, match=r"not the ledger that the checkpoint .* delete the folder"
    ):
        Ledger(ledger.path).go_on_after(ledger.chain)


def test_each_line_vouches_for_those_before_it(tmp_path):
    """What is changed, taken out, put in or exchanged is refused; what is cut off the
    end by its length and head.
    """
    ledger = written(tmp_path / "ledger.jsonl", 4)
    lines = ledger.path.read_text().splitlines(keepends=True)
    changed = lines[1].replace('"noise_multiplier": 1.0', '"noise_multiplier": 2.0')
    assert changed != lines[1]
    for others in (
        [lines[0], changed, *lines[2:]],
        lines[1:],
        [lines[0], *lines[2:]],
        [lines[1], lines[0], *lines[2:]],
        [lines[0], *lines],
    ):
        ledger.path.write_text("".join(others))
        with pytest.raises(BenchError, match="line before it is not the one"):
            read_ledger(ledger.path)
    for others in (lines[:3], [*lines[:3], lines[3].replace("1.0", "2.0")], []):
        ledger.path.write_text("".join(others))
        read_ledger(ledger.path)
        with pytest.raises(
            BenchError,
            match=(
                rf"has {len(others)} lines, and training.json .* of 4 that end"
                r" otherwise"
            ),
        ):
            read_ledger(ledger.path, ledger.chain)


@pytest.mark.parametrize(
    "line", ["not json", "{}", json.dumps({**dataclasses.asdict(EVENT), "extra": 1})]
)
def test_what_is_no_release_is_refused_by_line(tmp_path, line):
    ledger = written(tmp_path / "ledger.jsonl", 1)
    ledger.path.write_text(ledger.path.read_text() + line + "\n")
    with pytest.raises(BenchError, match=r"line 2.*delete"):
        read_ledger(ledger.path)


def test_a_missing_ledger_is_named(tmp_path):
    with pytest.raises(BenchError, match=r"ledger\.jsonl is missing"):
        read_ledger(tmp_path / "ledger.jsonl")


def test_a_line_without_its_mechanism_is_refused_and_kept(tmp_path):
    ledger = written(tmp_path / "ledger.jsonl", 1)
    damaged = {
        name: value
        for name, value in dataclasses.asdict(EVENT).items()
        if name != "mechanism"
    }
    ledger.path.write_text(json.dumps(damaged) + "\n")
    with pytest.raises(
        BenchError, match=r"line 1, is not a release.*train again"
    ) as raised:
        read_ledger(ledger.path)
    assert (
        "\n" not in str(raised.value) and json.loads(ledger.path.read_text()) == damaged
    )


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("noise_multiplier", "1.0", "noise_multiplier is '1.0', not a number"),
        (
            "noise_multiplier",
            1e308,
            "noise_multiplier is 1e+308, not a number from 1e-150 to 1e+150",
        ),
        ("noise_multiplier", 1e-300, "noise_multiplier is 1e-300, not a number"),
        ("noise_multiplier", float("nan"), "noise_multiplier is nan, not a number"),
        ("noise_multiplier", [1.0], "noise_multiplier is [1.0], not a number"),
        ("noise_multiplier", True, "noise_multiplier is True, not a number"),
        ("noise_multiplier", 0, "noise_multiplier is 0, not a number"),
        ("threshold", [0.5, None], "threshold is None, not a number"),
        ("noise_std", -1.0, "noise_std is -1.0, not a number"),
        ("round", 1.5, "round is 1.5, not a whole number"),
        ("round", -1, "round is -1 and dimension 3"),
        ("dimension", "3", "dimension is '3', not a whole number"),
        ("name", None, "name is None, not text"),
        ("counted_by_paper", "yes", "counted_by_paper is 'yes', not true or false"),
        ("sampler", "poisson", "sampler is 'poisson', not a group of keys"),
        ("sampler", {"rate": 0.1}, "sampler has no kind"),
        (
            "sampler",
            {"kind": "poisson", "rate": 7, "rounds": 3},
            "sampler.rate is 7, not a number from 0 to 1",
        ),
        (
            "sampler",
            {"kind": "poisson", "rate": 0.5, "rounds": "3"},
            "sampler.rounds is '3', not a number",
        ),
        ("combines", [0.5, "x"], "combines is 'x', not a number"),
    ],
)
def test_a_value_that_no_mechanism_wrote_is_one_line(tmp_path, field, value, said):
    path = written(tmp_path / "ledger.jsonl", 1).path
    values = json.loads(path.read_text(encoding="utf-8")) | {field: value}
    path.write_text(json.dumps(values) + "\n", encoding="utf-8")
    with pytest.raises(BenchError) as caught:
        read_ledger(path)
    assert f"{path}, line 1, is not a release ({said}" in str(
        caught.value
    ) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xfe\x00", "is not UTF-8 text: delete the run's folder and train again"),
        (b"[" * 100_000, "line 1, is not a release"),
        (b"1" * 10_000, "line 1, is not a release"),
        (b"null", "line 1, is not a release"),
        (b"{}", "line 1, is not a release"),
    ],
)
def test_what_is_no_ledger_is_one_line(tmp_path, content, said):
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(content + b"\n")
    with pytest.raises(BenchError) as caught:
        read_ledger(path)
    assert str(path) in str(caught.value) and said in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_two_runs_in_one_file_are_told_from_a_changed_line(tmp_path):
    path = tmp_path / "ledger.jsonl"
    for _ in range(2):  # as a script that is run twice does
        written(path, 3)
    with pytest.raises(
        BenchError,
        match=(
            r"ledger\.jsonl, line 4, is written as the first of a run.*delete the file"
        ),
    ):
        read_ledger(path)
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[:1] + lines[2:3]), encoding="utf-8")
    with pytest.raises(
        BenchError, match=r"line 2, is not a release .the line before it is not the one"
    ):
        read_ledger(path)


def test_a_ledger_on_a_full_disk_is_named(tmp_path):
    ledger = written(tmp_path / "ledger.jsonl", 1)
    ledger.path = Path("/dev/full")
    if not ledger.path.exists():
        pytest.skip("no /dev/full here")
    with pytest.raises(
        BenchError,
        match=(
            "no room to write /dev/full: free some space and run the same command again"
        ),
    ):
        ledger.append(EVENT)
