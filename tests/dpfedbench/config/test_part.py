"""Settings: refusals in one line, text that stands for values, families found by place,
identity.
"""

import sys
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

from dpfedbench.config.part import Part, Settings, kind_of, kinds_of, setting
from dpfedbench.errors import BenchError
from tests.dpfedbench.config.family import Rule, SharedRule
from tests.dpfedbench.config.family.moving import Moving, Odd
from tests.dpfedbench.config.family.still import Still


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
    any_rule: Rule = Still(threshold=1)
    two: Still | Odd | None = None
    more: dict[str, Server] = {}  # noqa: RUF012


def values(**changes: Any) -> dict[str, Any]:
    return {"server": {"steps": 3}, "clipping": {"kind": "moving"}} | changes


def refusal(cls: type[Settings], given: Any, where: str = "") -> str:
    with pytest.raises(BenchError) as caught:
        cls.read(given, where)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_family_is_what_lies_at_its_place() -> None:
    assert kinds_of(Rule) == {"moving": Moving, "odd": Odd, "still": Still}
    assert kinds_of(SharedRule) == {"moving": Moving, "still": Still}
    assert (
        kind_of(Still) == "still"
        and kind_of(SharedRule) is None
        and kind_of(Server) is None
    )


def test_a_kind_chooses_the_part_and_text_stands_for_it() -> None:
    toy = Toy.read(values(any_rule="odd", two={"kind": "odd", "inner": "moving"}))
    assert isinstance(toy.clipping, Moving) and toy.any_rule == Odd()
    assert toy.two == Odd(inner=Moving())
    assert Toy.read(values(clipping=None)).clipping is None
    assert Toy.read(values(clipping="null")).clipping is None
    assert Toy.read(values(clipping=Still(threshold=2))).clipping == Still(threshold=2)


def test_a_section_that_is_made_directly_is_checked_too() -> None:
    with pytest.raises(BenchError, match="rate is 2"):
        Server(steps=1, rate=2)
    with pytest.raises(
        BenchError, match="unknown key stepz: the nearest known key is steps"
    ):
        Server(stepz=1)
    with pytest.raises(BenchError, match="steps is missing"):
        Server()
    with pytest.raises(BenchError, match="rate is 3"):
        Server(steps=1).replace(rate=3)
    assert Server(steps=1).replace(rate=0.5) == Server(steps=1, rate=0.5)


def test_text_stands_for_what_the_key_wants() -> None:
    toy = Toy.read(
        {
            "server": {
                "rate": "1e-6",
                "steps": "3",
                "stop": "False",
                "seeds": ["0", 1.0],
            },
            "clipping": {"kind": "moving", "threshold": "null"},
            "title": "null",
            "two": {"kind": "odd", "order": "1"},
        }
    )
    assert toy.server == Server(rate=1e-6, steps=3, stop=False, seeds=(0, 1))
    assert toy.clipping == Moving() and toy.title is None and toy.two == Odd(order=1)
    assert Toy.read(values(title="1")).title == "1"


def test_off_is_a_word_where_one_is_wanted() -> None:
    """YAML reads it as a truth value."""

    class Switch(Settings):
        kernels: Literal["auto", "off"] = "auto"

    assert (
        Switch.read({"kernels": False}).kernels
        == "off"
        == Switch(kernels="off").kernels
    )
    assert refusal(Switch, {"kernels": True}).startswith('kernels is "on": ')


def test_one_value_written_in_two_ways_is_one() -> None:
    whole_rate = Server.read({"rate": 1, "steps": 3.0})
    whole_steps = Server.read({"rate": 1.0, "steps": 3})
    assert whole_rate == whole_steps
    assert whole_rate.plain() == whole_steps.plain()
    assert repr(whole_rate.plain()["rate"]) == "1.0"
    assert repr(whole_rate.plain()["steps"]) == "3"


def test_plain_values_read_back_to_an_equal_one() -> None:
    toy = Toy.read(
        values(two={"kind": "odd", "inner": "moving"}, more={"a": {"steps": 2}})
    )
    assert Toy.read(toy.plain()) == toy
    assert toy.plain()["server"] == {
        "rate": 0.1,
        "steps": 3,
        "stop": True,
        "seeds": [0],
    }


def test_identity_is_what_differs_from_the_defaults() -> None:
    class Example(Settings):
        a: int
        rule: Rule = Moving(window=5)
        rate: int = 7

    assert Example.read({"a": 1}).identity() == {"a": 1}
    assert Example.read({"a": 1, "rate": 7}).identity() == {"a": 1}
    assert Example.read({"a": 1, "rate": 3}).identity() == {"a": 1, "rate": 3}
    assert Example.read(
        {"a": 1, "rule": {"kind": "moving", "window": 6}}
    ).identity() == {"a": 1, "rule": {"kind": "moving", "window": 6}}
    assert Example.read({"a": 1, "rule": "odd"}).identity() == {
        "a": 1,
        "rule": {"kind": "odd"},
    }


def test_identity_stays_when_a_setting_with_a_default_is_added() -> None:
    class Before(Settings):
        a: int

    class After(Settings):
        a: int
        added: bool = False

    assert Before.read({"a": 1}).identity() == After.read({"a": 1}).identity()


def family(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **modules: str
) -> type[Part]:
    name = f"made_up_{tmp_path.name}"
    folder = tmp_path / name
    folder.mkdir()
    head = (
        "from typing import ClassVar, Literal\nfrom dpfedbench.config.part import"
        " Part, setting\n"
    )
    base = (
        f"class Base(Part):\n    package: ClassVar[str] = '{name}'\n    rate: float ="
        " 1.0\n"
    )
    (folder / "__init__.py").write_text(head + base, encoding="utf-8")
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(
            f"{head}from {name} import Base\n{text}", encoding="utf-8"
        )
    monkeypatch.syspath_prepend(tmp_path)
    import importlib

    importlib.invalidate_caches()
    base_class: type[Part] = importlib.import_module(name).Base
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    return base_class


PART = "class {}(Base):\n    kind: Literal['{}'] = '{}'\n"


@pytest.mark.parametrize(
    ("modules", "said"),
    [
        (
            {"a": PART.format("A", "x", "x"), "b": PART.format("B", "x", "x")},
            r"\.a and .*\.b both have a part of kin",
        ),
        (
            {"a": PART.format("A", "x", "x") + "    check: int = 1\n"},
            "has a key 'check', which shadows Section.check",
        ),
        (
            {"a": PART.format("A", "x", "x") + "    package: int = 1\n"},
            "has a key 'package', which shadows",
        ),
    ],
)
def test_a_faulty_family_is_refused_in_one_line(
    modules: dict[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = family(tmp_path, monkeypatch, **modules)
    with pytest.raises(BenchError, match=said) as caught:
        kinds_of(base)
    assert "\n" not in str(caught.value)


def test_a_part_may_have_a_default_or_fewer_values_of_its_own_for_a_key_of_its_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = family(
        tmp_path,
        monkeypatch,
        a=PART.format("A", "x", "x") + "    rate: float = setting(2.0, gt=1)\n",
    )
    assert kinds_of(base)["x"]().plain() == {"kind": "x", "rate": 2.0}  # type: ignore[call-arg]
