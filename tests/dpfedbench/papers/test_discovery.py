"""Discovery of methods: one module a method, and one-line errors for bad classes."""

from typing import Any, ClassVar

import pytest

from dpfedbench.errors import BenchError
from dpfedbench.method import Method
from dpfedbench.papers import METHODS, by_name, read_run
from dpfedbench.papers.dp_fedmeta import NonPrivateMaml


def method(module: str, **values: Any) -> type[Method]:
    """Return a method class of a module of the package, named after the module."""
    path = f"dpfedbench.papers.{module}"
    values = {"name": module, "title": "A title", "__module__": path} | values
    annotations = dict.fromkeys(("name", "title"), ClassVar[str])
    return type("Own", (NonPrivateMaml,), values | {"__annotations__": annotations})


def test_methods_have_their_name_and_a_unique_title() -> None:
    assert {"random", "maml", "dp-agr", "adap-dp-fl", "dp-fnas"} < set(METHODS)
    assert "ClientLevelMethod" not in {cls.__name__ for cls in METHODS.values()}
    assert len({cls.title for cls in METHODS.values()}) == len(METHODS)
    for name, cls in METHODS.items():
        assert name == cls.name
        assert issubclass(cls, Method)
        assert cls.title
        assert cls.paper
        assert cls.version
        assert cls.__module__.startswith("dpfedbench.papers.")


def test_methods_of_one_name_are_both_in_the_error() -> None:
    with pytest.raises(BenchError) as caught:
        by_name([method("one"), method("two", name="one")])
    assert (
        str(caught.value)
        == "the methods in dpfedbench.papers.one and dpfedbench.papers.two both have"
        " the name 'one': give one of them another"
    )


@pytest.mark.parametrize("name", ["dp-ag", None, 3])
def test_unknown_method_is_refused_with_the_nearest(name: Any) -> None:
    with pytest.raises(
        BenchError, match=r"^method is .*: no method has this name, the nearest is '"
    ) as caught:
        read_run({"method": name})
    assert name != "dp-ag" or "'dp-agr'" in str(caught.value)
