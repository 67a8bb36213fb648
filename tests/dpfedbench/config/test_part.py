"""Settings: values, kinds of parts, identity, and families of parts."""

from typing import Any, ClassVar, Literal

import pytest

from dpfedbench.config.part import Settings, kind_of, kinds_of, setting
from dpfedbench.errors import BenchError
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
    assert [kind_of(cls) for cls in (Still, SharedRule, Server)] == [
        "still",
        None,
        None,
    ]


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


def test_settings_of_equal_values_are_equal_and_read_back() -> None:
    one, other = map(
        Server.read, ({"rate": 1, "steps": 3.0}, {"rate": 1.0, "steps": 3})
    )
    assert one == other
    assert repr(one.plain()) == repr(other.plain())
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

    other = {"rule": {"kind": "moving", "window": 6}}
    for change in {"rate": 3}, {"rule": {"kind": "odd"}}, other:
        assert Example.read({"a": 1} | change).identity() == {"a": 1} | change
    for default in {}, {"rate": 7}, {"rule": {"kind": "moving", "window": 5}}:
        assert Example.read({"a": 1} | default).identity() == {"a": 1}
