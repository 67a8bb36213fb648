"""Measure clipped sums over the LSTM's records, beside Opacus and torch's vmap.

    python benchmarks/lstm.py [WORDS WIDTH]

Prints records of 10 words per second of CPU time of one thread, for the kernel, Opacus'
ghost clipping, Opacus' hooks and torch's vmap. The default is the paper's size: 10,000
words and width 200. Opacus refuses tied weights with ghost
clipping, so its network has a separate softmax layer.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from dpfedbench.models.choose import choose
from dpfedbench.models.zoo.lstm import LstmModel
from dpfedbench.training.mechanisms import make_accumulator
from dpsum.private_sum import PrivateSum

RECORD_WORDS = 10
RECORDS = 80


class Untied(nn.Module):
    """LSTM of Opacus' layers, with untied weights."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        from opacus.layers import DPLSTM

        self.words = words
        self.embedding = nn.Embedding(words + 1, width)
        self.lstm = DPLSTM(width, width, num_layers=2, batch_first=True)
        self.softmax = nn.Linear(width, words, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the loss of each record [n], for records [n, words]."""
        inputs = functional.pad(x[:, :-1], (1, 0), value=self.words)
        logits = self.softmax(self.lstm(self.embedding(inputs))[0])
        word_losses = functional.cross_entropy(
            logits.flatten(0, 1), x.flatten(), reduction="none"
        ).view(x.shape)
        losses: torch.Tensor = word_losses.mean(1)
        return losses


def measure_seconds(work: Callable[[], None]) -> float:
    """Return the CPU seconds of a call, the better of two after one that warms up."""
    work()
    seconds = []
    for _ in range(2):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return min(seconds)


def make_kernel_sum(
    words: int, width: int, x: np.ndarray, *, tied: bool = True, enabled: bool = True
) -> Callable[[], None]:
    """Return the clipped sum by the kernel, or by torch.

    Args:
        words: of the vocabulary.
        width: of the layers.
        x: records, integers [n, words of a record].
        tied: whether embedding and softmax share their weights.
        enabled: whether the kernel computes it; false: torch's vmap.
    """
    net = LstmModel(width=width, tied=tied).net(
        input_shape=(RECORD_WORDS,), outputs=words
    )
    theta = net.initial(np.random.default_rng(0))
    gradients = choose(net, enabled=enabled).make()

    def work() -> None:
        total = PrivateSum(dimension=net.dimension, threshold=0.5, noise_multiplier=1.0)
        gradients.add_record_gradients(theta, x, x, make_accumulator(total))

    return work


def make_ghost_clipping(words: int, width: int, x: np.ndarray) -> Callable[[], None]:
    """Return Opacus' ghost clipping.

    It computes the norms without the gradients, and the clipped sum by a second
    backward pass of the weighted loss.
    """
    from opacus.grad_sample import GradSampleModuleFastGradientClipping

    module = GradSampleModuleFastGradientClipping(
        Untied(words, width),
        batch_first=True,
        loss_reduction="sum",
        max_grad_norm=0.5,
        use_ghost_clipping=True,
    )
    records = torch.from_numpy(x)

    def work() -> None:
        module.zero_grad()
        module.enable_hooks()
        losses = module(records)
        losses.sum().backward(retain_graph=True)
        weights = module.get_clipping_coef()
        module.zero_grad()
        module.disable_hooks()
        (weights * losses).sum().backward()

    return work


def make_hooks(words: int, width: int, x: np.ndarray) -> Callable[[], None]:
    """Return Opacus' gradients of single records, eight records at a time."""
    from opacus import GradSampleModule

    module = GradSampleModule(Untied(words, width), loss_reduction="sum")

    def work() -> None:
        for start in range(0, len(x), 8):
            module.zero_grad()
            module(torch.from_numpy(x[start : start + 8])).sum().backward()

    return work


def main() -> None:
    """Print the rate of each implementation."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    words = 10_000
    width = 200
    if len(sys.argv) > 2:
        words, width = map(int, sys.argv[1:3])
    x = np.random.default_rng(1).integers(0, words, size=(RECORDS, RECORD_WORDS))
    first_records = x[:8]
    works = {
        "kernel, tied": (make_kernel_sum(words, width, x), len(x)),
        "kernel, untied": (make_kernel_sum(words, width, x, tied=False), len(x)),
        "Opacus ghost clipping, untied": (make_ghost_clipping(words, width, x), len(x)),
        "Opacus hooks, untied": (
            make_hooks(words, width, first_records),
            len(first_records),
        ),
        "torch.func.vmap, tied": (
            make_kernel_sum(words, width, first_records, enabled=False),
            len(first_records),
        ),
    }
    for name, (work, count) in works.items():
        rate = count / measure_seconds(work)
        print(f"{name}: {rate:.1f} records a second", flush=True)


if __name__ == "__main__":
    main()
