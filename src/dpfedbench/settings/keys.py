"""Keys of a section: their declaration, and the check of inherited names."""

import inspect
from typing import Any

import pydantic

from dpfedbench.errors import BenchError

NOTHING: Any = object()
"""Placeholder for a missing default."""


def setting(
    default: Any = NOTHING,
    *,
    gt: float | None = None,
    ge: float | None = None,
    lt: float | None = None,
    le: float | None = None,
    pattern: str | None = None,
    doc: str = "",
    paper: str = "",
) -> Any:
    """Declare a key of a section.

    Args:
        default: the default value; without it the key is required.
        gt: the value has to be above this; likewise `ge` (at least), `lt` (below) and
            `le` (at most).
        ge: see `gt`.
        lt: see `gt`.
        le: see `gt`.
        pattern: a regular expression for text.
        doc: meaning of the key, for docs/configuration.md.
        paper: the paper's value, where there is one.
    """
    extra: dict[str, Any] = {"paper": paper}
    limits: dict[str, Any] = {
        "gt": gt,
        "ge": ge,
        "lt": lt,
        "le": le,
        "pattern": pattern,
    }
    return pydantic.Field(
        *(() if default is NOTHING else (default,)),
        description=doc,
        json_schema_extra=extra,
        **limits,
    )


def refuse_shadowing(cls: Any) -> None:
    """Refuse a key with the name of an attribute of its bases that is not a key.

    Raises:
        BenchError: names the key and the base.
    """
    for key, annotation in inspect.get_annotations(cls).items():
        if key == getattr(cls, "tag", "kind") or "ClassVar" in str(annotation):
            continue
        for base in cls.__mro__[1:-1]:
            fields = getattr(base, "model_fields", {})
            if key not in fields and (
                key in base.__dict__ or key in base.__dict__.get("__class_vars__", ())
            ):
                message = (
                    f"{cls.__module__}.{cls.__name__} has a key {key!r}, which shadows"
                    f" {base.__name__}.{key}"
                )
                if any(
                    "ClassVar" in str(inspect.get_annotations(ancestor).get(key))
                    for ancestor in cls.__mro__[1:-1]
                ):
                    raise BenchError(
                        f"{message}: that is no key, write {key}: ClassVar[...] = ..."
                    )
                raise BenchError(f"{message}: give it another name")
