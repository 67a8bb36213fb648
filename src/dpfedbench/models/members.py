"""Model files: named tensors of one model, or of an ensemble, as safetensors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from dpfedbench.errors import BenchError
from dpfedbench.files import atomic_path
from dpfedbench.models.net import Net


def save_members(path: Path, net: Net, members: Sequence[np.ndarray]) -> None:
    """Write a model file as safetensors.

    For each member it holds the named tensors ("member1/block1.weight", ...). Its
    metadata hold the SHA-256 of the tensors, so that readers detect damage. A language
    model's words are a further tensor with bytes of JSON, because metadata with several
    keys have no order.
    """
    tensors = {
        f"member{index}/{name}": tensor.numpy().copy()
        for index, theta in enumerate(members, start=1)
        for name, tensor in net.tensors(
            torch.from_numpy(np.asarray(theta, np.float32))
        ).items()
    }
    if net.words:
        tensors[_WORDS] = np.frombuffer(json.dumps(net.words).encode(), np.uint8)
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, metadata={_DIGEST: _digest(tensors)})


def load_members(path: Path, net: Net) -> list[np.ndarray]:
    """Read a model file: one flat vector per member.

    Raises:
        BenchError: the file is missing, damaged or of another network.
    """
    members, _ = _read(path)
    return [net.flatten(tensors) for tensors in members]


def load_by_word(path: Path, net: Net, weights: np.ndarray) -> np.ndarray:
    """Return a language model's first member, mapped to another vocabulary.

    Tensors whose rows are words (`net.by_word`) are mapped row by row. A word that both
    models know gets the file's row; any other word keeps the model's own row. The first
    row, for unknown words, and the rows behind the words come from the file.

    Args:
        path: path of the model file.
        net: the model, with its `words`.
        weights: its own weights, float32 [d].

    Raises:
        BenchError: the file is missing or damaged, has no words, or is of another
            network.
    """
    members, words = _read(path)
    if words is None:
        raise BenchError(
            f"{path} does not state its model's vocabulary: delete it and run the"
            " workflow again"
        )
    row_of = {word: row for row, word in enumerate(words, start=1)}
    shared = np.array(
        [
            (row, row_of[word])
            for row, word in enumerate(net.words, start=1)
            if word in row_of
        ],
        int,
    )
    to, of = shared.reshape(-1, 2).T
    tensors = dict(members[0])
    for name, tensor in net.tensors(torch.from_numpy(weights)).items():
        if name in net.by_word and name in tensors:
            before = tensors[name]
            after = tensor.numpy().copy()
            if before[len(words) :].shape != after[len(net.words) :].shape:
                break  # of another width: `flatten` reports it
            after[to] = before[of]
            after[0] = before[0]
            after[len(net.words) + 1 :] = before[len(words) + 1 :]
            tensors[name] = after
    return net.flatten(tensors)


def _read(path: Path) -> tuple[list[dict[str, np.ndarray]], list[str] | None]:
    """Read the named tensors of each member, and the words of a language model."""
    try:
        tensors = load_file(path)
        with safe_open(path, "np") as file:
            digest = (file.metadata() or {}).get(_DIGEST)
        if digest != _digest(tensors):
            raise ValueError("its tensors differ from those that were saved")
        words = json.loads(tensors.pop(_WORDS).tobytes()) if _WORDS in tensors else None
        members: dict[int, dict[str, np.ndarray]] = {}
        for name, tensor in tensors.items():
            member, _, key = name.partition("/")
            members.setdefault(int(member.removeprefix("member")), {})[key] = tensor
    except Exception as error:
        raise BenchError(
            f"{path} cannot be read ({error}): delete it and run the workflow again"
        ) from error
    return [members[index] for index in sorted(members)], words


_DIGEST = "sha256 of the tensors"
_WORDS = "words"


def _digest(tensors: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tensor.shape}\n".encode())
        digest.update(np.ascontiguousarray(tensor).data)
    return digest.hexdigest()
