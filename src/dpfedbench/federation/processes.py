"""The processes of one training: how they divide the work, and what they send to each
other.

`torchrun` or `srun` starts them, and they communicate by `torch.distributed` (gloo). A
single process sends nothing, so one process and many run the same code.
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
"""How long one process waits for another, which may be validating; one that died is
noticed at once.
"""


class Lost(RuntimeError):
    """Another process of the training is gone. It has said why, or whoever started it
    does.
    """


class Processes:
    """This process among those of its training; by default the only one.

    Args:
        rank: its number, from 0; the first alone draws the server's noise and writes
            files.
        count: how many there are.
    """

    def __init__(self, rank: int = 0, count: int = 1) -> None:
        self.rank = rank
        self.count = count

    @property
    def first(self) -> bool:
        """Whether it is the one that the others help."""
        return self.rank == 0

    def own(self, count: int) -> range:
        """Its part of the numbers 0 to count - 1, which is every so many-th."""
        return range(self.rank, count, self.count)

    def tell(self, message: Any = None) -> Any:
        """The first process's message, to all; what the others give is not looked
        at.
        """
        if self.count == 1:
            return message

        box = [message]
        with _talking():
            torch.distributed.broadcast_object_list(box, src=0)
        return box[0]

    def all(self, value: Value) -> list[Value]:
        """Return the values of all processes, in their order, to every process."""
        if self.count == 1:
            return [value]

        values: list[Any] = [None] * self.count
        with _talking():
            torch.distributed.all_gather_object(values, value)
        return values

    def collected(self, value: Value) -> list[Value]:
        """Return the values of all processes, in their order, to the first process; to
        each of the others its own value.
        """
        if self.count == 1:
            return [value]

        values: list[Any] | None = [None] * self.count if self.first else None
        with _talking():
            torch.distributed.gather_object(value, values, dst=0)
        return [value] if values is None else values

    def blocks(self, length: int, size: int, *, fixed: bool) -> list[slice]:
        """A cohort of so many clients in blocks, of which each process takes its `own`.

        Args:
            length: clients of the cohort.
            size: clients of a block, at most.
            fixed: whether blocks depend on the size alone; else they are evened out, so
                that all have as much to do.
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
        """Have all blocks added to one total, one after another whoever made them, so
        that its bits are one process's.

        The total goes from process to process. While it is elsewhere, this process
        makes its next block.

        Args:
            whole: the total, float64 [d]; afterwards that of all blocks in the first
                process, and anything elsewhere.
            blocks: how many there are in all.
            made: this process's `own` blocks, made as they are asked for.
            add: adds block number so-and-so, as it was made, to the total.
        """
        sent: list[Any] = []
        for block, number in zip(made, self.own(blocks), strict=False):
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
        """The total from whoever added block `number`."""
        if number % self.count != self.rank:
            with _talking():
                torch.distributed.recv(torch.from_numpy(whole), src=number % self.count)

    def _send(self, whole: np.ndarray, number: int, sent: list[Any]) -> None:
        """The total to whoever adds block `number`, without waiting until it is
        taken.
        """
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
    """This process among those that `torchrun` or `srun` started with it.

    Raises:
        BenchError: this torch cannot be used by several processes, or they did not find
            each other.
    """

    for name, slurm in (("RANK", "SLURM_PROCID"), ("LOCAL_RANK", "SLURM_LOCALID")):
        os.environ.setdefault(name, os.environ.get(slurm, "0"))
    if not torch.distributed.is_available():
        raise BenchError(
            "this torch comes without torch.distributed: set machine.processes to 1"
        )
    try:
        torch.distributed.init_process_group("gloo", timeout=_PATIENCE)
    except (RuntimeError, ValueError) as error:
        reason = (str(error).strip() or "no reason").splitlines()[0]
        raise BenchError(
            f"the processes of the training did not find each other ({reason})"
        ) from error
    yield Processes(torch.distributed.get_rank(), torch.distributed.get_world_size())
    # Not after an error: this waits for what is under way, and the others may be gone.
    torch.distributed.destroy_process_group()
