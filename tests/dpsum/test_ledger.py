"""The ledger: what is written is read back, and damage and edits are refused."""

import dataclasses
import json

import pytest

import dpsum
from dpsum.ledger import Ledger, parse, read_ledger
from tests.dpsum.accounting.helpers import correlated_releases, skellam_releases
from tests.dpsum.helpers import make_release, make_releases

EVENT = make_release(name="query-gradient-sum")
MISSING = object()


def write_ledger_of(path, releases):
    ledger = Ledger(path)
    for release in releases:
        ledger.append(release)
    return ledger


@pytest.fixture
def ledger(tmp_path):
    """A ledger of four rounds."""
    return write_ledger_of(tmp_path / "ledger.jsonl", make_releases(4))


def read_error(path, chain=None):
    """Return the one-line message with which reading a ledger is refused."""
    with pytest.raises(dpsum.DpsumError) as raised:
        read_ledger(path, chain)
    message = str(raised.value)
    assert str(path) in message
    assert "\n" not in message
    assert len(message) < 400
    return message


def test_ledger_is_read_back_with_the_fields_of_other_noise_and_of_parts_alone(
    tmp_path,
):
    part = make_release(
        part="training half", adds=2, unit="record", threshold=[0.5] * 2
    )
    releases = [correlated_releases()[0], skellam_releases()[0], part, make_release()]
    ledger = write_ledger_of(tmp_path / "ledger.jsonl", releases)
    assert read_ledger(ledger.path, ledger.chain) == releases
    plain_line = json.loads(ledger.path.read_text().splitlines()[3])
    assert not {"combines", "secure", "part", "adds", "groups"} & set(plain_line)


def test_ledger_of_an_earlier_version_is_read(tmp_path):
    """Its field `index` was `round`."""
    path = tmp_path / "ledger.jsonl"
    values = json.loads(make_release().line(""))
    values["round"] = values.pop("index")
    path.write_text(json.dumps(values) + "\n", encoding="utf-8")
    assert read_ledger(path) == [make_release()]


def test_ledger_after_a_restart_keeps_the_lines_of_its_checkpoint(ledger, tmp_path):
    restarted = write_ledger_of(tmp_path / "restarted.jsonl", make_releases(2))
    chain = restarted.chain
    restarted.append(make_releases(3)[2])
    with open(restarted.path, "a", encoding="utf-8") as handle:
        handle.write('{"round": 3, "na')  # torn by a kill
    restarted = Ledger(restarted.path)
    restarted.go_on_after(chain)
    assert read_ledger(restarted.path) == make_releases(2)
    for release in make_releases(4)[2:]:
        restarted.append(release)
    assert restarted.path.read_bytes() == ledger.path.read_bytes()


@pytest.mark.parametrize("kept", [slice(0, 1), slice(0, 0), slice(1, 4)])
def test_ledger_after_a_restart_misses_lines_of_its_checkpoint(ledger, kept):
    lines = ledger.path.read_text().splitlines(keepends=True)
    ledger.path.write_text("".join(lines[kept]))
    with pytest.raises(dpsum.DpsumError, match="does not belong to the checkpoint"):
        Ledger(ledger.path).go_on_after(ledger.chain)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda one, two, *rest: [one, two.replace("1.0", "2.0"), *rest], "changed"),
        (lambda _, *rest: rest, "lines are missing"),
        (lambda one, _, *rest: [one, *rest], "lines are missing"),
        (lambda one, two, *rest: [two, one, *rest], "lines are missing"),
        (lambda one, *rest: [one, one, *rest], "starts a second run"),
        (lambda *lines: lines * 2, "line 5, starts a second run"),
        (lambda *lines: lines[:3], "has 3 lines, but training.json"),
        (lambda *lines: [], "has 0 lines, but training.json"),
        (
            lambda *lines: [*lines[:3], lines[3].replace("1.0", "2.0")],
            "has 4 lines, but training.json",
        ),
    ],
)
def test_ledger_refuses_edited_lines(ledger, edit, message):
    lines = ledger.path.read_text().splitlines(keepends=True)
    ledger.path.write_text("".join(edit(*lines)))
    assert message in read_error(ledger.path, ledger.chain)


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
        ("index", 1.5, "round is 1.5, not a whole number"),
        ("index", -1, "round is -1 and dimension 3"),
        ("dimension", "3", "dimension is '3', not a whole number"),
        ("name", None, "name is None, not text"),
        ("extra", 1, "fields missing or unknown: extra"),
        ("round", 0, "fields missing or unknown: index"),
        ("mechanism", MISSING, "fields missing or unknown: mechanism"),
        ("counted_by_paper", "yes", "counted_by_paper is 'yes', not true or false"),
        ("sampler", "poisson", "sampler is 'poisson', not a group of keys"),
        ("sampler", {"rate": 0.5}, "sampler has no kind"),
        ("sampler", {"kind": "poisson", "rate": 1.5}, "sampler.rate is 1.5, not a"),
    ],
)
def test_ledger_refuses_values_that_no_mechanism_wrote(tmp_path, field, value, message):
    path = tmp_path / "ledger.jsonl"
    values = json.loads(make_release().line("")) | {field: value}
    values = {name: value for name, value in values.items() if value is not MISSING}
    path.write_text(json.dumps(values) + "\n", encoding="utf-8")
    assert f"line 1, is not a release ({message}" in read_error(path)


SIZES = {"units": 8, "cohort": 2, "rounds": 3, "seed": 0}
FIELDS = '"clients": 8, "cohort": 2, "rounds": 3, "rate": 0.25'


@pytest.mark.parametrize(
    ("participation", "text"),
    [
        (dpsum.OnePass(**SIZES), f'"one-pass", {FIELDS}'),
        (
            dpsum.RecordLots(clients=2, lot=3, rounds=4, steps=2, records=9, seed=0),
            '"poisson-lots", "clients": 2, "records": 9, "cohort": 3, "rounds": 8,'
            ' "rate": 0.3333333333333333',
        ),
        (
            dpsum.ShuffledEpochs(**SIZES),
            f'"shuffled-epochs", {FIELDS}, "epoch": 4, "batches": "known"',
        ),
        (
            dpsum.MinSeparation(**SIZES),
            f'"min-separation", {FIELDS}, "separation": 4, "participations": 1',
        ),
    ],
)
def test_sampling_has_a_fixed_text_in_the_ledger(participation, text):
    """The texts are written by hand; the line is read back as the same sampling."""
    sampling = participation.describe()
    line = make_release(sampler=sampling).line("")
    assert f'"sampler": {{"kind": {text}}}, "denominator"' in line
    (release,) = parse(line, "ledger.jsonl")
    assert release.sampler == sampling
    assert hash(release.sampler) == hash(sampling)


def test_sampling_of_another_encoder_is_another_and_in_no_ledger():
    sampling = dpsum.OnePass(**SIZES).describe()
    small = dataclasses.replace(sampling, encoder=bytes(8))
    large = dataclasses.replace(sampling, encoder=bytes(16))
    assert "encoder" not in dict(small)
    assert small != large
    assert len({small, large, sampling}) == 3
