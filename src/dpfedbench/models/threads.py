"""CPU threads, each of which computes one client or one task, with its own working
memory.
"""

import concurrent.futures
import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch

Worker = TypeVar("Worker")


@contextmanager
def one_thread() -> Iterator[None]:
    """Hold torch and MKL to one thread in the calling thread."""
    previous = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(previous)


class _Caller(concurrent.futures.Executor):
    """One thread that is the caller's own: nothing is handed over and waited for."""

    def submit(
        self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> concurrent.futures.Future:
        """The result, already there."""
        done: concurrent.futures.Future = concurrent.futures.Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


class Threads(Generic[Worker]):
    """So many threads, and as many workers: arrays and passes that no two threads may
    use at once.

    Which worker computes what is left to chance, so a result must not depend on it.

    Args:
        count: threads; at least one is taken.
        make: makes a worker.
    """

    def __init__(self, count: int, make: Callable[[], Worker]) -> None:
        self.count = max(1, count)
        # torch, OpenMP and MKL each keep by thread how many they take: what `running`
        # says is said to the caller's.
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
        """A worker that no other thread has meanwhile."""
        lent = self._free.get()
        try:
            yield lent
        finally:
            self._free.put(lent)

    @contextmanager
    def running(self) -> Iterator[concurrent.futures.Executor]:
        """The threads; torch itself, which would add its own to the caller's, is held
        to one meanwhile.
        """
        with one_thread():
            yield self._pool
