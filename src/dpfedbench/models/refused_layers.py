"""Layers that a private model must not have: how they are found, and the message for each."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from opacus import validators
else:
    from dpsum.lazy import Lazy

    validators = Lazy("opacus.validators")  # slow to import, and warns meanwhile


def place_of(name: str, layer: nn.Module) -> str:
    """What a layer is called in a message; "" is the name of the whole module."""
    return f"layer {name} ({type(layer).__name__})" if name else f"its forward pass ({type(layer).__name__})"


def drawing(name: str, layer: nn.Module) -> str:
    """The message about a layer that draws random numbers."""
    return (
        f"{place_of(name, layer)} draws random numbers that no seed of the run decides: take dropout out of the model"
    )


def remembering(name: str, layer: nn.Module) -> str:
    """The message about a layer that keeps running statistics."""
    return (
        f"{place_of(name, layer)} keeps running statistics, which would be a release of their own: "
        f"set track_running_stats=False, or normalise within the record (e.g. GroupNorm)"
    )


def refused_by_opacus(layer: nn.Module) -> bool:
    """Whether Opacus' validator refuses a layer; of LSTMs and attention it only says that it has no hooks for them."""
    if isinstance(layer, nn.RNNBase | nn.MultiheadAttention) or list(layer.children()):
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bool(validators.ModuleValidator.validate(layer, strict=False))


def first_difference(
    first: list[tuple[str, torch.Tensor]], second: list[tuple[str, torch.Tensor]], *, of: Any
) -> str | None:
    """The first layer whose outputs `[of]` differ by more than rounding; None: there is none."""
    for (name, a), (_, b) in zip(first, second, strict=True):
        if not torch.allclose(a[of].double(), b[of].double(), rtol=1e-4, atol=1e-5, equal_nan=True):
            return name
    return None
