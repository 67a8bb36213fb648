"""numpy and torch, loaded when they are first used: a plan is read without them.

A module that a plan loads, and whose functions compute, takes them from here at its
head:

    from dpfedbench.lazy import np, torch
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpsum.lazy import Lazy

__all__ = ["np", "torch"]

if TYPE_CHECKING:
    import numpy as np
    import torch
else:
    np = Lazy("numpy")
    torch = Lazy("torch")
