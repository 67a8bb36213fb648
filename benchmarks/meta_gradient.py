"""Tasks per second and peak memory of a cohort's private meta-gradient, beside
learn2learn's loop.

    uv run python benchmarks/meta_gradient.py [--pairs 7] [--threads 2] [--torch]
        [--out results/benchmarks/meta_gradient.csv]
    uv run python benchmarks/meta_gradient.py --device cuda [--chunks 64 256 1024] [--cases 1]

Same network, same data, same machine, in turns: each pair times ours (contributions,
clipping, private sum with noise) and then learn2learn's loop over tasks (no clipping),
and the ratio is taken pair by pair, so that a machine that slows down slows both.
Cases: 5-way, 1 support and 1 query image a class; {1, 5} inner steps x {first, second}
order x {64, 32} filters. The last column sets our rate against the machine's measured
matrix-multiply rate, counting the multiplications of plain 3x3 convolutions (ours does
16 for 36 of them, so it may exceed what that suggests). Peak memory is that of a
process of its own, for cohorts of 32 and 256 tasks. `--torch` times the implementation
for any module in the place of the hand-written passes.

With `--device cuda` both are on the GPU, and peak memory is the GPU's. `--chunks` then
gives, in the place of learn2learn's loop, clients per second and peak memory for each
number of tasks that are gathered at once.
"""

from __future__ import annotations

import argparse
import csv
import functools
import itertools
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from dpfedbench.data.images import load_dataset
from dpfedbench.data.registry import prepare
from dpfedbench.files import atomic_path
from dpfedbench.models.choose import choose
from dpfedbench.models.conv4 import Conv4
from dpfedbench.models.net import Net
from dpfedbench.models.torch_sums import add_to
from dpfedbench.parts.client_updates.client_update import Setup
from dpfedbench.parts.client_updates.maml import Maml
from dpsum.private_sum import PrivateSum
from dpsum.randomness import stream

WAYS = 5
CASES = list(itertools.product((64, 32), (5, 1), (2, 1)))


def dataset(folder: Path):
    """The glyphs; drawn into `folder` where the workflow has not drawn them yet."""
    if not (folder / "summary.json").exists():
        prepare("glyphs", folder, None, None)
    return load_dataset(folder)


class _Held:
    """What the clients hold: the tasks of the moment."""

    tasks: Any = None

    def gather(self, ids: np.ndarray) -> Any:
        """The tasks of some clients."""
        return self.tasks.chunk(ids)


class Ours:
    """A cohort's private sum."""

    def __init__(
        self,
        data,
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
        self._held = _Held()
        run: Any = SimpleNamespace(
            own_sums=tuple, model=SimpleNamespace(record_level=False)
        )
        enter: Any = None
        setup = Setup(
            run=run,
            net=self.net,
            held=self._held,
            own=(),
            enter=enter,
            plan=enter,
            threads=threads,
            gradients=choose(self.net, device=device, enabled=kernels),
        )
        self._clients = Maml(inner_steps=steps, inner_rate=0.1, order=order).clients(
            setup
        )
        if chunk is not None:
            self._clients._workers.chunk = chunk

    def __call__(self, tasks) -> None:
        self._held.tasks = tasks
        total = PrivateSum(
            dimension=self.net.dimension, threshold=0.5, noise_multiplier=1.0
        )
        for contributions, _, _ in self._clients.contributions(
            self.theta, np.arange(len(tasks.support_y)), 0
        ):
            add_to(total, contributions)
        total.release(stream(0, "noise"))


class Tasks:
    """A cohort's images, gathered before the clock starts."""

    def __init__(self, data, count: int) -> None:
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

    def chunk(self, ids: np.ndarray) -> Tasks:
        """The tasks of some clients."""
        part = object.__new__(Tasks)
        part.support_x = self.support_x[ids]
        part.support_y = self.support_y[ids]
        part.query_x = self.query_x[ids]
        part.query_y = self.query_y[ids]
        return part


def learn2learn_loop(data, filters: int, steps: int, order: int, device: str):
    """learn2learn's MAML over tasks, on Conv-4 of torch's own layers."""
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
            x, y, rest, labels = (
                torch.from_numpy(part).to(device) for part in (sx, sy, qx, qy)
            )
            x, rest = (images.permute(0, 3, 1, 2).contiguous() for images in (x, rest))
            learner = maml.clone()
            for _ in range(steps):
                learner.adapt(loss(learner(x), y))
            loss(learner(rest), labels).backward()

    return run


def seconds(work, tasks: Tasks) -> float:
    """Wall seconds per task."""
    start = time.perf_counter()
    work(tasks)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / len(tasks.support_y)


def multiply_rate(device: str) -> float:
    """Matrix-multiply rate of this machine in single precision, in GFLOP/s: the best of
    several products.
    """
    side = 2048 if device == "cpu" else 8192
    a, b = torch.randn(2, side, side, device=device)
    best = 0.0
    for _ in range(8):
        start = time.perf_counter()
        float(torch.mm(a, b)[0, 0])  # waits for a GPU
        best = max(best, 2 * side**3 / (time.perf_counter() - start) / 1e9)
    return best


def plain_gflop(filters: int, steps: int, order: int) -> float:
    """GFLOP of one task with plain convolutions: 3 passes for a gradient, 9 with a
    Hessian-vector product.
    """
    forward = 0.0
    side = 28
    channels = 1
    for _ in range(4):
        forward += 2 * 9 * channels * filters * side * side * WAYS / 1e9
        side = side // 2
        channels = filters
    return forward * (3 * (steps + 1) + (6 * steps if order == 2 else 0))


def peak_memory(
    folder: Path,
    filters: int,
    steps: int,
    order: int,
    threads: int,
    kernels: bool,
    cohort: int,
) -> float:
    """Peak resident MiB of a fresh process that computes one cohort's private sum."""
    arguments = [folder, filters, steps, order, threads, int(kernels), cohort]
    command = [sys.executable, __file__, "--memory-of", *map(str, arguments)]
    return float(
        subprocess.run(
            command, check=True, capture_output=True, text=True
        ).stdout.split()[-1]
    )


def device_peak(work, tasks: Tasks) -> float:
    """Peak MiB that torch takes of the GPU for one cohort's private sum."""
    torch.cuda.reset_peak_memory_stats()
    work(tasks)
    return torch.cuda.max_memory_allocated() / 2**20


def over_chunks(data, options, rate: float) -> list[dict[str, Any]]:
    """Clients per second, share of the multiply rate and peak memory over the tasks
    that are gathered at once.
    """
    rows = []
    for filters, steps, order in CASES[: options.cases]:
        for chunk in options.chunks:
            ours = Ours(
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
            seconds(ours, Tasks(data, chunk))
            each = statistics.median(seconds(ours, tasks) for _ in range(options.pairs))
            row = {
                "filters": filters,
                "inner_steps": steps,
                "order": order,
                "chunk": chunk,
                "clients_per_second": round(1 / each, 1),
                "share_of_multiply_rate": round(
                    plain_gflop(filters, steps, order) / each / rate, 3
                ),
                "peak_mib": (
                    round(device_peak(ours, tasks)) if options.device == "cuda" else ""
                ),
            }
            rows.append(row)
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    return rows


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
        "--torch", action="store_true", help="not the hand-written passes"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--cases",
        type=int,
        default=len(CASES),
        help="so many of the cases, the largest first",
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
        drawn = SimpleNamespace(
            support_y=np.empty(cohort), chunk=lambda ids: Tasks(data, len(ids))
        )
        Ours(data, filters, steps, order, threads, bool(kernels))(drawn)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (
            options.data
            if (options.data / "summary.json").exists()
            else Path(temporary) / "glyphs"
        )
        data = dataset(folder)
        rate = multiply_rate(options.device)
        on_gpu = options.device == "cuda"
        where = torch.cuda.get_device_name() if on_gpu else f"{options.threads} threads"
        print(
            f"{where}, matrix multiply {rate:.0f} GFLOP/s, {options.pairs} pairs a case"
        )
        rows = over_chunks(data, options, rate) if options.chunks else []
        for filters, steps, order in () if options.chunks else CASES[: options.cases]:
            ours = Ours(
                data,
                filters,
                steps,
                order,
                options.threads,
                not options.torch,
                options.device,
            )
            theirs = learn2learn_loop(data, filters, steps, order, options.device)
            cohorts = (512, 12) if on_gpu else (96, 32) if steps == 1 else (48, 12)
            many, few = (Tasks(data, count) for count in cohorts)
            seconds(ours, few), seconds(theirs, few)
            pairs = [
                (seconds(ours, many), seconds(theirs, few))
                for _ in range(options.pairs)
            ]
            ratios = sorted(b / a for a, b in pairs)
            peak = functools.partial(
                peak_memory,
                folder,
                filters,
                steps,
                order,
                options.threads,
                not options.torch,
            )
            mine, peer = (
                statistics.median(column) for column in zip(*pairs, strict=True)
            )
            row = {
                "filters": filters,
                "inner_steps": steps,
                "order": order,
                "ms_per_task": round(1e3 * mine, 2),
                "learn2learn_ms_per_task": round(1e3 * peer, 2),
                "ratio_median": round(statistics.median(ratios), 2),
                "ratio_min": round(ratios[0], 2),
                "ratio_max": round(ratios[-1], 2),
                "peak_mib_32_tasks": round(
                    device_peak(ours, Tasks(data, 32)) if on_gpu else peak(32)
                ),
                "peak_mib_256_tasks": round(
                    device_peak(ours, Tasks(data, 256)) if on_gpu else peak(256)
                ),
                "share_of_multiply_rate": round(
                    plain_gflop(filters, steps, order) / mine / rate, 2
                ),
            }
            rows.append(row)
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
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
