"""Measure a cohort's private meta-gradient beside learn2learn's loop over tasks.

    uv run python benchmarks/meta_gradient.py [--pairs 7] [--threads 2] [--torch]
        [--out results/benchmarks/meta_gradient.csv]
    uv run python benchmarks/meta_gradient.py --device cuda [--chunks 64 256 1024] [--cases 1]

Both use the same network, data and machine, and take turns. Each pair times ours
(contributions, clipping, private sum with noise) and then learn2learn's loop (without
clipping). The ratio is computed for each pair, so that a machine that slows down slows
both. Cases: 5-way tasks with 1 support and 1 query image a class; {1, 5} inner steps x
{first, second} order x {64, 32} filters. The last column divides our rate by the
machine's measured matrix-multiply rate, and counts the multiplications of plain 3x3
convolutions. Ours needs 16 multiplications for 36 of those, so the share may exceed 1.
Peak memory is that of a separate process, for cohorts of 32 and 256 tasks. `--torch`
times the implementation for any torch module instead of the hand-written passes.

With `--device cuda` both run on the GPU, and peak memory is the GPU's. With `--chunks`
the benchmark leaves learn2learn out and measures clients per second and peak memory for
each number of tasks that are gathered at once.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from dpfedbench.data.images import ImageDataset, load_dataset
from dpfedbench.data.registry import prepare
from dpfedbench.files import atomic_path
from dpfedbench.models.choose import choose
from dpfedbench.models.conv4 import Conv4
from dpfedbench.models.net import Net
from dpfedbench.models.shared_coordinates import SharedCoordinates
from dpfedbench.training.client_updates.maml import Maml
from dpfedbench.training.clients import Setup
from dpfedbench.training.mechanisms import add_to
from dpsum.private_sum import PrivateSum
from dpsum.randomness import stream

WAYS = 5
CASES = list(itertools.product((64, 32), (5, 1), (2, 1)))


def load_glyphs(folder: Path) -> ImageDataset:
    """Return the glyphs, and draw them into `folder` if it does not have them."""
    if not (folder / "summary.json").exists():
        prepare("glyphs", folder)
    return load_dataset(folder)


class _Holdings:
    """Tasks that the clients hold during one call."""

    tasks: Any = None

    def gather(self, ids: np.ndarray) -> Any:
        """Return the tasks of some clients."""
        return self.tasks.select(ids)


class CohortSum:
    """Private sum of a cohort's meta-gradients, as a function of the cohort's tasks."""

    def __init__(
        self,
        data: ImageDataset,
        filters: int,
        steps: int,
        order: int,
        threads: int,
        kernels: bool,
        device: str = "cpu",
        chunk: int | None = None,
    ) -> None:
        def build() -> Conv4:
            return Conv4(image_shape=data.image_shape, filters=filters, ways=WAYS)

        self.net = Net(build, input_shape=data.image_shape, outputs=WAYS)
        self.theta = self.net.initial(stream(0, "initial-weights"))
        self._holdings = _Holdings()
        run: Any = SimpleNamespace(computes_within_records=False)
        unused: Any = None
        setup = Setup(
            run=run,
            net=self.net,
            held=self._holdings,
            client_sums=(),
            create_mechanism=unused,
            shared=SharedCoordinates(self.net),
            threads=threads,
            gradients=choose(self.net, device=device, enabled=kernels),
        )
        update = Maml(inner_steps=steps, inner_rate=0.1, order=order)
        self._clients = update.clients(setup)
        if chunk is not None:
            self._clients._workers.chunk = chunk
            if device == "cuda":
                self._clients._workers._tasks = chunk

    def __call__(self, tasks: Any) -> None:
        self._holdings.tasks = tasks
        total = PrivateSum(
            dimension=self.net.dimension, threshold=0.5, noise_multiplier=1.0
        )
        for contributions, _ in self._clients.contributions(
            self.theta, np.arange(len(tasks.support_y)), 0
        ):
            add_to(total, contributions)
        draws = stream(0, "noise").standard_normal(self.net.dimension)
        total.release(draws)


class Tasks:
    """Images of a cohort's tasks, gathered before the clock starts.

    The attributes are images [tasks, ways, height, width, channels] and labels
    [tasks, ways] of support and query sets with one example a class.
    """

    def __init__(self, data: ImageDataset, count: int) -> None:
        rng = np.random.default_rng(0)
        images = np.asarray(data.images)
        classes = np.stack(
            [
                rng.choice(data.splits["train"], WAYS, replace=False)
                for _ in range(count)
            ]
        )
        first = rng.integers(images.shape[1] - 1, size=classes.shape)
        self.support_x, self.query_x = (
            images[classes, examples]
            .reshape(count, WAYS, *data.image_shape)
            .astype(np.float32)
            / np.float32(255)
            for examples in (first, first + 1)
        )
        self.support_y = self.query_y = np.tile(np.arange(WAYS), (count, 1))

    def select(self, ids: np.ndarray) -> Tasks:
        """Return the tasks of some clients."""
        selection = object.__new__(Tasks)
        selection.support_x = self.support_x[ids]
        selection.support_y = self.support_y[ids]
        selection.query_x = self.query_x[ids]
        selection.query_y = self.query_y[ids]
        return selection


def make_learn2learn_loop(
    data: ImageDataset, filters: int, steps: int, order: int, device: str
) -> Callable[[Tasks], None]:
    """Return learn2learn's loop of MAML over tasks, on Conv-4 of torch's layers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import learn2learn as l2l
    layers: list[torch.nn.Module] = []
    channels = data.image_shape[2]
    for _ in range(4):
        layers += [
            torch.nn.Conv2d(channels, filters, 3, padding=1, bias=False),
            torch.nn.BatchNorm2d(filters, track_running_stats=False),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
        ]
        channels = filters
    net = torch.nn.Sequential(
        *layers, torch.nn.Flatten(), torch.nn.Linear(filters, WAYS)
    ).to(device)
    maml = l2l.algorithms.MAML(net, lr=0.1, first_order=order == 1)
    loss = torch.nn.functional.cross_entropy

    def run(tasks: Tasks) -> None:
        maml.zero_grad()
        for sx, sy, qx, qy in zip(
            tasks.support_x, tasks.support_y, tasks.query_x, tasks.query_y, strict=True
        ):
            support_images, query_images = (
                torch.from_numpy(images).to(device).permute(0, 3, 1, 2).contiguous()
                for images in (sx, qx)
            )
            support_labels = torch.from_numpy(sy).to(device)
            query_labels = torch.from_numpy(qy).to(device)
            learner = maml.clone()
            for _ in range(steps):
                learner.adapt(loss(learner(support_images), support_labels))
            loss(learner(query_images), query_labels).backward()

    return run


def measure_seconds(work: Callable[[Tasks], None], tasks: Tasks) -> float:
    """Return the wall seconds per task of one call."""
    start = time.perf_counter()
    work(tasks)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / len(tasks.support_y)


def measure_multiply_rate(device: str) -> float:
    """Return the matrix-multiply rate of this machine in single precision, in GFLOP/s.

    It is the best rate of several products.
    """
    side = 2048 if device == "cpu" else 8192
    a, b = torch.randn(2, side, side, device=device)
    best = 0.0
    for _ in range(8):
        start = time.perf_counter()
        float(torch.mm(a, b)[0, 0])  # waits for a GPU
        best = max(best, 2 * side**3 / (time.perf_counter() - start) / 1e9)
    return best


def count_gflop(filters: int, steps: int, order: int) -> float:
    """Return the GFLOP of one task with plain convolutions.

    A gradient counts as 3 forward passes, and as 9 with a Hessian-vector product.
    """
    forward = 0.0
    side = 28
    channels = 1
    for _ in range(4):
        forward += 2 * 9 * channels * filters * side * side * WAYS / 1e9
        side = side // 2
        channels = filters
    return forward * (3 * (steps + 1) + (6 * steps if order == 2 else 0))


def measure_peak_memory(
    folder: Path,
    filters: int,
    steps: int,
    order: int,
    threads: int,
    kernels: bool,
    cohort: int,
) -> float:
    """Return the peak resident MiB of a new process that computes one private sum."""
    arguments = [folder, filters, steps, order, threads, int(kernels), cohort]
    command = [sys.executable, __file__, "--memory-of", *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def measure_device_peak(work: CohortSum, tasks: Tasks) -> float:
    """Return the peak MiB of GPU memory that torch uses for one private sum."""
    torch.cuda.reset_peak_memory_stats()
    work(tasks)
    return torch.cuda.max_memory_allocated() / 2**20


def measure_chunks(
    data: ImageDataset, options: argparse.Namespace, multiply_rate: float
) -> list[dict[str, Any]]:
    """Return a row for each case and number of tasks that are gathered at once.

    A row has clients per second, share of the multiply rate and peak memory.
    """
    rows = []
    for filters, steps, order in CASES[: options.cases]:
        for chunk in options.chunks:
            cohort_sum = CohortSum(
                data,
                filters,
                steps,
                order,
                options.threads,
                not options.torch,
                options.device,
                chunk,
            )
            tasks = Tasks(data, max(2 * chunk, 8))
            measure_seconds(cohort_sum, Tasks(data, chunk))  # warms up
            seconds = statistics.median(
                measure_seconds(cohort_sum, tasks) for _ in range(options.pairs)
            )
            gflop_rate = count_gflop(filters, steps, order) / seconds
            peak: int | str = ""
            if options.device == "cuda":
                peak = round(measure_device_peak(cohort_sum, tasks))
            row = {
                "filters": filters,
                "inner_steps": steps,
                "order": order,
                "chunk": chunk,
                "clients_per_second": round(1 / seconds, 1),
                "share_of_multiply_rate": round(gflop_rate / multiply_rate, 3),
                "peak_mib": peak,
            }
            rows.append(row)
            print_row(row)
    return rows


def measure_pairs(
    data: ImageDataset,
    folder: Path,
    case: tuple[int, int, int],
    options: argparse.Namespace,
    multiply_rate: float,
) -> dict[str, Any]:
    """Return the row of one case: ours beside learn2learn's loop, in turns.

    Args:
        data: the glyphs.
        folder: the folder of `data`, which the processes for peak memory read.
        case: filters, inner steps and order.
        options: the command line.
        multiply_rate: of this machine, in GFLOP/s.
    """
    filters, steps, order = case
    on_gpu = options.device == "cuda"
    ours = CohortSum(data, *case, options.threads, not options.torch, options.device)
    peer = make_learn2learn_loop(data, *case, options.device)
    our_count, peer_count = (96, 32) if steps == 1 else (48, 12)
    if on_gpu:
        our_count, peer_count = 512, 12
    our_tasks = Tasks(data, our_count)
    peer_tasks = Tasks(data, peer_count)
    measure_seconds(ours, peer_tasks)  # both warm up
    measure_seconds(peer, peer_tasks)
    pairs = [
        (measure_seconds(ours, our_tasks), measure_seconds(peer, peer_tasks))
        for _ in range(options.pairs)
    ]
    ratios = sorted(peer_time / our_time for our_time, peer_time in pairs)
    our_seconds, peer_seconds = (
        statistics.median(column) for column in zip(*pairs, strict=True)
    )
    peaks = {}
    for cohort in (32, 256):
        if on_gpu:
            peaks[cohort] = measure_device_peak(ours, Tasks(data, cohort))
        else:
            peaks[cohort] = measure_peak_memory(
                folder, *case, options.threads, not options.torch, cohort
            )
    gflop_rate = count_gflop(*case) / our_seconds
    return {
        "filters": filters,
        "inner_steps": steps,
        "order": order,
        "ms_per_task": round(1e3 * our_seconds, 2),
        "learn2learn_ms_per_task": round(1e3 * peer_seconds, 2),
        "ratio_median": round(statistics.median(ratios), 2),
        "ratio_min": round(ratios[0], 2),
        "ratio_max": round(ratios[-1], 2),
        "peak_mib_32_tasks": round(peaks[32]),
        "peak_mib_256_tasks": round(peaks[256]),
        "share_of_multiply_rate": round(gflop_rate / multiply_rate, 2),
    }


def print_row(row: Mapping[str, Any]) -> None:
    """Print the values of a row in one line."""
    print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)


def main() -> None:
    """Run all cases and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--data", type=Path, default=Path("results/data/glyphs"))
    parser.add_argument(
        "--out", type=Path, default=Path("results/benchmarks/meta_gradient.csv")
    )
    parser.add_argument(
        "--torch", action="store_true", help="time the implementation for any module"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--cases",
        type=int,
        default=len(CASES),
        help="number of cases, from the largest",
    )
    parser.add_argument(
        "--chunks",
        type=int,
        nargs="+",
        help="numbers of tasks that are gathered at once",
    )
    parser.add_argument("--memory-of", nargs=7, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_of:
        folder, *numbers = options.memory_of
        filters, steps, order, threads, kernels, cohort = map(int, numbers)
        data = load_dataset(folder)
        # Gathers a chunk's tasks when they are needed, so that the peak is not that of
        # all tasks at once.
        tasks = SimpleNamespace(
            support_y=np.empty(cohort), select=lambda ids: Tasks(data, len(ids))
        )
        CohortSum(data, filters, steps, order, threads, bool(kernels))(tasks)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (
            options.data
            if (options.data / "summary.json").exists()
            else Path(temporary) / "glyphs"
        )
        data = load_glyphs(folder)
        multiply_rate = measure_multiply_rate(options.device)
        device = f"{options.threads} threads"
        if options.device == "cuda":
            device = torch.cuda.get_device_name()
        print(
            f"{device}, matrix multiply {multiply_rate:.0f} GFLOP/s,"
            f" {options.pairs} pairs a case"
        )
        if options.chunks:
            rows = measure_chunks(data, options, multiply_rate)
        else:
            rows = []
            for case in CASES[: options.cases]:
                row = measure_pairs(data, folder, case, options, multiply_rate)
                rows.append(row)
                print_row(row)
    with (
        atomic_path(options.out) as path,
        open(path, "w", newline="", encoding="utf-8") as handle,
    ):
        writer = csv.DictWriter(handle, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
