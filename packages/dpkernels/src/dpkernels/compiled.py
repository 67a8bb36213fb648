"""Decorators that compile the package's loops with numba.

Use `compiled` for a loop that Python calls, and `part` or `exact_part` for a loop that
other loops call. The array arguments of one call must not overlap.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import inspect
import platform
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from llvmlite import binding
from numba import njit, types
from numba.core.compiler import Compiler
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher


class _NoAlias(Compiler):
    """Compiler that promises LLVM that no two array arguments overlap.

    Without this promise, loops over several arrays are not vectorised (2 x slower).
    """

    def define_pipelines(self):
        self.state.flags.noalias = True
        return super().define_pipelines()


# C code calls nothing in this package.
_OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "pipeline_class": _NoAlias,
    "no_cfunc_wrapper": True,
}


def _inner(**options: Any) -> Any:
    """Make a decorator for loops that only other compiled loops call.

    numba compiles no wrapper for calls from Python. A constant argument such as `0` or
    `True` has the type integer or bool like any other argument; by default numba
    compiles a loop for the type of each constant, and for the initial value of a
    counter.

    A loop that is a separate function needs a unique name. If two loops read from
    numba's cache call functions of the same name, a process uses one function for both:
    numba adds a number to the name, but each process that compiles starts counting
    anew.

    Raises:
        TypeError: the loop was made by another function, and has the name of all loops
            that this function makes.
    """

    def decorated(loop: Callable[..., Any]) -> Any:
        if "<locals>" in loop.__qualname__ and not options.get("forceinline"):
            raise TypeError(
                f"{loop.__qualname__}: several loops may have this name: set its"
                " __qualname__ to its own"
            )
        dispatcher = njit(**_OPTIONS | {"no_cpython_wrapper": True} | options)(loop)
        usual = dispatcher.get_call_template
        dispatcher.get_call_template = lambda args, kws: usual(
            [types.unliteral(argument) for argument in args],
            {name: types.unliteral(argument) for name, argument in kws.items()},
        )
        return dispatcher

    return decorated


# Reordering and fused multiply-add are allowed. Assuming that no NaN occurs is not: the
# private sum counts NaN contributions, so they have to stay visible.
_REORDERED = {"contract", "reassoc", "nsz"}

# For a loop that another compiled loop calls. Without inlining there are two copies of
# such a loop, one by itself and one in its caller, and LLVM may reorder each
# differently. Which copy the caller uses depends on whether this process compiled the
# loops or read them from numba's cache, so bits would differ between the first run and
# the next. With inlining there is one copy.
part = _inner(fastmath=_REORDERED, forceinline=True)

# The same, computed in the order written, with each operation rounded. Options that are
# not set here would be the caller's.
exact_part = _inner(fastmath=False, forceinline=True)


# The same as a separate function: its bits are those of each copy of it, and its
# callers compile faster. It cannot create or return arrays, so that its code counts no
# references.
exact = _inner(fastmath=False, _nrt=False)

_COMPILED: list[Any] = []
_PATIENCE = 120.0
"""Time in seconds that a process waits for another one that compiles.

The slowest loop takes a tenth of it.
"""
_COMMON = {
    Path(__file__),
    *(Path(__file__).with_name(name) for name in ("calls.py", "vectors.py")),
}


def processor() -> str:
    """Return the processor that loops are compiled for, e.g. "x86_64 znver4".

    A processor with wider vectors adds in another order. A training has the same bits
    only on processors of one kind.
    """
    return f"{platform.machine()} {binding.get_host_cpu_name()}"


def compiled(loop: Callable[..., Any]) -> Any:
    """Compile a loop that Python calls, or read it from numba's cache on disk.

    Inlined parts may come from other files, which numba's cache does not know: it would
    use outdated parts after an edit. So the stamp of a cached loop covers the text of
    all those files.
    """
    dispatcher = njit(**_OPTIONS, fastmath=_REORDERED, cache=True)(loop)
    dispatcher._cache._cache_file._source_stamp = tuple(
        map(_digest, sorted(_COMMON | _files(loop, set())))
    )
    dispatcher.compile = functools.partial(_once, dispatcher)
    _COMPILED.append(dispatcher)
    return dispatcher


def together(wanted: Iterable[tuple[Any, tuple[Any, ...]]]) -> None:
    """Compile loops for the given types of arguments, or read them from the cache.

    Jobs that start at the same time need the same loops. Each job compiles loops that
    no other job is compiling, and reads the others when they are there.
    """
    calls = list(wanted)
    for wait in (False, True):
        for loop, argument_types in calls:
            loop.compile(argument_types, wait=wait)


def _once(loop: Any, types: Any, wait: bool = True) -> Any:
    """Call numba's `compile`, at most in one process at a time.

    If another process compiles the loop, wait for it and read its result. Two processes
    that write to one cache at once would also lose one result. Without `wait`, nothing
    is done in this case.
    """
    with global_compiler_lock, contextlib.ExitStack() as held:
        done = types in loop.overloads or _alone(
            Path(loop._cache._cache_file._index_path + ".lock"), wait, held
        )
        return type(loop).compile(loop, types) if done else None


def _alone(path: Path, wait: bool, held: contextlib.ExitStack) -> bool:
    """Take a lock that is held until `held` ends, and return whether to continue.

    A process that has waited long continues without the lock. So does a process whose
    cache is on a disk without locks.
    """
    deadline = time.monotonic() + (_PATIENCE if wait else 0)
    try:
        handle = held.enter_context(path.open("a"))
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return wait
                time.sleep(0.05)
    except OSError:
        return True


def load_all() -> None:
    """Read all defined loops that are in numba's cache.

    Nothing is compiled and nothing runs.
    """
    for loop in _COMPILED:
        for signature, *rest in loop._cache._cache_file._load_index():
            if (signature, *rest) == loop._cache._index_key(
                signature, loop.targetctx.codegen()
            ):
                loop.compile(signature)


@functools.cache
def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _files(loop: Callable[..., Any], known: set[Any]) -> set[Path]:
    """Return the file of a loop, and the files of all parts that it may inline."""
    files = {Path(str(inspect.getsourcefile(loop)))}
    known.add(loop)
    for value in list(loop.__globals__.values()):
        if isinstance(value, Dispatcher) and value.py_func not in known:
            files |= _files(value.py_func, known)
    return files
