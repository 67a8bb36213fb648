"""What is made ahead is taken by the stage that would make the same, and by no other."""

import json
from pathlib import Path

import pytest

from dpfedbench.ahead import leave, take


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "run" / "model"
    path.parent.mkdir()
    path.write_bytes(b"weights")
    return path


def left(model: Path, name: str = "metrics.json") -> Path:
    place = model.parent / name
    leave(place, {"code": "a1", "test": {"shots": 5}, "model": model}, lambda out: _write(out, '{"accuracy": 1}\n'))
    return place


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize("name", ["metrics.json", "tests/5shot-1e-3rate.json"])
def test_the_same_is_taken(model: Path, name: str) -> None:
    place = left(model, name)
    assert not place.exists()
    assert take(place, {"code": "a1", "test": {"shots": 5}, "model": model})
    assert place.read_text() == '{"accuracy": 1}\n'


@pytest.mark.parametrize("other", [{"code": "b2"}, {"test": {"shots": 1}}, {"test": None}, {"more": 1}])
def test_what_depends_on_something_else_is_made_anew(model: Path, other: dict) -> None:
    place = left(model)
    assert not take(place, {"code": "a1", "test": {"shots": 5}, "model": model, **other})
    assert not place.exists()


def test_another_model_is_tested_anew(model: Path) -> None:
    place = left(model)
    model.write_bytes(b"others")
    assert not take(place, {"code": "a1", "test": {"shots": 5}, "model": model})


def test_nothing_was_made(model: Path) -> None:
    assert not take(model.parent / "metrics.json", {"code": "a1"})


@pytest.mark.parametrize("damage", ["{}", '{"accuracy": 2}\n', "\x00"])
def test_a_damaged_file_is_not_taken(model: Path, damage: str) -> None:
    place = left(model)
    (place.parent / "ahead" / place.name).write_text(damage)
    assert not take(place, {"code": "a1", "test": {"shots": 5}, "model": model})


def test_a_damaged_note_is_not_taken(model: Path) -> None:
    place = left(model)
    (note,) = place.parent.glob("ahead/*.from.json")
    for text in ("", "[]", json.dumps({"sha256": 1})):
        note.write_text(text)
        assert not take(place, {"code": "a1", "test": {"shots": 5}, "model": model})


def test_a_stage_that_fails_leaves_nothing_to_take(model: Path) -> None:
    place = left(model)

    def fail(out: Path) -> None:
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        leave(place, {"code": "a1", "test": {"shots": 5}, "model": model}, fail)
    assert not take(place, {"code": "a1", "test": {"shots": 5}, "model": model})
