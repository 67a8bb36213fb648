"""Model files: the named tensors of a model, or of several that are used together, as safetensors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

from dpfedbench.errors import BenchError
from dpfedbench.files import atomic_path
from dpfedbench.models.net import Net


def save_members(path: Path, net: Net, members: Sequence[np.ndarray]) -> None:
    """Write a model file: for each member, its named tensors ("member1/block1.weight", ...), as safetensors."""
    tensors = {
        f"member{index}/{name}": tensor.numpy().copy()
        for index, theta in enumerate(members, start=1)
        for name, tensor in net.tensors(torch.from_numpy(np.asarray(theta, np.float32))).items()
    }
    with atomic_path(path) as temporary:
        save_file(tensors, temporary)


def load_members(path: Path, net: Net) -> list[np.ndarray]:
    """Read a model file: one flat vector a member.

    Raises:
        BenchError: the file is missing, damaged or another network's.
    """
    try:
        tensors = load_file(path)
    except FileNotFoundError as error:
        raise BenchError(f"{path} is missing: run the workflow again to make it") from error
    except Exception as error:
        raise BenchError(f"{path} cannot be read ({error}): delete it and run the workflow again") from error
    names = sorted({name.split("/")[0] for name in tensors}, key=lambda name: int(name.removeprefix("member")))
    return [
        net.flatten({key: tensors[f"{name}/{key}"] for key in net.shapes if f"{name}/{key}" in tensors})
        for name in names
    ]
