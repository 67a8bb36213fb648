"""Rules between a part and the rest of its run.

A rule is a row: a condition and a message. The rows of a part are the class attribute
`rules` of its class, so that a new part brings its own; `parts.compatibility` has the
rows of the parts of `dpsum`, which know no run. `dpfedbench.run.check_rules` evaluates
the rows, once for each run.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from dpfedbench import plugins
from dpfedbench.errors import BenchError


@dataclasses.dataclass(frozen=True)
class Rule:
    """Rule that a run may break.

    The classes of parts and runs are `Any` here: each row knows those that it compares.

    Attributes:
        fault_of: returns the fault of a part (first argument) in its run (second
            argument); something false where there is none.
        message: what is wrong, and the remedy. `{part}`, `{run}` and `{fault}`, and
            attributes of them, are replaced as by `str.format`.
    """

    fault_of: Callable[[Any, Any], Any]
    message: str


@plugins.cached
def rules_of(cls: type) -> tuple[Rule, ...]:
    """Return the rules of a class and of its bases, those of the bases first.

    Raises:
        BenchError: the class defines the method `check` instead.
    """
    if hasattr(cls, "check"):
        raise BenchError(
            f"{cls.__module__}.{cls.__name__} defines check, which nothing calls: state"
            " its rules in the class attribute rules (docs/your-method.md)"
        )
    return tuple(
        rule for base in reversed(cls.__mro__) for rule in vars(base).get("rules", ())
    )
