"""Processes of one training: how they divide the work, and their messages.

`torchrun` or `srun` starts them, and they communicate by `torch.distributed` (gloo). A
single process sends nothing, so that one process and many run the same code.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from dpfedbench.errors import BenchError
from dpfedbench.lazy import np, torch

Value = TypeVar("Value")

_PATIENCE = datetime.timedelta(days=7)
"""Longest wait of one process for another, which may be validating. A dead process is
noticed at once.
"""


class Lost(RuntimeError):
    """Another process of the training ended.

    That process, or the launcher that started it, reports the reason.
    """


class Processes:
    """This process among the processes of its training; by default the only one.

    Args:
        rank: number of this process, from 0. Only process 0 draws the server's noise
            and writes files.
        count: number of processes.
    """

    def __init__(self, rank: int = 0, count: int = 1) -> None:
        self.rank = rank
        self.count = count

    @property
    def first(self) -> bool:
        """Whether this is process 0, which the other processes help."""
        return self.rank == 0

    def share(self, count: int) -> range:
        """Return the numbers below `count` that this process handles.

        They are the numbers rank, rank + processes, rank + 2 · processes, and so on.
        """
        return range(self.rank, count, self.count)

    def broadcast(self, message: Any = None) -> Any:
        """Broadcast the first process's message to all processes.

        Messages of the other processes are ignored.
        """
        if self.count == 1:
            return message

        box = [message]
        with _talking():
            torch.distributed.broadcast_object_list(box, src=0)
        return box[0]

    def all_gather(self, value: Value) -> list[Value]:
        """Return the values of all processes, in the order of ranks, to every one."""
        if self.count == 1:
            return [value]

        values: list[Any] = [None] * self.count
        with _talking():
            torch.distributed.all_gather_object(values, value)
        return values

    def gather(self, value: Value) -> list[Value]:
        """Return the values of all processes, by rank, to the first process.

        Each other process gets a list of its own value alone.
        """
        if self.count == 1:
            return [value]

        values: list[Any] | None = [None] * self.count if self.first else None
        with _talking():
            torch.distributed.gather_object(value, values, dst=0)
        return [value] if values is None else values

    def blocks(self, length: int, size: int, *, fixed: bool) -> list[slice]:
        """Divide a cohort into blocks, of which each process computes its `own`.

        Args:
            length: number of clients in the cohort.
            size: largest number of clients in a block.
            fixed: whether the blocks depend on `size` alone; else their sizes are
                balanced, so that all processes have equal work.
        """
        if fixed:
            bounds = [*range(0, length, size), length]
        else:
            number = self.count * max(1, -(-length // (size * self.count)))
            bounds = [length * i // number for i in range(number + 1)]
        return [slice(*pair) for pair in itertools.pairwise(bounds)]

    def fold(
        self,
        whole: np.ndarray,
        blocks: int,
        made: Iterable[Value],
        add: Callable[[int, Value], None],
    ) -> None:
        """Add all blocks to one total in a fixed order, bit-identical to one process.

        The total goes from process to process. While another process holds it, this
        process computes its next block.

        Args:
            whole: the total, float64 [d]; afterwards the total of all blocks in the
                first process, and undefined elsewhere.
            blocks: number of blocks of all processes.
            made: this process's `own` blocks, computed when they are requested.
            add: adds a block, given its number and its content, to the total.
        """
        sent: list[Any] = []
        for block, number in zip(made, self.share(blocks), strict=False):
            if number:
                self._receive(whole, number - 1)
            add(number, block)
            self._send(whole, 0 if number + 1 == blocks else number + 1, sent)
        if blocks and self.first:
            self._receive(whole, blocks - 1)
        with _talking():
            for work, _ in sent:
                work.wait()

    def _receive(self, whole: np.ndarray, number: int) -> None:
        """Receive the total from the process that added block `number`."""
        if number % self.count != self.rank:
            with _talking():
                torch.distributed.recv(torch.from_numpy(whole), src=number % self.count)

    def _send(self, whole: np.ndarray, number: int, sent: list[Any]) -> None:
        """Send the total to the process that adds block `number`, without blocking."""
        if number % self.count != self.rank:
            with _talking():
                while sent:
                    sent.pop()[0].wait()
                copy = torch.from_numpy(whole.copy())
                sent.append(
                    (torch.distributed.isend(copy, dst=number % self.count), copy)
                )


@contextlib.contextmanager
def _talking() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise Lost(str(error)) from error


@contextlib.contextmanager
def joined() -> Iterator[Processes]:
    """Join the processes that `torchrun` or `srun` started, and yield this one.

    Raises:
        BenchError: this torch does not support several processes, or they did not find
            each other.
    """

    for name, slurm in (("RANK", "SLURM_PROCID"), ("LOCAL_RANK", "SLURM_LOCALID")):
        os.environ.setdefault(name, os.environ.get(slurm, "0"))
    if not torch.distributed.is_available():
        raise BenchError(
            "this torch build has no torch.distributed: set machine.processes to 1"
        )
    try:
        torch.distributed.init_process_group("gloo", timeout=_PATIENCE)
    except (RuntimeError, ValueError) as error:
        reason = (str(error).strip() or "no reason").splitlines()[0]
        raise BenchError(
            f"the processes of the training could not connect ({reason})"
        ) from error
    yield Processes(torch.distributed.get_rank(), torch.distributed.get_world_size())
    # Not after an error: this call waits for pending messages, and the other processes
    # may have ended.
    torch.distributed.destroy_process_group()
