"""Merging of overlays, and the keys that a method takes of them."""

from typing import Any

from dpfedbench.config.merge import check, fit, leaves, merge, set_key
from dpfedbench.config.part import Settings
from tests.dpfedbench.config.family import Rule
from tests.dpfedbench.config.family.rules import Still


class AnyRule(Settings):
    rule: Rule | None
    names: dict[str, int]


class OnlyStill(Settings):
    rule: Still = Still(threshold=1)


STILL = {"kind": "still", "threshold": 0.5}
MOVING = {"kind": "moving", "threshold": 0.5}


def test_merge_lays_groups_key_by_key_and_replaces_values() -> None:
    lower: dict[str, Any] = {"section": {"size": 1}, "names": {"a": 1}}
    assert merge(lower, {"section": {"rate": 2}, "names": {"b": 2}}) == {
        "section": {"size": 1, "rate": 2},
        "names": {"a": 1, "b": 2},
    }
    assert merge(lower, None, {"section": None})["section"] is None
    assert merge({"section": None}, {"section": {"a": 2}}) == {"section": {"a": 2}}
    assert lower == {"section": {"size": 1}, "names": {"a": 1}}


def test_merge_takes_text_beside_a_group_as_its_kind() -> None:
    assert merge({"rule": MOVING}, {"rule": "still"}) == {"rule": STILL}
    assert merge({"rule": "still"}, {"rule": {"threshold": 0.5}}) == {"rule": STILL}
    assert merge({"rule": "still"}, {"rule": "odd"}) == {"rule": "odd"}


def test_fit_leaves_out_keys_that_the_parts_do_not_have() -> None:
    values = {"rule": STILL | {"window": 3}, "names": {}, "other": 1}
    assert fit(AnyRule, values) == {"rule": STILL, "names": {}}
    assert fit(OnlyStill, {"rule": MOVING | {"window": 3}}) == {"rule": STILL}


def test_fit_keeps_the_keys_of_the_run_itself() -> None:
    run = {"rule": {"kind": "still", "window": 4}, "other": 1}
    assert fit(AnyRule, merge({"rule": {"form": "sum"}}, run), run) == run
    run = {"rule": {"kind": "moving"}}
    assert fit(OnlyStill, run, run) == run


def test_check_accepts_the_key_of_any_kind() -> None:
    check([OnlyStill, AnyRule], {"rule": {"kind": "still", "window": 3}}, "run")
    check([OnlyStill, AnyRule], {"rule": None}, "run")


def test_leaves_and_set_key_are_inverse() -> None:
    nested = {"a": {"b": 1}, "c": None}
    rebuilt: dict[str, Any] = {}
    for key, value in leaves(nested).items():
        rebuilt = set_key(rebuilt, key, value)
    assert rebuilt == nested
    assert set_key({"a": "still"}, "a.b", 1) == {"a": {"kind": "still", "b": 1}}
