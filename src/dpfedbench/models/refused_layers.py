"""Layers that a private model must not have: detection and messages."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def place_of(name: str, layer: nn.Module) -> str:
    """Return the name of a layer for messages. "" stands for the whole module."""
    return (
        f"layer {name} ({type(layer).__name__})"
        if name
        else f"its forward pass ({type(layer).__name__})"
    )


def drawing(name: str, layer: nn.Module) -> str:
    """Return the message about a layer that draws random numbers."""
    return (
        f"{place_of(name, layer)} draws random numbers that do not follow from the"
        " run's seed: take dropout out of the model"
    )


def remembering(name: str, layer: nn.Module) -> str:
    """Return the message about a layer that keeps running statistics."""
    return (
        f"{place_of(name, layer)} keeps running statistics, which would be a further"
        " release: set track_running_stats=False, or normalise within the record"
        " (e.g. GroupNorm)"
    )


def first_difference(
    first: list[tuple[str, torch.Tensor]],
    second: list[tuple[str, torch.Tensor]],
    *,
    of: Any,
) -> str | None:
    """Return the first layer whose outputs `[of]` differ by more than rounding.

    None: there is no such layer.
    """
    for (name, a), (_, b) in zip(first, second, strict=True):
        if not torch.allclose(
            a[of].double(), b[of].double(), rtol=1e-4, atol=1e-5, equal_nan=True
        ):
            return name
    return None
