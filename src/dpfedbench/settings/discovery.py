"""Modules that are found by place: how they are imported, and what their classes have
to be like.

Who writes a method or a part is told of a fault in it when the plan is read, by file
and line.
"""

import importlib
import inspect
import typing
from types import FunctionType, ModuleType
from typing import Literal

from dpfedbench import whose
from dpfedbench.errors import BenchError


def imported(name: str) -> ModuleType:
    """A module of dpfedbench or of one's own.

    Raises:
        BenchError: it does not import; says where it fails.
    """
    try:
        return importlib.import_module(name)
    except BenchError as error:
        if at := whose.place_of(error):
            raise BenchError(f"{at}: {error}") from error
        raise
    except Exception as error:
        raise BenchError(
            f"{name} does not import ({whose.said_of(error) or whose.in_words(error)}):"
            " mend it, or take its file away"
        ) from error


def place(cls: type, name: str = "") -> str:
    """Where a class, or a function of it, is written: "FILE, line N"."""
    try:
        file, line = (
            inspect.getfile(cls),
            inspect.getsourcelines(vars(cls)[name] if name else cls)[1],
        )
    except (OSError, TypeError):
        return f"{cls.__module__}.{cls.__name__}"
    return f"{whose.seen_from_here(file)}, line {line}"


def check_kind(cls: type) -> None:
    """Refuse a part of one's own without a `kind`, or with one that is not one text
    that the class itself says.

    A class that others extend needs none, nor does one whose name begins with "_".

    Raises:
        BenchError: says how to write it.
    """
    tag: str = cls.tag  # type: ignore[attr-defined]
    if tag not in inspect.get_annotations(cls):
        if not cls.__subclasses__() and not cls.__name__.startswith("_"):
            raise BenchError(
                f"{place(cls)}: {cls.__name__} has no {tag}, by which a configuration"
                " names it: write "
                f'{tag}: Literal["{cls.__name__.lower()}"] = "{cls.__name__.lower()}"'
            )
        return
    default = cls.model_fields[tag].default  # type: ignore[attr-defined]
    annotation = cls.model_fields[tag].annotation  # type: ignore[attr-defined]
    if typing.get_origin(annotation) is not Literal or typing.get_args(annotation) != (
        default,
    ):
        said = default if isinstance(default, str) else cls.__name__.lower()
        raise BenchError(
            f"{place(cls)}: {cls.__name__} has to say its {tag} so: {tag}:"
            f' Literal["{said}"] = "{said}"'
        )


def check_functions(cls: type, root: type) -> None:
    """Refuse a class whose functions cannot be called as those of its bases are, or
    that leaves one out.

    Args:
        cls: a method or a part, and no base of others.
        root: the base of its family.

    Raises:
        BenchError: names the first one, with its file and line.
    """
    for owner in cls.__mro__[: cls.__mro__.index(root)]:
        for name, member in vars(owner).items():
            above = next(
                (vars(base)[name] for base in owner.__mro__[1:] if name in vars(base)),
                None,
            )
            if name.startswith("__") or above is None:
                continue
            if isinstance(member, FunctionType) and isinstance(above, property):
                raise BenchError(
                    f"{place(owner, name)}: {owner.__name__}.{name} has to be a"
                    " @property, as its base's is"
                )
            if isinstance(member, FunctionType) and isinstance(above, FunctionType):
                wanted, given = inspect.signature(above), inspect.signature(member)
                if not _takes(given, wanted):
                    raise BenchError(
                        f"{place(owner, name)}: {owner.__name__}.{name} takes"
                        f" {_shown(given)}, but it is called with {_shown(wanted)}:"
                        " give it these"
                    )
    for name in dir(cls):
        function = inspect.getattr_static(cls, name)
        if isinstance(function, FunctionType) and _left_open(function):
            arguments = _shown(inspect.signature(function))
            raise BenchError(
                f"{place(cls)}: {cls.__name__} has no {name}, which takes {arguments}:"
                " write it"
            )


def _left_open(function: FunctionType) -> bool:
    """Whether every subclass has to write a function: all that it does is to say so.
    One with a reason is for some.
    """
    code = function.__code__
    return code.co_names == ("NotImplementedError",) and {*code.co_consts} <= {
        function.__doc__,
        None,
    }


def _takes(given: inspect.Signature, wanted: inspect.Signature) -> bool:
    """Whether a function can be called in every way in which another can: all by place,
    and by name what has a name.

    A parameter whose name begins with "_" is not used, so that nobody calls it by its
    name.
    """
    kinds = inspect.Parameter
    own, asked = given.parameters.values(), wanted.parameters.values()
    if {kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD} & {each.kind for each in asked} - {
        each.kind for each in own
    }:
        return False
    by_place = [
        each.name
        for each in asked
        if each.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
    ]
    named = {each.name: None for each in asked if each.kind is kinds.KEYWORD_ONLY}
    unnamed = [
        place
        for place, each in enumerate(own, 1)
        if each.name.startswith("_") and place <= len(by_place)
    ]
    first = max(unnamed, default=0)
    try:
        given.bind(*by_place, **named)
        given.bind(*by_place[:first], **dict.fromkeys(by_place[first:]), **named)
    except TypeError:
        return False
    return True


def _shown(signature: inspect.Signature) -> str:
    names = [
        str(each.replace(annotation=inspect.Parameter.empty))
        for each in signature.parameters.values()
    ]
    return f"({', '.join(names)})"
