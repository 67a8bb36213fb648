"""Named streams of random numbers.

Every draw comes from a stream named by (seed, purpose, indices...). No stream is shared, so no result
depends on the order of work, on chunking or on a restart: a round that is run again draws the same bits.
"""

import hashlib

import numpy as np


def stream(seed: int, purpose: str, *indices: int) -> np.random.Generator:
    """A fresh generator for one purpose.

    Args:
        seed: the run's seed.
        purpose: what the numbers are for, e.g. "noise" or "partition".
        indices: round, client, ... that tell streams of one purpose apart.

    Returns:
        A Philox generator keyed by the SHA-256 of all the names: different names give independent streams.
    """
    name = "/".join([str(int(seed)), purpose, *[str(int(index)) for index in indices]])
    key = np.frombuffer(hashlib.sha256(name.encode()).digest()[:16], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key))
