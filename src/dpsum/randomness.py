"""Named streams of random numbers.

Every draw comes from a stream named by (seed, purpose, indices...). No stream is
shared, so no result depends on the order of work, on chunking or on a restart: a round
that is run again draws the same bits.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable

from dpsum.lazy import np

Seed = int | None


def fresh(seed: Seed) -> int:
    """A seed, or 128 bits of the operating system's entropy where none is given."""
    if seed is None:
        return secrets.randbits(128)
    return seed


def stream(seed: int, purpose: str, *indices: int) -> np.random.Generator:
    """A fresh Philox generator keyed by the SHA-256 of all the names: different names
    give independent streams.

    Args:
        seed: the run's seed.
        purpose: what the numbers are for, e.g. "noise" or "partition".
        indices: round, client, ... that tell streams of one purpose apart.
    """
    numbers = [str(int(index)) for index in indices]
    name = "/".join([str(int(seed)), purpose, *numbers])
    digest = hashlib.sha256(name.encode()).digest()
    key = np.frombuffer(digest[:16], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


def streams(
    seed: int, purpose: str, *indices: int | None
) -> Callable[[int], np.random.Generator]:
    """The streams of one purpose by round; the round's number takes the place of an
    index that is None.
    """
    return lambda round_: stream(
        seed, purpose, *(round_ if index is None else index for index in indices)
    )
