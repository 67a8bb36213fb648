"""Methods are found by their modules; a module that cannot be one is named in one line."""

from types import ModuleType
from typing import Any

import pytest

from dpfedbench.errors import BenchError
from dpfedbench.methods import METHODS, PARTS, by_name


def module(name: str, **parts: Any) -> ModuleType:
    made = ModuleType(f"dpfedbench.methods.{name}")
    whole = {"NAME": name, "TITLE": "A", "PAPER": "a", "VERSION": "1", "PRIVATE": False, "DEFAULTS": {}}
    vars(made).update(whole | {"compose": print} | parts)
    return made


def test_every_module_is_a_method() -> None:
    assert {"dp-agr", "dp-maml", "maml", "random", "adap-dp-fl", "dp-fl", "fedavg"} <= set(METHODS)
    for name, found in METHODS.items():
        assert name == found.NAME and found.__name__.startswith("dpfedbench.methods.")
        assert all(hasattr(found, part) for part in PARTS)


def test_two_modules_of_one_name_are_both_named() -> None:
    with pytest.raises(BenchError) as caught:
        by_name([module("one"), module("two", NAME="one")])
    assert str(caught.value) == (
        "the method modules dpfedbench.methods.one and dpfedbench.methods.two both have the NAME 'one': "
        "give one of them another"
    )


def test_a_module_without_a_part_or_with_a_bad_name_is_named() -> None:
    incomplete = module("one")
    del incomplete.compose
    with pytest.raises(BenchError, match=r"method module dpfedbench\.methods\.one has no compose: it needs NAME, "):
        by_name([incomplete])
    with pytest.raises(BenchError, match=r"has the NAME 'Two Words': use lower-case letters"):
        by_name([module("two", NAME="Two Words")])
