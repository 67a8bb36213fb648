"""Named streams of random numbers.

Every draw comes from a stream named by (seed, purpose, indices...). No two draws share
a stream, so that no result depends on the order of work, on chunking or on a restart: a
round that runs again draws the same bits.
"""

from __future__ import annotations

import hashlib
import secrets

from dpsum.lazy import np

Seed = int | None


def fresh(seed: Seed) -> int:
    """Return the seed, or 128 bits of the operating system's entropy if it is None."""
    if seed is None:
        return secrets.randbits(128)
    return seed


def stream(seed: int, purpose: str, *indices: int) -> np.random.Generator:
    """Return a new Philox generator, keyed by the SHA-256 of the stream's name.

    Different names give independent streams.

    Args:
        seed: seed of the run.
        purpose: use of the numbers, e.g. "noise" or "partition".
        indices: round, client and so on, which distinguish streams of one purpose.
    """
    numbers = [str(int(index)) for index in indices]
    name = "/".join([str(int(seed)), purpose, *numbers])
    digest = hashlib.sha256(name.encode()).digest()
    key = np.frombuffer(digest[:16], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key))
