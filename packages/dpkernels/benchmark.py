"""Time the passes of each network beside torch's differentiation, on one thread.

    uv run python packages/dpkernels/benchmark.py [REPEATS]

It prints milliseconds for the gradients of 32 records, the best of the repeats. torch
differentiates record by record, in double precision, like the tests; the passes use
single precision. The benchmarks of the repository compare with faster peers.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent / "tests"))

import reference_networks as reference

from dpkernels import (
    CnnShape,
    Conv4Shape,
    LinearShape,
    LstmShape,
    NetworkShape,
    find_passes,
)

RECORDS = 32
NETWORKS = {
    "Conv-4 by record": Conv4Shape((28, 28, 1), 32, 5, "record"),
    "CNN": CnnShape((28, 28, 1), 10),
    "linear layer": LinearShape((9, 9, 81), 10),
    "LSTM": LstmShape((20,), 1000, 64, 2, False),
}


def best(action: Callable[[], object], repeats: int) -> float:
    """Return the shortest time of several calls in milliseconds, after a first one."""
    action()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return 1000 * min(times)


def draw_records(network: NetworkShape) -> tuple[np.ndarray, np.ndarray]:
    """Return random records and labels."""
    rng = np.random.default_rng(0)
    shape = (RECORDS, *network.input_shape)
    if isinstance(network, LstmShape):
        words = rng.integers(1, network.outputs, shape)
        return words, words
    if isinstance(network, LinearShape):
        records = rng.standard_normal(shape).astype(np.float32)
    else:
        records = rng.integers(0, 256, shape, np.uint8)
    return records, rng.integers(0, network.outputs, RECORDS)


def time_network(network: NetworkShape, repeats: int) -> tuple[float, float]:
    """Return milliseconds of the passes and of torch."""
    theta = reference.draw_parameters(network)
    x, y = draw_records(network)
    implementation = find_passes(network)
    assert implementation is not None
    passes = implementation(network)
    weights = theta.astype(np.float32)
    total = np.zeros(network.dimension)
    norms = np.empty(RECORDS)
    rows = np.empty((RECORDS, network.dimension), np.float32)

    def compute() -> None:
        if passes.adds_records(x):
            passes.add_record_gradients(weights, x, y, 1.0, total, norms)
        else:
            passes.record_gradients(weights, x, y, rows)

    def differentiate() -> None:
        reference.differentiate(network, theta, x, y)

    return best(compute, repeats), best(differentiate, repeats)


def main(repeats: int) -> None:
    """Print one line for each network."""
    torch.set_num_threads(1)
    for name, network in NETWORKS.items():
        ours, torchs = time_network(network, repeats)
        print(f"{name:20} {ours:10.1f} ms {torchs:10.1f} ms by torch")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
