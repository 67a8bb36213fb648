"""What a class that is found by place has to be like: all that dpfedbench comes with
is, and what is refused.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from dpfedbench.errors import BenchError
from dpfedbench.method import Method
from dpfedbench.methods import METHODS
from dpfedbench.parts.optimizers.optimizer import Optimizer
from dpfedbench.settings.discovery import check_functions, check_kind
from dpfedbench.settings.part import Part, kinds_of


def families(cls: type[Part] = Part) -> Iterator[type[Part]]:
    for below in cls.__subclasses__():
        if vars(below).get("place", "").startswith("dpfedbench."):
            yield below
        yield from families(below)


def test_what_it_comes_with_is_as_what_is_asked_of_ones_own() -> None:
    roots = list(families())
    parts = [(part, root) for root in roots for part in kinds_of(root).values()]
    assert len(roots) >= 10 and len(parts) >= 38
    for part, root in parts:
        check_kind(part)
        check_functions(part, root)
    for method in METHODS.values():
        check_functions(method, Method)


class Right(Optimizer):
    def begin(self, weights: Any) -> Any: ...

    def step(self, weights: Any, gradient: Any, state: Any, rate: float) -> None: ...


def step(code: str) -> type[Any]:
    """An optimiser with another `step`."""
    names: dict[str, Any] = {}
    exec(f"def step{code}: ...", names)
    return type("Other", (Right,), {"step": names["step"], "__module__": __name__})


@pytest.mark.parametrize(
    ("code", "taken"),
    [
        ("(self, weights, gradient, state, rate)", True),
        ("(self, weights, gradient, state, rate, more=1)", True),
        ("(self, *arguments, **more)", True),
        (
            "(self, weights, _gradient, state, _rate)",
            True,
        ),  # nobody calls what is not used by its name
        ("(self, weights, gradient, state)", False),
        ("(self, weights, gradient, state, rate, more)", False),
        ("(self, gradient, weights, state, rate, *, more)", False),
        ("(self, weights, gradient, state, learning_rate)", False),
        ("(self, *arguments)", False),
    ],
)
def test_a_function_takes_what_it_is_called_with(code: str, taken: bool) -> None:
    if taken:
        check_functions(step(code), Optimizer)
    else:
        with pytest.raises(
            BenchError,
            match=(
                r"Other\.step takes \(self, .*\), but it is called with \(self,"
                r" weights, gra"
            ),
        ):
            check_functions(step(code), Optimizer)
