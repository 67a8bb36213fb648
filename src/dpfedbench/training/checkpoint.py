"""Checkpoints of an unfinished training, and the lock that keeps two trainings of one
run apart.
"""

import contextlib
import fcntl
import hashlib
import io
import os
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import torch

from dpfedbench.errors import BenchError
from dpfedbench.files import atomic_path, read_json, writing
from dpfedbench.run import Run

_DIGEST = hashlib.sha256().digest_size


class Checkpoint:
    """Checkpoint file of a run.

    The file holds the SHA-256 of its content, then the content. It is written
    atomically.

    Args:
        folder: the run's checkpoint folder.
        identity: the run that the checkpoint belongs to (run key, method version,
            seed); a checkpoint of another run is refused.
        seconds: least time between two writes; 0 writes after every round.
    """

    def __init__(
        self, folder: Path, *, identity: dict[str, Any], seconds: float
    ) -> None:
        self.path = folder / "state.pt"
        self._identity = identity
        self._seconds = seconds
        self._last = time.monotonic()

    def due(self) -> bool:
        """Return whether the time between two writes has passed."""
        return time.monotonic() - self._last >= self._seconds

    def save(self, state: dict[str, Any]) -> None:
        """Write `state`, which consists of tensors and plain values."""
        content = io.BytesIO()
        torch.save({"identity": self._identity, "state": state}, content)
        with atomic_path(self.path) as temporary:
            temporary.write_bytes(
                hashlib.sha256(content.getbuffer()).digest() + content.getbuffer()
            )
        self._last = time.monotonic()

    def load(self) -> dict[str, Any] | None:
        """Return the last state; None without a checkpoint.

        Raises:
            BenchError: the file is damaged, or another run's.
        """
        if not self.path.exists():
            return None
        content = self.path.read_bytes()
        if hashlib.sha256(content[_DIGEST:]).digest() != content[:_DIGEST]:
            raise BenchError(
                f"checkpoint {self.path} is damaged and cannot be read: delete it to"
                " train from the start"
            )
        saved = torch.load(io.BytesIO(content[_DIGEST:]), weights_only=True)
        identity = saved["identity"]
        if identity != self._identity:
            differing = sorted(
                key
                for key in self._identity
                if identity.get(key) != self._identity[key]
            )
            raise BenchError(
                f"checkpoint {self.path} belongs to another run (its"
                f" {', '.join(differing)} differ): delete it to train from the start"
            )
        return saved["state"]


@contextlib.contextmanager
def run_lock(folder: Path) -> Iterator[bool]:
    """Hold the lock of a run's folder; wait while another process trains there.

    The other process may have outlived its workflow. It is alive, or its lock would be
    gone, so that the wait lasts as long as its training.

    Yields:
        Whether another process held the lock before: it may have finished the run.

    Raises:
        BenchError: the folder cannot be written to.
    """
    waited = False
    while True:
        with writing(folder / "lock"):
            folder.mkdir(parents=True, exist_ok=True)
            handle = open(folder / "lock", "a+", encoding="utf-8")  # noqa: SIM115
        with handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waited = True
                handle.seek(0)
                print(
                    f"{handle.read().strip() or 'another process'} is training in"
                    f" {folder.parent}; waiting for it to end",
                    file=sys.stderr,
                    flush=True,
                )
                fcntl.flock(handle, fcntl.LOCK_EX)
            # The process that finishes removes the folder, and a lock on a removed file
            # keeps no other process out.
            if not _still_there(handle, folder / "lock"):
                continue
            handle.truncate(0)
            handle.write(f"process {os.getpid()} on {platform.node()}")
            handle.flush()
            yield waited
            return


def finished(run_dir: Path, run: Run) -> bool:
    """Return whether the folder holds all results of this run.

    The results have to come from this version of the method and of the model's code.
    Snakemake removes the files before it starts a training, so that they are those of
    the process that held the lock.
    """
    if not all(
        (run_dir / name).exists()
        for name in ("model.safetensors", "history.csv", "ledger.jsonl")
    ):
        return False
    try:
        training = read_json(run_dir / "training.json")  # written last
    except BenchError:
        return False
    return bool(training.get("method_version") == run.made_by)


def _still_there(handle: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle.fileno()), os.stat(path))
    except OSError:
        return False
