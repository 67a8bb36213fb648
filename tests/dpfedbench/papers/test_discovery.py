"""Methods are found by their modules; a class that cannot be one is named in one
line.
"""

from typing import Any, ClassVar

import pytest

from dpfedbench.errors import BenchError
from dpfedbench.method import Method
from dpfedbench.papers import METHODS, by_name, read_run
from dpfedbench.papers.dp_fedmeta import NonPrivateMaml


def method(module: str, **values: Any) -> type[Method]:
    """A method in a module of the package, by default of the module's name."""
    place = f"dpfedbench.papers.{module}"
    values = {"name": module, "title": "A title", "__module__": place} | values
    annotations = dict.fromkeys(("name", "title"), ClassVar[str])
    return type("Own", (NonPrivateMaml,), values | {"__annotations__": annotations})


def test_every_method_has_its_name_and_a_title_of_its_own() -> None:
    assert {"random", "maml", "dp-agr", "adap-dp-fl", "dp-fnas"} < set(METHODS)
    assert "ClientLevelMethod" not in {found.__name__ for found in METHODS.values()}
    assert len({found.title for found in METHODS.values()}) == len(METHODS)
    for name, found in METHODS.items():
        assert name == found.name
        assert issubclass(found, Method)
        assert found.title
        assert found.paper
        assert found.version
        assert found.__module__.startswith("dpfedbench.papers.")


def test_two_methods_of_one_name_are_both_named() -> None:
    with pytest.raises(BenchError) as caught:
        by_name([method("one"), method("two", name="one")])
    assert (
        str(caught.value)
        == "the methods in dpfedbench.papers.one and dpfedbench.papers.two both have"
        " the name 'one': give one of them another"
    )


def test_a_method_without_a_title_or_with_a_bad_name_is_named() -> None:
    assert list(by_name([method("one")])) == ["one"]
    with pytest.raises(
        BenchError,
        match=(
            r"^the method Own in dpfedbench\.papers\.one has no title: tables"
            r" print it$"
        ),
    ):
        by_name([method("one", title="")])
    with pytest.raises(
        BenchError,
        match=r"has the name 'Two Words': use lower-case letters, digits and hyphens$",
    ):
        by_name([method("two", name="Two Words")])


@pytest.mark.parametrize("name", ["dp-ag", None, 3])
def test_an_unknown_method_is_refused_with_the_nearest(name: Any) -> None:
    with pytest.raises(
        BenchError, match=r"^method is .*: there is no such method, the nearest is '"
    ) as caught:
        read_run({"method": name})
    assert name != "dp-ag" or "'dp-agr'" in str(caught.value)
