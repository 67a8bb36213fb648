"""Model files: the named tensors of a model, or of several that are used together, as safetensors."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from dpfedbench.errors import BenchError
from dpfedbench.files import atomic_path, check_file, reading
from dpfedbench.models.net import Net


def save_members(path: Path, net: Net, members: Sequence[np.ndarray]) -> None:
    """Write a model file: for each member, its named tensors ("member1/block1.weight", ...), as safetensors.

    The file has the SHA-256 of the tensors among its metadata, so that every reader sees damage.
    """
    tensors = {
        f"member{index}/{name}": tensor.numpy().copy()
        for index, theta in enumerate(members, start=1)
        for name, tensor in net.tensors(torch.from_numpy(np.asarray(theta, np.float32))).items()
    }
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, metadata={_DIGEST: _digest(tensors)})


def load_members(path: Path, net: Net) -> list[np.ndarray]:
    """Read a model file: one flat vector a member.

    Raises:
        BenchError: the file is missing, damaged or another network's.
    """
    with reading(path):
        check_file(path)
    try:
        tensors = load_file(path)
        with safe_open(path, "np") as file:
            digest = (file.metadata() or {}).get(_DIGEST)  # a former version wrote none
        if digest not in (None, _digest(tensors)):
            raise ValueError("its tensors are not those that were written")
        names = sorted({name.split("/")[0] for name in tensors}, key=lambda name: int(name.removeprefix("member")))
    except Exception as error:
        raise BenchError(f"{path} cannot be read ({error}): delete it and run the workflow again") from error
    return [
        net.flatten({key: tensors[f"{name}/{key}"] for key in net.shapes if f"{name}/{key}" in tensors})
        for name in names
    ]


_DIGEST = "sha256 of the tensors"


def _digest(tensors: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tensor.shape}\n".encode())
        digest.update(np.ascontiguousarray(tensor).data)
    return digest.hexdigest()
