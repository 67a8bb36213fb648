"""Processes of one training: how they divide the work, and their messages.

`torchrun` or `srun` starts them, and they communicate by `torch.distributed` (gloo). A
single process sends nothing, so that one process and many run the same code.

The main process does everything that a single process does: it releases the server's
sum, makes the server's step, validates and writes files. Methods of the rounds that are
marked `in_all_processes` run in the other processes too (`Processes.follow`): there
each computes its part of every cohort, with the bits that the main process would have
computed itself.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import itertools
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from dpfedbench.errors import BenchError
from dpfedbench.files import sha256
from dpfedbench.lazy import np, torch
from dpsum.group_clipping import add_rows_by_group

if TYPE_CHECKING:
    from dpfedbench.models.choose import Choice
    from dpfedbench.run import Run

Value = TypeVar("Value")
Function = TypeVar("Function", bound=Callable[..., Any])

Stream = Iterator[tuple[Any, "np.ndarray"]]
"""Contributions float32 [n x contributions, d] and losses [n] of some clients, in the
cohort's order. Clients that send more than one message have a sequence of such
contributions, one for each message and of its sum's dimension; the message to the
server's own sum is the first.

Memory grows with the chunk, never with the cohort. A yielded tensor is overwritten
later.
"""

Messages = Iterator[tuple[Sequence["torch.Tensor"], "np.ndarray"]]
"""Coordinates [n x contributions, d] that each sum adds up, and losses [n] of some
clients, as in `Stream`.
"""

_SOURCE = Path(__file__).resolve().parents[2]

_PATIENCE = datetime.timedelta(days=7)
"""Longest wait of one process for another, which may be validating. A dead process is
noticed at once.
"""


class Lost(RuntimeError):
    """Another process of the training ended.

    That process, or the launcher that started it, reports the reason.
    """


def in_all_processes(method: Function) -> Function:
    """Return a method that all processes run with the main process's arguments.

    The main process calls it. The others run it in `Processes.follow`. The method's
    object has the processes as `processes`.
    """

    @functools.wraps(method)
    def call(self: Any, *arguments: Any) -> Any:
        self.processes.broadcast((call, arguments))
        return method(self, *arguments)

    return cast(Function, call)


class Processes:
    """This process among the processes of its training; by default the only one.

    Args:
        rank: number of this process, from 0. Only process 0, the main process, draws
            the server's noise and writes files.
        count: number of processes.
    """

    def __init__(self, rank: int = 0, count: int = 1) -> None:
        self.rank = rank
        self.count = count

    @property
    def is_main(self) -> bool:
        """Whether this is process 0, which the other processes follow."""
        return self.rank == 0

    def follow(self, target: Any) -> None:
        """Run the main process's calls of methods of its `target`, until they end.

        Args:
            target: object of this process whose methods are called.
        """
        while (message := self.broadcast()) is not None:
            method, arguments = message
            method.__wrapped__(target, *arguments)

    def end(self) -> None:
        """Let the other processes return from `follow`."""
        self.broadcast()

    def share(self, count: int) -> range:
        """Return the numbers below `count` that this process handles.

        They are the numbers rank, rank + processes, rank + 2 · processes, and so on.
        """
        return range(self.rank, count, self.count)

    def broadcast(self, message: Any = None) -> Any:
        """Broadcast the main process's message to all processes.

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
        """Return the values of all processes, by rank, to the main process.

        Each other process gets a list of its own value alone.
        """
        if self.count == 1:
            return [value]

        values: list[Any] | None = [None] * self.count if self.is_main else None
        with _talking():
            torch.distributed.gather_object(value, values, dst=0)
        return [value] if values is None else values

    def check_agree(self, run: Run, device: str, paths: Iterable[Path]) -> None:
        """Refuse processes that would not train the same run.

        Compared are code, versions, processor, configuration and data.

        Args:
            run: the run of this process.
            device: the device of this process.
            paths: files, and folders whose files are compared, of this process.

        Raises:
            BenchError: in the main process; names the difference and the process that
                has it.
        """
        from dpfedbench.models.kernels import processor, versions_of

        versions = {
            "dpfedbench": _digest(_SOURCE.glob("dp*/**/*.py"), _SOURCE),
            **versions_of("torch", "numpy", "numba"),
            "processor": processor(),
            "device": device,
            "configuration": f"{run.folder} {run.made_by} {run.to_yaml()}",
        }
        for path in map(Path, paths):
            versions[str(path)] = (
                sha256(path) if path.is_file() else _digest(path.glob("*"), path)
            )
        versions_of_all = self.gather((platform.node(), versions))
        for rank, (node, other_versions) in enumerate(versions_of_all):
            # Paths may differ: a folder can have another path on another node.
            pairs = zip(versions.items(), other_versions.items(), strict=True)
            differing = [
                name
                for (name, value), (_, other_value) in pairs
                if value != other_value
            ]
            if differing:
                raise BenchError(
                    f"process {rank} on {node} has another {', '.join(differing)} than"
                    f" process 0 on {versions_of_all[0][0]}: start all processes with the"
                    " same code, packages, processor type and files"
                )

    def add(
        self,
        totals: Sequence[Any],
        messages_of: Callable[[np.ndarray], Messages],
        cohort: np.ndarray,
        *,
        divided: bool,
        per_client: int,
        choice: Choice,
        threads: int,
    ) -> list[np.ndarray]:
        """Add the contributions of a cohort to sums, with the bits of a single process.

        Args:
            totals: one sum (`dpsum.mechanism.Accumulator`) for each message of a
                client, of every process; those of the main process have all
                contributions in the end.
            messages_of: returns the messages and losses of given clients, in their
                order.
            cohort: ids of all clients of the round.
            divided: whether `messages_of` itself divides the clients among processes, and
                returns all contributions in the main process.
            per_client: number of contributions of one client.
            choice: implementation of the gradients, with the chunks that suit it.
            threads: CPU threads of this process.

        Returns:
            The losses of the cohort in its order, in the main process; nan where clients
            report none.
        """
        if self.count > 1 and not divided:
            (total,) = totals
            size = choice.chunk(threads)
            blocks = self._blocks(len(cohort), size, fixed=choice.device != "cpu")
            return self._add_blocks(total, messages_of, cohort, blocks, per_client)
        all_losses = []
        for messages, losses in messages_of(cohort):
            if self.is_main:
                for total, message in zip(totals, messages, strict=True):
                    total.add(message)
                all_losses.append(losses)
        return all_losses

    def _add_blocks(
        self,
        total: Any,
        messages_of: Callable[[np.ndarray], Messages],
        cohort: np.ndarray,
        blocks: Sequence[slice],
        per_client: int,
    ) -> list[np.ndarray]:
        """Add a cohort of which each process computes its share of the blocks."""
        from dpfedbench.models.kernels import add_rows
        from dpfedbench.training.mechanisms import rows_of

        own_blocks = [blocks[number] for number in self.share(len(blocks))]
        positions = np.concatenate(
            [np.arange(len(cohort))[block] for block in own_blocks] or [np.arange(0)]
        )
        all_losses: list[np.ndarray] = []

        def add(limit: Any, whole: np.ndarray, norms: np.ndarray) -> None:
            of = norms.reshape(-1, per_client, *norms.shape[1:])
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
                    add_rows_by_group(
                        add_rows, groups, messages, limit, whole, own_norms
                    )

            pieces = _regrouped(
                messages_of(cohort[positions]),
                [per_client * (b.stop - b.start) for b in own_blocks],
                len(whole),
                all_losses,
            )
            self._fold(whole, len(blocks), pieces, add_block)
            losses = np.concatenate(all_losses or [np.zeros(0)])
            parts = self.gather((positions, of[positions], losses))
            cohort_losses = np.full(len(cohort), np.nan)
            for part_positions, lengths, part_losses in parts:
                of[part_positions] = lengths
                if len(part_losses):
                    cohort_losses[part_positions] = part_losses
            all_losses[:] = [cohort_losses]

        total.add_by(add, len(cohort) * per_client, transformed=True)
        return all_losses

    def _blocks(self, length: int, size: int, *, fixed: bool) -> list[slice]:
        """Divide a cohort into blocks, of which each process computes its `share`.

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

    def _fold(
        self,
        whole: np.ndarray,
        blocks: int,
        process_blocks: Iterable[Value],
        add: Callable[[int, Value], None],
    ) -> None:
        """Add all blocks to one total in a fixed order, bit-identical to one process.

        The total goes from process to process. While another process holds it, this
        process computes its next block.

        Args:
            whole: the total, float64 [d]; afterwards the total of all blocks in the
                main process, and undefined elsewhere.
            blocks: number of blocks of all processes.
            process_blocks: this process's share of the blocks, computed when they are
                requested.
            add: adds a block, given its number and its content, to the total.
        """
        sent: list[Any] = []
        for block, number in zip(process_blocks, self.share(blocks), strict=False):
            if number:
                self._receive(whole, number - 1)
            add(number, block)
            self._send(whole, 0 if number + 1 == blocks else number + 1, sent)
        if blocks and self.is_main:
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


def _digest(files: Iterable[Path], root: Path) -> str:
    return " ".join(
        f"{path.relative_to(root)} {sha256(path)}"
        for path in sorted(files)
        if path.is_file()
    )


def _regrouped(
    stream: Messages, sizes: Sequence[int], dimension: int, losses: list[np.ndarray]
) -> Iterator[np.ndarray]:
    """Yield contributions in pieces of these sizes, and exhaust the stream."""
    from dpfedbench.training.mechanisms import rows_of

    have = np.empty((0, dimension), np.float32)
    for size in sizes:
        rows = [have]
        while sum(map(len, rows)) < size:
            (contributions,), block_losses = next(stream)
            rows.append(
                rows_of(contributions).copy()
            )  # the stream overwrites the tensors that it yields
            losses.append(block_losses)
        joined = np.concatenate(rows) if len(rows) > 1 else have
        yield joined[:size]
        have = joined[size:]
    for _ in stream:
        raise RuntimeError("there are more contributions than clients in the cohort")


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
