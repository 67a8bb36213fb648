"""Decorators with which numba compiles the package's loops.

Use `compiled` for a loop that Python calls, and `part` or `exact_part` for one that
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
    """Promises LLVM that no two array arguments overlap; without it loops over several
    stay scalar (2 x slower).
    """

    def define_pipelines(self):
        self.state.flags.noalias = True
        return super().define_pipelines()


# Nothing here is called from C.
_OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "pipeline_class": _NoAlias,
    "no_cfunc_wrapper": True,
}


def _inner(**options: Any) -> Any:
    """Makes a decorator for loops that only other compiled loops call.

    Nothing is compiled by which Python would call them, and a constant argument, `0` or
    `True`, is an integer or a bool like any other: numba compiles a loop for the type
    of each constant, and for the number that a counter begins at.

    A loop that is a function of its own needs a name of its own. Where two loops that
    were read from numba's cache call functions of the same name, a process has one of
    them for both: numba adds a number to the name, but it counts anew in each process
    that compiles.

    Raises:
        TypeError: the loop was made by another function, and has the name of all that
            this one makes.
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


# Reordering and fused multiply-add are allowed; assuming that no NaN occurs is not (a
# NaN contribution is counted by the private sum, so it has to stay visible).
_REORDERED = {"contract", "reassoc", "nsz"}

# For a loop that another compiled one calls. Two copies of such a loop exist, its own
# and the one in its caller, and LLVM may reorder each in its own way. Which of them the
# caller finds depends on whether this process compiled them or read them from numba's
# cache, so bits differed between the first run and the next. Put into its caller there
# is one.
part = _inner(fastmath=_REORDERED, forceinline=True)

# The same, computed in the order written, each operation rounded. What is not set would
# be the caller's.
exact_part = _inner(fastmath=False, forceinline=True)


# The same as a function of its own: its bits are those of each copy of it, and its
# callers are compiled sooner. It can make and return no arrays, so that none of its
# code counts who holds them.
exact = _inner(fastmath=False, _nrt=False)

_COMPILED: list[Any] = []
_PATIENCE = 120.0
"""Seconds that a process waits for one that compiles: the dearest loop takes a tenth of
it.
"""
_COMMON = {
    Path(__file__),
    *(Path(__file__).with_name(name) for name in ("calls.py", "vectors.py")),
}


def processor() -> str:
    """Return the processor that loops are compiled for, e.g. "x86_64 znver4".

    A processor with wider vectors adds up in another order: a training has the same
    bits on those of one kind only.
    """
    return f"{platform.machine()} {binding.get_host_cpu_name()}"


def compiled(loop: Callable[..., Any]) -> Any:
    """Compile a loop that Python calls, or read it from numba's cache of compiled loops
    on disk.

    The parts put into it may be of other files, of which numba's cache knows nothing:
    it would go on with what they were before they were mended. So the stamp of a cached
    loop is of the text of all those files.
    """
    dispatcher = njit(**_OPTIONS, fastmath=_REORDERED, cache=True)(loop)
    dispatcher._cache._cache_file._source_stamp = tuple(
        map(_digest, sorted(_COMMON | _files(loop, set())))
    )
    dispatcher.compile = functools.partial(_once, dispatcher)
    _COMPILED.append(dispatcher)
    return dispatcher


def together(wanted: Iterable[tuple[Any, tuple[Any, ...]]]) -> None:
    """Compile loops for these types of arguments, or read them.

    Jobs that begin together want the same loops: each takes what no other is at, and
    reads the rest when it is there.
    """
    calls = list(wanted)
    for wait in (False, True):
        for loop, argument_types in calls:
            loop.compile(argument_types, wait=wait)


def _once(loop: Any, types: Any, wait: bool = True) -> Any:
    """As numba's `compile`, but while another process compiles the loop, wait for it
    and read what it made.

    Two that write to one cache at once would also lose what one of them made. Without
    `wait` nothing is done then.
    """
    with global_compiler_lock, contextlib.ExitStack() as held:
        done = types in loop.overloads or _alone(
            Path(loop._cache._cache_file._index_path + ".lock"), wait, held
        )
        return type(loop).compile(loop, types) if done else None


def _alone(path: Path, wait: bool, held: contextlib.ExitStack) -> bool:
    """Take a lock, which is held until `held` ends; whether to go on.

    A process that has waited long goes on without it, and so does one whose cache is on
    a disk without locks.
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
    """Read all loops that were defined from numba's cache, where it has them; nothing
    is compiled, and nothing runs.
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
    """The file of a loop, and those of all parts that its file can put into it."""
    files = {Path(str(inspect.getsourcefile(loop)))}
    known.add(loop)
    for value in list(loop.__globals__.values()):
        if isinstance(value, Dispatcher) and value.py_func not in known:
            files |= _files(value.py_func, known)
    return files
