"""CPU threads that each compute one client or task, with their own working memory."""

import concurrent.futures
import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch

Worker = TypeVar("Worker")


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch and MKL to one thread within the calling thread."""
    previous = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(previous)


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


class Threads(Generic[Worker]):
    """A pool of threads with one worker per thread.

    A worker holds arrays and passes that no two threads may use at once. The assignment
    of workers to tasks is arbitrary, so a result must not depend on it.

    Args:
        count: number of threads, at least one.
        make: makes a worker.
    """

    def __init__(self, count: int, make: Callable[[], Worker]) -> None:
        self.count = max(1, count)
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
            self._free.put(make())

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
        """Return the threads while torch is limited to one thread in the caller.

        Otherwise torch would add its own threads.
        """
        with one_thread():
            yield self._pool
