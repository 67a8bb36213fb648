"""CPU threads that each compute one client or task, with their own working memory."""

from __future__ import annotations

import concurrent.futures
import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

if TYPE_CHECKING:
    from dpfedbench.models.choose import Choice
    from dpfedbench.models.gradients import Gradients

Worker = TypeVar("Worker")


class _Caller(concurrent.futures.Executor):
    """Executor that runs tasks synchronously in the calling thread."""

    def submit(
        self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> concurrent.futures.Future:
        """Run the task and return a finished future."""
        done: concurrent.futures.Future = concurrent.futures.Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


class Workers(Generic[Worker]):
    """One worker per CPU thread, or a single worker on a GPU.

    A worker holds arrays and passes that no two threads may use at once. The assignment
    of workers to tasks is arbitrary, so a result must not depend on it. A CPU worker
    computes few tasks at a time, a GPU worker many.

    Args:
        choice: the implementation of the gradients.
        make: makes a worker from its gradients.
        threads: number of CPU threads.

    Attributes:
        count: number of workers.
        device: "cpu" or "cuda".
        chunk: number of tasks to gather at once.
    """

    def __init__(
        self, choice: Choice, make: Callable[[Gradients], Worker], *, threads: int = 1
    ) -> None:
        self.device = choice.device
        self.count = max(1, threads) if choice.device == "cpu" else 1
        self.chunk = choice.chunk(threads)
        self._tasks = choice.tasks
        # torch, OpenMP and MKL keep their thread limits per thread, so the limit that
        # `running` sets holds in the caller's thread only.
        self._pool: concurrent.futures.Executor = (
            concurrent.futures.ThreadPoolExecutor(
                self.count, initializer=torch.set_num_threads, initargs=(1,)
            )
            if self.count > 1
            else _Caller()
        )
        self._free: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        for _ in range(self.count):
            self._free.put(make(choice.make()))

    def split(self, count: int) -> list[slice]:
        """Split the tasks 0 to count - 1 into pieces for the workers.

        A piece has as many tasks as a worker computes at once, or fewer if a thread
        would otherwise be idle.
        """
        size = max(1, min(self._tasks, -(-count // self.count)))
        return [
            slice(start, min(start + size, count)) for start in range(0, count, size)
        ]

    @contextmanager
    def worker(self) -> Iterator[Worker]:
        """Lend a worker that no other thread uses meanwhile."""
        lent = self._free.get()
        try:
            yield lent
        finally:
            self._free.put(lent)

    @contextmanager
    def running(self) -> Iterator[concurrent.futures.Executor]:
        """Return the threads while torch and MKL have one thread in the caller.

        Otherwise torch would add its own threads.
        """
        previous = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield self._pool
        finally:
            torch.set_num_threads(previous)
