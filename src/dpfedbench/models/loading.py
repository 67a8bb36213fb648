"""Loads a `torch.nn.Module` that a file of the user's own defines."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from dpfedbench import whose
from dpfedbench.errors import BenchError


def load_module(
    path: str, arguments: Mapping[str, Any], *, input_shape: tuple[int, ...], outputs: int
) -> Callable[[], nn.Module]:
    """What builds the module "package.file:Class" with these arguments.

    `input_shape` and `outputs` are given to a constructor that has parameters of these names. A package beside the
    working directory is found as well as an installed one.

    Raises:
        BenchError: it does not import, is no `torch.nn.Module`, or does not take the arguments.
    """
    where, _, name = path.partition(":")
    if not where or not name:
        raise BenchError(f"model.module is {path!r}: write package.file:Class")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    whose.network(where)
    try:
        module = getattr(importlib.import_module(where), name)
    except AttributeError:
        raise BenchError(f"model.module: {where} has no {name}") from None
    except Exception as error:
        said = whose.said_of(error) or whose.in_words(error)
        raise BenchError(f"model.module: {where} cannot be imported ({said})") from error
    if not (isinstance(module, type) and issubclass(module, nn.Module)):
        raise BenchError(f"model.module: {path} is not a torch.nn.Module")
    taken = inspect.signature(module).parameters
    given = {name: value for name, value in (("input_shape", input_shape), ("outputs", outputs)) if name in taken}

    def build() -> nn.Module:
        try:
            return module(**given | dict(arguments))
        except Exception as error:
            raise BenchError(f"model.arguments do not fit {path}: {whose.said_of(error) or error}") from error

    return build
