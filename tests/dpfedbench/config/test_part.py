"""Settings: values, kinds of parts, identity, families of parts, merging of overlays,
and the keys that a method takes of them.
"""

import contextlib
import importlib
import pkgutil
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import pydantic
import pytest

import dpfedbench
from dpfedbench.config.kinds import is_library, is_section
from dpfedbench.config.merge import (
    KeyFault,
    keep_declared,
    lay,
    leaves,
    merge,
    set_key,
)
from dpfedbench.config.part import (
    Section,
    Settings,
    kind_of,
    kinds_of,
    setting,
    states,
)
from dpfedbench.config.schema import convert, fields_of, keys_of, members
from dpfedbench.errors import BenchError
from dpfedbench.parts.clipping.reference import MedianOfRun
from dpsum.clipping import Constant
from tests.dpfedbench.config.family import Rule, SharedRule
from tests.dpfedbench.config.family.rules import Moving, Odd, Still


class Server(Settings):
    rate: float = setting(0.1, gt=0, le=1)
    steps: int = setting(ge=1)
    stop: bool = True
    seeds: tuple[int, ...] = (0,)


class Toy(Settings):
    name: ClassVar[str] = "toy"
    server: Server
    clipping: SharedRule | None
    title: str | None = None
    kernels: Literal["auto", "off"] = "auto"
    any_rule: Rule = Still(threshold=1)
    two: Still | Odd | None = None
    more: dict[str, Server] = {}  # noqa: RUF012


def values(**changes: Any) -> dict[str, Any]:
    return {"server": {"steps": 3}, "clipping": {"kind": "moving"}} | changes


def test_part_family_is_what_lies_in_its_package() -> None:
    assert kinds_of(Rule) == {"moving": Moving, "odd": Odd, "still": Still}
    assert kinds_of(SharedRule) == {"moving": Moving, "still": Still}
    kinds = [kind_of(cls) for cls in (Still, SharedRule, Server)]
    assert kinds == ["still", None, None]


def test_part_is_chosen_by_its_kind_or_by_text() -> None:
    toy = Toy.read(values(any_rule="odd", two={"kind": "odd", "inner": "moving"}))
    assert isinstance(toy.clipping, Moving)
    assert toy.any_rule == Odd()
    assert toy.two == Odd(inner=Moving())
    assert Toy.read(values(clipping=None)).clipping is None
    assert Toy.read(values(clipping=Still(threshold=2))).clipping == Still(threshold=2)


def test_settings_that_are_made_directly_are_checked_too() -> None:
    with pytest.raises(BenchError, match="rate is 2"):
        Server(steps=1, rate=2)
    with pytest.raises(BenchError, match="rate is 3"):
        Server(steps=1).replace(rate=3)
    assert Server(steps=1).replace(rate=0.5) == Server(steps=1, rate=0.5)


def test_settings_read_text_as_the_type_of_the_key() -> None:
    server = {"rate": "1e-6", "steps": "3", "stop": "False", "seeds": ["0", 1.0]}
    clipping = {"kind": "moving", "threshold": "null"}
    toy = Toy.read({"server": server, "clipping": clipping, "title": "null"})
    assert toy.server == Server(rate=1e-6, steps=3, stop=False, seeds=(0, 1))
    assert toy.clipping == Moving()
    assert toy.title is None
    assert Toy.read(values(title="1")).title == "1"
    # YAML reads the word off as a truth value.
    assert Toy.read(values(kernels=False)).kernels == "off"


class Lists(Settings):
    seeds: tuple[int, ...] = setting((0,))
    pair: tuple[str, float] = setting(("a", 1.0))
    by_task: dict[str, tuple[int, ...] | None] = setting({})
    switches: tuple[bool, ...] = setting(())
    options: dict[str, Any] = setting({})


@pytest.mark.parametrize(
    "values",
    [
        {"seeds": [True]},
        {"seeds": [0, False]},
        {"pair": ["a", True]},
        {"by_task": {"5-way": [1, True]}},
        {"by_task": {"5-way": True}},
    ],
)
def test_settings_refuse_a_truth_value_within_a_list_or_mapping(values) -> None:
    """Pydantic would read true as 1."""
    (key,) = values
    with pytest.raises(BenchError, match=f"^{key} is .*: expected no truth value$"):
        Lists(**values)


def test_settings_take_truth_values_where_they_are_meant() -> None:
    values = {"switches": [True, False], "options": {"deep": [True]}}
    assert Lists(**values).plain().items() >= values.items()


def has_number(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(has_number, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(has_number, value))
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def test_no_key_of_any_section_reads_a_truth_value_as_a_number() -> None:
    for info in pkgutil.walk_packages(dpfedbench.__path__, "dpfedbench."):
        importlib.import_module(info.name)
    sections: list[Any] = [Settings]
    for section in sections:  # the list grows
        subclasses = section.__subclasses__()
        sections += [cls for cls in subclasses if cls not in sections]
        parts = [cls for key in keys_of(section).values() for cls in key.classes]
        sections += [cls for cls in parts if is_library(cls) and cls not in sections]
    shipped = [cls for cls in sections if cls.__module__.startswith(("dpf", "dpsum"))]
    assert len(shipped) > 100
    for section in shipped:
        for name, field in fields_of(section).items():
            if any(map(is_section, members(field.annotation))):
                continue
            converter = pydantic.BeforeValidator(partial(convert, field.annotation))
            reader = pydantic.TypeAdapter(
                Annotated[(field.annotation, *field.metadata, converter)]
            )
            for value in (True, [True], [True, True], {"a": True}, {"a": [True]}):
                with contextlib.suppress(pydantic.ValidationError):
                    assert not has_number(reader.validate_python(value)), name


def test_settings_of_equal_values_are_equal_and_read_back() -> None:
    whole_rate = Server.read({"rate": 1, "steps": 3.0})
    assert whole_rate == Server(rate=1.0, steps=3)
    assert repr(whole_rate.plain()) == repr(Server(rate=1.0, steps=3).plain())
    inner = {"kind": "odd", "inner": "moving"}
    toy = Toy.read(values(two=inner, more={"a": {"steps": 2}}))
    assert Toy.read(toy.plain()) == toy
    expected = {"rate": 0.1, "steps": 3, "stop": True, "seeds": [0]}
    assert toy.plain()["server"] == expected


def test_identity_is_what_differs_from_the_defaults() -> None:
    """So it stays when a setting with a default is added."""

    class Example(Settings):
        a: int
        rule: Rule = Moving(window=5)
        rate: int = 7

    moving = {"rule": {"kind": "moving", "window": 6}}
    for change in {"rate": 3}, {"rule": {"kind": "odd"}}, moving:
        assert Example.read({"a": 1} | change).identity() == {"a": 1} | change
    for default in {}, {"rate": 7}, {"rule": {"kind": "moving", "window": 5}}:
        assert Example.read({"a": 1} | default).identity() == {"a": 1}


# Merging of overlays


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


def test_lay_keeps_the_keys_that_both_kinds_have() -> None:
    """`window` and `form` are keys of `moving` alone."""
    values = {"rule": {"kind": "moving", "threshold": 0.25, "window": 3}}
    assert lay(AnyRule, values, {"rule": "still"}, "run") == {
        "rule": {"kind": "still", "threshold": 0.25}
    }
    laid = lay(AnyRule, {"rule": STILL}, {"rule": {"kind": "moving"}}, "run")
    assert laid == {"rule": {"kind": "moving", "threshold": 0.5}}


def test_lay_keeps_the_other_keys_of_a_part_of_the_same_kind() -> None:
    values = {"rule": MOVING | {"window": 3}}
    assert lay(AnyRule, values, {"rule": {"threshold": 2}}, "run") == {
        "rule": {"kind": "moving", "threshold": 2, "window": 3}
    }
    assert lay(AnyRule, values, {"rule": None}, "run") == {"rule": None}
    assert values == {"rule": MOVING | {"window": 3}}


@pytest.mark.parametrize(
    ("overlay", "key", "message"),
    [
        ({"other": 1}, "run.other", "unknown key run.other"),
        ({"rule": {"windw": 1}}, "run.rule.windw", "unknown key run.rule.windw"),
        (
            {"rule": {"kind": "still", "window": 4}},
            "run.rule.window",
            "unknown key run.rule.window: kinds with this key: moving",
        ),
        (
            {"rule": "stil"},
            "run.rule.kind",
            'run.rule.kind is "stil": expected one of moving, odd, still',
        ),
    ],
)
def test_lay_refuses_what_the_chosen_part_does_not_have(
    overlay: dict[str, Any], key: str, message: str
) -> None:
    with pytest.raises(KeyFault) as fault:
        lay(AnyRule, {"rule": MOVING}, overlay, "run")
    assert fault.value.key == key
    assert str(fault.value).startswith(message)


def test_keep_declared_leaves_out_whole_parts_alone() -> None:
    """A part that is not declared, and a part of a kind that is not accepted; a key
    inside a declared part stays, for `lay` to refuse.
    """
    overlay = {"rule": MOVING, "other": {"a": 1}}
    assert keep_declared(OnlyStill, overlay) == {}
    wrong = {"rule": {"window": 3}}
    assert keep_declared(OnlyStill, wrong) == wrong
    with pytest.raises(KeyFault, match=r"unknown key run\.rule\.window"):
        lay(OnlyStill, {"rule": STILL}, keep_declared(OnlyStill, wrong), "run")


def test_states_finds_methods_of_a_class_and_of_its_bases() -> None:
    class Loud(Section):
        def notices(self, run: object) -> tuple[str, ...]:
            return ("listen",)

    class Louder(Loud):
        pass

    assert states(Loud, "notices")
    assert states(Louder, "notices")
    assert not states(Louder, "breaches")
    assert not states(Section, "notices")
    # Classes of dpsum extend no section.
    assert states(MedianOfRun, "references")
    assert not states(Constant, "references")


def test_leaves_and_set_key_are_inverse() -> None:
    nested = {"a": {"b": 1}, "c": None}
    rebuilt: dict[str, Any] = {}
    for key, value in leaves(nested).items():
        rebuilt = set_key(rebuilt, key, value)
    assert rebuilt == nested
    assert set_key({"a": "still"}, "a.b", 1) == {"a": {"kind": "still", "b": 1}}
