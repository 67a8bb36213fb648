"""Training of one run by several processes: they check that they agree, and add up each
cohort together.

The first process does everything that a single process does. The others help: each
computes its part of every cohort, and sends its rows and sums to the first process,
with the bits that the first would have computed itself. Only the first process releases
the server's sum, makes the server's step, validates, and writes files.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dpfedbench.errors import BenchError
from dpfedbench.files import sha256
from dpfedbench.method import Method
from dpfedbench.models.kernels import add_rows, processor, versions_of
from dpfedbench.models.torch_sums import rows_of
from dpfedbench.training.processes import Processes
from dpsum.group_clipping import add_rows_by_group

if TYPE_CHECKING:
    from dpfedbench.training.client_updates.client_update import Stream

_SOURCE = Path(__file__).resolve().parents[2]


def check_agree(
    processes: Processes, run: Method, device: str, places: Iterable[Path]
) -> None:
    """Refuse processes that would not train the same run.

    Compared are code, versions, processor, configuration and data.

    Args:
        processes: the processes of the training.
        run: the run of this process.
        device: the device of this process.
        places: files, and folders whose files are compared, of this process.

    Raises:
        BenchError: in the first process; names the difference and the process that has
            it.
    """
    if processes.count == 1:
        return
    versions = {
        "dpfedbench": _digest(_SOURCE.glob("dp*/**/*.py"), _SOURCE),
        **versions_of("torch", "numpy", "numba"),
        "processor": processor(),
        "device": device,
        "configuration": f"{run.folder} {run.made_by} {run.to_yaml()}",
    }
    for path in map(Path, places):
        versions[str(path)] = (
            sha256(path) if path.is_file() else _digest(path.glob("*"), path)
        )
    versions_of_all = processes.gather((platform.node(), versions))
    for rank, (node, other_versions) in enumerate(versions_of_all):
        # Paths may differ: a folder can have another path on another node.
        pairs = zip(versions.items(), other_versions.items(), strict=True)
        differing = [
            name for (name, value), (_, other_value) in pairs if value != other_value
        ]
        if differing:
            raise BenchError(
                f"process {rank} on {node} has another {', '.join(differing)} than"
                f" process 0 on {versions_of_all[0][0]}: start all processes with the"
                " same code, packages, processor type and files"
            )


def _digest(files: Iterable[Path], root: Path) -> str:
    return " ".join(
        f"{path.relative_to(root)} {sha256(path)}"
        for path in sorted(files)
        if path.is_file()
    )


def add_together(
    processes: Processes,
    total: Any,
    stream_of: Callable[[np.ndarray], Stream],
    cohort: np.ndarray,
    blocks: Sequence[slice],
    *,
    contributions_per_client: int,
) -> list[np.ndarray]:
    """Add the contributions of a cohort to a sum, with the bits of a single process.

    Args:
        processes: the processes of the training; each computes its own blocks.
        total: the sum (`dpsum.accumulator.Accumulator`), of every process; in the
            first process it has all contributions in the end.
        stream_of: returns the contributions and losses of given clients, in their
            order.
        cohort: ids of all clients of the round.
        blocks: slices of the cohort, in its order.
        contributions_per_client: number of contributions of one client.

    Returns:
        The losses of the cohort in its order, in the first process; nan where clients
        report none.
    """
    own_blocks = [blocks[number] for number in processes.share(len(blocks))]
    positions = np.concatenate(
        [np.arange(len(cohort))[block] for block in own_blocks] or [np.arange(0)]
    )
    all_losses: list[np.ndarray] = []

    def add(limit: Any, whole: np.ndarray, norms: np.ndarray) -> None:
        of = norms.reshape(-1, contributions_per_client, *norms.shape[1:])
        of[:] = 0.0  # norms of clients that another process computes

        def add_block(number: int, rows: np.ndarray) -> None:
            messages = rows
            if total.transforms:
                messages = rows_of(total.transformed(torch.from_numpy(rows)))
            own_norms = of[blocks[number]].reshape(-1, *norms.shape[1:])
            if total.sum.groups is None:
                add_rows(messages, limit, whole, own_norms)
            else:
                groups = total.sum.groups
                add_rows_by_group(add_rows, groups, messages, limit, whole, own_norms)

        pieces = _regrouped(
            stream_of(cohort[positions]),
            [contributions_per_client * (b.stop - b.start) for b in own_blocks],
            len(whole),
            all_losses,
        )
        processes.fold(whole, len(blocks), pieces, add_block)
        losses = np.concatenate(all_losses or [np.zeros(0)])
        parts = processes.gather((positions, of[positions], losses))
        cohort_losses = np.full(len(cohort), np.nan)
        for part_positions, lengths, part_losses in parts:
            of[part_positions] = lengths
            if len(part_losses):
                cohort_losses[part_positions] = part_losses
        all_losses[:] = [cohort_losses]

    total.add_by(add, len(cohort) * contributions_per_client, transformed=True)
    return all_losses


def _regrouped(
    stream: Stream, sizes: Sequence[int], dimension: int, losses: list[np.ndarray]
) -> Iterator[np.ndarray]:
    """Yield contributions in pieces of these sizes, and exhaust the stream."""
    have = np.empty((0, dimension), np.float32)
    for size in sizes:
        rows = [have]
        while sum(map(len, rows)) < size:
            contributions, block_losses = next(stream)
            rows.append(
                rows_of(contributions).copy()
            )  # the stream overwrites the tensors that it yields
            losses.append(block_losses)
        joined = np.concatenate(rows) if len(rows) > 1 else have
        yield joined[:size]
        have = joined[size:]
    for _ in stream:
        raise RuntimeError("there are more contributions than clients in the cohort")
