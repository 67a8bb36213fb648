"""Configuration schema of the frozen dataclasses of `dpsum`.

Clipping rules, noises, participations and factorisations of `dpsum` are parts of a
configuration without a second class here. The fields that `dpsum.parameters.parameter`
declares are their keys, and `kind` is their name.
"""

import dataclasses
import functools
import inspect
import typing
from typing import Any, Literal

import pydantic
from pydantic.fields import FieldInfo

from dpfedbench.errors import BenchError
from dpfedbench.settings.keys import setting
from dpsum.clipping import ClippingRule
from dpsum.factorisations import Factorisation
from dpsum.noise import Noise
from dpsum.participation import Participation

STRICT = pydantic.ConfigDict(
    frozen=True,
    extra="forbid",
    strict=True,
    allow_inf_nan=False,
    validate_default=True,
    protected_namespaces=(),
)
"""Validation settings of all sections of a configuration."""


@dataclasses.dataclass(frozen=True)
class LibraryFamily:
    """Family of parts in `dpsum`.

    Attributes:
        root: the base class of its parts.
        modules: the modules of `dpsum` that define them.
        package: the package of `dpfedbench` that may hold further parts.
    """

    root: type
    modules: tuple[str, ...]
    package: str


FAMILIES = (
    LibraryFamily(ClippingRule, ("dpsum.clipping",), "dpfedbench.parts.clipping"),
    LibraryFamily(
        Noise,
        ("dpsum.noise", "dpsum.correlated_noise", "dpsum.skellam_noise"),
        "dpfedbench.parts.noise",
    ),
    LibraryFamily(
        Factorisation, ("dpsum.factorisations",), "dpfedbench.parts.factorisations"
    ),
    LibraryFamily(
        Participation, ("dpsum.participation",), "dpfedbench.parts.participation"
    ),
)


def family_of(cls: Any) -> LibraryFamily | None:
    """Return the family of `dpsum` that a class belongs to; None without one."""
    if not isinstance(cls, type):
        return None
    return next((family for family in FAMILIES if issubclass(cls, family.root)), None)


def fields_of(cls: Any) -> dict[str, FieldInfo]:
    """Return the keys of a section or of a dataclass of `dpsum`."""
    schema = cls if family_of(cls) is None else schema_of(cls)
    fields: dict[str, FieldInfo] = schema.model_fields
    return fields


@functools.cache
def schema_of(cls: Any) -> type[pydantic.BaseModel]:
    """Return the pydantic model with the keys of a dataclass of `dpsum`."""
    hints = typing.get_type_hints(cls)
    keys: dict[str, Any] = {}
    if cls.kind:
        keys["kind"] = (Literal[cls.kind], cls.kind)
    for field in dataclasses.fields(cls):
        if "doc" not in field.metadata:
            continue
        metadata = field.metadata
        info = setting(
            field.default,
            doc=metadata["doc"],
            paper=metadata["paper"],
            **metadata["bounds"],
        )
        keys[field.name] = (hints[field.name], info)
    return pydantic.create_model(
        cls.__name__, __config__=STRICT, __module__=cls.__module__, **keys
    )


def check_decorated(cls: Any) -> None:
    """Refuse a class with a parameter that is not decorated as a dataclass.

    Such a parameter would be ignored.

    Raises:
        BenchError: names the class and the parameter.
    """
    declared = {field.name for field in dataclasses.fields(cls)} | {"kind"}
    for key, annotation in inspect.get_annotations(cls).items():
        if key not in declared and "ClassVar" not in str(annotation):
            raise BenchError(
                f"{cls.__module__}.{cls.__name__} has a key {key!r}, but is no"
                " dataclass: put @dataclasses.dataclass(frozen=True) above it, or write"
                f" {key}: ClassVar[...] = ... where it is no key"
            )
