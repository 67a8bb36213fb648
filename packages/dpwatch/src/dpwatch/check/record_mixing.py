"""Test whether a torch model's output for one record depends on the other records."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch

_TOLERANCE = 1e-4
"""Relative change of an output that rounding may make."""


def records_mixed(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> bool:
    """Return whether a record's output changes when another record is changed.

    Two forward passes of a copy in training mode, with the same random numbers: the
    second has another record in the first place. The model, its buffers and torch's
    generators stay as they are.

    Args:
        model: the model.
        args, kwargs: arguments of its call. Tensors [n, ...] have the records.
    """
    tensors = [value for value in (*args, *kwargs.values()) if _has_records(value)]
    if not tensors or len(tensors[0]) < 2:
        return False
    count = len(tensors[0])
    changed_args = [_first_changed(value, count) for value in args]
    changed_kwargs = {
        name: _first_changed(value, count) for name, value in kwargs.items()
    }
    before = _outputs(model, args, kwargs)
    after = _outputs(model, changed_args, changed_kwargs)
    for output, changed in zip(before, after, strict=True):
        if output.shape != changed.shape or output.ndim == 0 or len(output) != count:
            continue
        scale = float(output.abs().max()) or 1.0
        if float((output[1:] - changed[1:]).abs().max()) > _TOLERANCE * scale:
            return True
    return False


def _has_records(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim > 0


def _first_changed(value: Any, count: int) -> Any:
    if not _has_records(value) or len(value) != count:
        return value
    changed = value.detach().clone()
    if changed.is_floating_point():
        changed[0] = 2 * changed[0] + 1
    else:
        changed[0] = changed[1]
    return changed


def _outputs(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[torch.Tensor]:
    copied = copy.deepcopy(model).train()
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        output = copied(*args, **kwargs)
    if isinstance(output, torch.Tensor):
        return [output]
    if isinstance(output, (tuple, list)):
        return [part for part in output if isinstance(part, torch.Tensor)]
    return []
