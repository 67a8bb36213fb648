"""Measure rates of per-record gradients, clipped and added up, beside Opacus.

    uv run python benchmarks/record_gradients.py [--pairs 7] [--threads 2] [--torch]

Both use the same network, records and machine, and take turns. Each pair times a round
of ours and then one of Opacus's. The ratio is computed for each pair, so that a machine
that slows down slows both. A round is 10 lots of 78 records for Adap DP-FL's CNN
(`models.cnn`), and 30 tasks of 25 examples for Conv-4 normalised within the record
(`models.conv4`). Each record's gradient is clipped, and those of a lot are added up,
without noise. Ours gives each thread a lot at a time (`add_record_gradients` to a `PrivateSum`).
Opacus runs its GradSampleModule and DPOptimizer.clip_and_accumulate with torch's
threads. "gradients alone" is ours without clipping and adding up. `--torch` times the
implementation for any torch module instead of the hand-written passes.

Records are drawings (the glyphs). The CNN's passes skip empty pixels, so images without
empty pixels are measured too.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

from dpfedbench.data.images import load_dataset
from dpfedbench.data.registry import prepare
from dpfedbench.models.choose import Choice, choose
from dpfedbench.models.cnn import Cnn
from dpfedbench.models.conv4 import Conv4
from dpfedbench.models.gradients import Gradients
from dpfedbench.models.net import Net
from dpfedbench.models.threads import Workers
from dpfedbench.training.mechanisms import make_accumulator
from dpsum.private_sum import PrivateSum

LOTS = 10
LOT = 78
TASKS = 30
EXAMPLES = 25
THRESHOLD = 1.0

Lots = list[tuple[np.ndarray, np.ndarray]]


def choose_drawings(count: int = LOTS * LOT) -> np.ndarray:
    """Return random glyphs, uint8 [count, 28, 28, 1].

    The function draws the glyphs where the workflow has not drawn them yet.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path("results/data/glyphs")
        if not (folder / "summary.json").exists():
            folder = Path(temporary)
            prepare("glyphs", folder)
        images = load_dataset(folder).images
        flat = images.reshape(-1, *images.shape[2:])
        chosen = np.random.default_rng(0).choice(len(flat), count, replace=False)
        return np.ascontiguousarray(flat[np.sort(chosen)])


def make_lots(images: np.ndarray, size: int = LOT, classes: int = 10) -> Lots:
    """Return images with random labels, in lots of `size` records."""
    labels = np.random.default_rng(1).integers(0, classes, len(images))
    return [
        (images[start : start + size], labels[start : start + size])
        for start in range(0, len(images), size)
    ]


class LotSums:
    """Clipped sums of all lots of a round.

    Each thread has an implementation of the gradients and a buffer for those of a lot.
    """

    def __init__(
        self, net: Net, choice: Choice, lot: int, threads: int, *, add: bool
    ) -> None:
        def make_buffer(gradients: Gradients) -> tuple[Gradients, np.ndarray]:
            return gradients, np.empty((lot, net.dimension), np.float32)

        self.net = net
        self.add = add
        self.theta = self.net.initial(np.random.default_rng(0))
        self.workers = Workers(choice, make_buffer, threads=threads)

    def __call__(self, lots: Lots) -> None:
        with self.workers.running() as pool:
            list(pool.map(self._sum_lot, lots))

    def _sum_lot(self, lot: tuple[np.ndarray, np.ndarray]) -> None:
        images, labels = lot
        with self.workers.worker() as (gradients, out):
            if self.add:
                total = PrivateSum(
                    dimension=self.net.dimension,
                    threshold=THRESHOLD,
                    noise_multiplier=1.0,
                )
                gradients.add_record_gradients(
                    self.theta, images, labels, make_accumulator(total)
                )
            else:
                gradients.record_gradients(
                    self.theta, images, labels, out[: len(labels)]
                )


def make_cnn_layers() -> nn.Sequential:
    """Return the network of `models.cnn`, made of torch's layers."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def make_conv4_layers(filters: int) -> nn.Sequential:
    """Return the network of `models.conv4`, normalised within the record, made of
    torch's layers.
    """
    layers: list[nn.Module] = []
    for channels in (1, filters, filters, filters):
        convolution = nn.Conv2d(channels, filters, 3, padding=1, bias=False)
        layers += [
            convolution,
            nn.GroupNorm(filters, filters),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(filters, 5))


def make_opacus_round(net: nn.Module, lot: int) -> Callable[[Lots], None]:
    """Return a round of Opacus on torch's layers.

    Args:
        net: the network.
        lot: expected number of records of a lot.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer
    module = GradSampleModule(net)
    optimizer = DPOptimizer(
        torch.optim.SGD(module.parameters(), lr=0.1),
        noise_multiplier=1.0,
        max_grad_norm=THRESHOLD,
        expected_batch_size=lot,
    )

    def run(lots: Lots) -> None:
        for images, labels in lots:
            optimizer.zero_grad()
            x = torch.from_numpy(images[..., 0]).unsqueeze(1)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                nn.functional.cross_entropy(
                    module(x.float() / 255), torch.from_numpy(labels)
                ).backward()
            optimizer.clip_and_accumulate()

    return run


def measure_rate(work: Callable[[Lots], None], lots: Lots) -> float:
    """Return the records per second of one round."""
    start = time.perf_counter()
    work(lots)
    return sum(len(labels) for _, labels in lots) / (time.perf_counter() - start)


def make_cases() -> Iterator[tuple[str, Net, nn.Module, Lots]]:
    """Yield name, network, Opacus's layers and records of each case."""
    dense = np.random.default_rng(2).integers(1, 256, (LOTS * LOT, 28, 28, 1), np.uint8)
    cnn = Net(Cnn, input_shape=(28, 28, 1), outputs=10)
    for name, images in (("drawings", choose_drawings()), ("no empty pixel", dense)):
        yield f"CNN, {name}", cnn, make_cnn_layers(), make_lots(images)
    tasks = make_lots(choose_drawings(TASKS * EXAMPLES), EXAMPLES, 5)
    for filters in (16, 32, 64):

        def build(filters: int = filters) -> Conv4:
            return Conv4(
                image_shape=(28, 28, 1), filters=filters, ways=5, normalisation="record"
            )

        net = Net(build, input_shape=(28, 28, 1), outputs=5)
        yield f"Conv-4, {filters} filters", net, make_conv4_layers(filters), tasks


def main() -> None:
    """Run all cases and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--torch", action="store_true", help="time the implementation for any module"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{options.threads} threads, {options.pairs} pairs, records/s\n")
    print(
        "| network, records | gradients alone | ours | Opacus | ratio, median (min to"
        " max) |"
    )
    print("|---|---|---|---|---|")
    for name, net, layers, lots in make_cases():
        lot = max(len(labels) for _, labels in lots)
        choice = choose(net, enabled=not options.torch)
        works = (
            LotSums(net, choice, lot, options.threads, add=False),
            LotSums(net, choice, lot, options.threads, add=True),
            make_opacus_round(layers, lot),
        )
        for work in works:
            work(lots)
        rounds = [
            [measure_rate(work, lots) for work in works] for _ in range(options.pairs)
        ]
        ratios = sorted(mine / peer for _, mine, peer in rounds)
        rates = " | ".join(
            f"{statistics.median(column):,.0f}" for column in zip(*rounds, strict=True)
        )
        ratio = f"{statistics.median(ratios):.1f} ({ratios[0]:.1f} to {ratios[-1]:.1f})"
        print(f"| {name} | {rates} | {ratio} |", flush=True)


if __name__ == "__main__":
    main()
