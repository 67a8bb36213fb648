"""Overlays laid over one another."""

from typing import Any

from dpfedbench.settings.layers import leaves, merge, set_key
from dpfedbench.settings.part import Settings
from tests.dpfedbench.settings.family import Rule
from tests.dpfedbench.settings.family.still import Still


class Section(Settings):
    size: int
    rate: float


class Toy(Settings):
    section: Section | None
    rule: Rule | None
    names: dict[str, int]


def test_sections_are_laid_key_by_key_and_values_replace() -> None:
    below: dict[str, Any] = {"section": {"size": 1}, "names": {"a": 1}}
    assert merge(Toy, below, {"section": {"rate": 2}, "names": {"b": 2}}) == {
        "section": {"size": 1, "rate": 2},
        "names": {"a": 1, "b": 2},
    }
    assert merge(Toy, below, None, {"section": None}) == {
        "section": None,
        "names": {"a": 1},
    }
    assert merge(Toy, {"section": None}, {"section": {"size": 2}}) == {
        "section": {"size": 2}
    }
    assert below == {"section": {"size": 1}, "names": {"a": 1}}


def test_another_kind_keeps_what_it_has_too() -> None:
    below = {"rule": {"kind": "moving", "threshold": 0.5, "window": 3}}
    assert merge(Toy, below, {"rule": "still"}) == {
        "rule": {"kind": "still", "threshold": 0.5}
    }
    assert merge(Toy, below, {"rule": {"kind": "moving", "form": "mean"}})[
        "rule"
    ] == below["rule"] | {"form": "mean"}
    assert merge(Toy, below, {"rule": {"window": 4}})["rule"]["window"] == 4

    # What was never said of another kind, and does not fit, is kept for `read` to
    # refuse.
    assert merge(Toy, {"rule": {"window": 4}}, {"rule": "still"})["rule"] == {
        "kind": "still",
        "window": 4,
    }
    assert (
        merge(Toy, below, {"rule": {"kind": "still", "window": 4}})["rule"]["window"]
        == 4
    )


def test_several_structures_are_taken_together() -> None:
    class Other(Settings):
        only: Still

    merged = merge(
        [Toy, Other],
        {"rule": {"kind": "odd", "order": 1}, "only": {"threshold": 1}},
        {"rule": "still"},
    )
    assert merged == {"rule": {"kind": "still"}, "only": {"threshold": 1}}


def test_leaves_and_set_key_are_inverse() -> None:
    nested = {"a": {"b": 1}, "c": None}
    rebuilt: dict[str, Any] = {}
    for key, value in leaves(nested).items():
        rebuilt = set_key(rebuilt, key, value)
    assert rebuilt == nested
    assert set_key({"a": "still"}, "a.b", 1) == {"a": {"kind": "still", "b": 1}}
