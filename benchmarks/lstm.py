"""Clipped sums of the LSTM's records: the kernel beside Opacus' ghost clipping, its
hooks and torch's vmap.

    python benchmarks/lstm.py [WORDS WIDTH]

Prints records of 10 words a second of one CPU thread's time (default: the paper's size,
10,000 words and width 200). Opacus refuses tied weights with ghost clipping, so its
network has a softmax of its own.
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
from dpfedbench.models.torch_sums import Adding
from dpfedbench.models.zoo.lstm import LstmModel
from dpsum.private_sum import PrivateSum

RECORD = 10
COUNT = 80


class Untied(nn.Module):
    """The network of Opacus' layers."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        from opacus.layers import DPLSTM

        self.words = words
        self.embedding = nn.Embedding(words + 1, width)
        self.lstm = DPLSTM(width, width, num_layers=2, batch_first=True)
        self.softmax = nn.Linear(width, words, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Each record's loss."""
        inputs = functional.pad(x[:, :-1], (1, 0), value=self.words)
        logits = self.softmax(self.lstm(self.embedding(inputs))[0])
        each = functional.cross_entropy(
            logits.flatten(0, 1), x.flatten(), reduction="none"
        ).view(x.shape)
        loss: torch.Tensor = each.mean(1)
        return loss


def seconds(work: Callable[[], None]) -> float:
    """Of one thread, the better of two."""
    work()
    found = []
    for _ in range(2):
        started = time.process_time()
        work()
        found.append(time.process_time() - started)
    return min(found)


def kernel(
    words: int, width: int, x: np.ndarray, *, tied: bool = True, enabled: bool = True
) -> Callable[[], None]:
    """The clipped sum, by the kernel or by torch."""
    net = LstmModel(width=width, tied=tied).net(input_shape=(RECORD,), outputs=words)
    theta = net.initial(np.random.default_rng(0))
    gradients = choose(net, enabled=enabled).make()

    def work() -> None:
        total = PrivateSum(dimension=net.dimension, threshold=0.5, noise_multiplier=1.0)
        gradients.add_each(theta, x, x, Adding(total))

    return work


def ghost(words: int, width: int, x: np.ndarray) -> Callable[[], None]:
    """Opacus' fast gradient clipping: norms without gradients, then a second backward
    pass of the weighted loss.
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


def hooks(words: int, width: int, x: np.ndarray) -> Callable[[], None]:
    """Opacus' gradient of each record, eight records at a time."""
    from opacus import GradSampleModule

    module = GradSampleModule(Untied(words, width), loss_reduction="sum")

    def work() -> None:
        for start in range(0, len(x), 8):
            module.zero_grad()
            module(torch.from_numpy(x[start : start + 8])).sum().backward()

    return work


def main() -> None:
    """Print a line for each way."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    words, width = (
        (int(value) for value in sys.argv[1:3]) if len(sys.argv) > 2 else (10_000, 200)
    )
    x = np.random.default_rng(1).integers(0, words, size=(COUNT, RECORD))
    few = x[:8]
    ways = {
        "kernel, tied": (kernel(words, width, x), COUNT),
        "kernel, untied": (kernel(words, width, x, tied=False), COUNT),
        "Opacus ghost clipping, untied": (ghost(words, width, x), COUNT),
        "Opacus hooks, untied": (hooks(words, width, few), len(few)),
        "torch.func.vmap, tied": (kernel(words, width, few, enabled=False), len(few)),
    }
    for name, (work, count) in ways.items():
        print(f"{name}: {count / seconds(work):.1f} records a second", flush=True)


if __name__ == "__main__":
    main()
