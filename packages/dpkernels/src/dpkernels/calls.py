"""Native code that compiled loops call by address.

It is code of other compiled loops, of numpy's own loops, and of torch's products. With
it, the order of a network's passes is itself a compiled loop. Python calls that loop
once for many clients, and it holds no lock meanwhile. A loop that is called by its
address stays as it was compiled, so its bits are the same as when Python calls it.
(`compiled.part` would make another copy, whose sums LLVM may order differently.) The
same holds for numpy's functions and torch's products: the exponential of another
library has other last bits.

A compiled loop receives the addresses as an argument, int64 [n], because they differ
between processes while numba's cache does not.
"""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any, NamedTuple

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.core.typing.typeof import typeof
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from dpkernels.compiled import exact, together


class Call(NamedTuple):
    """A compiled loop and the types of its arguments."""

    loop: Any
    signature: str
    """Types of the arguments, comma-separated.

    "4" is a C-contiguous array of 4 dimensions of the network's floats, "c2" an array
    of bytes, "i" an integer, "f" a double.
    """

    def types(self, number: np.dtype) -> tuple[Any, ...]:
        """Return numba's types of the arguments, for float32 or float64."""
        scalars = {"i": types.int64, "f": types.float64}
        return tuple(
            scalars.get(name)
            or typeof(
                np.empty(
                    (1,) * int(name[-1]), np.uint8 if name.startswith("c") else number
                )
            )
            for name in self.signature.split(",")
        )

    def address(self, number: np.dtype) -> int:
        """Return the address of the loop's code.

        The loop is compiled, or read from numba's cache, if necessary.
        """
        argument_types = self.types(number)
        self.loop.compile(argument_types)
        compiled_loop = self.loop.overloads[argument_types]
        return int(
            compiled_loop.library.get_pointer_to_function(
                compiled_loop.fndesc.llvm_func_name
            )
        )


def caller(place: int, call: Call) -> Any:
    """Return the function with which a compiled loop calls another by its address.

    It is called as caller(addresses, (argument, ...)).

    Args:
        place: index of the loop's address in the addresses.
        call: the loop. Compiling the caller fails for arguments of other types.
    """

    @intrinsic
    def enter(typing, addresses, arguments):
        actual = tuple(types.unliteral(argument) for argument in arguments)
        if actual not in (
            call.types(np.dtype(np.float32)),
            call.types(np.dtype(np.float64)),
        ):
            raise TypingError(
                f"{call.loop.__name__} takes {call.signature}, not {actual}"
            )

        def code(context, builder, signature, values):
            convention = context.call_conv
            parts = [
                context.cast(
                    builder,
                    builder.extract_value(values[1], i),
                    arguments[i],
                    actual[i],
                )
                for i in range(len(actual))
            ]
            kind = convention.get_function_type(types.none, actual)
            address = _item(
                context, builder, signature.args[0], values[0], 2 * FIRST_LOOP + place
            )
            result, raised = (
                cgutils.alloca_once(builder, kind.args[i].pointee) for i in range(2)
            )
            flat = convention._get_arg_packer(actual).as_arguments(builder, parts)
            builder.call(
                builder.inttoptr(address, kind.as_pointer()), [result, raised, *flat]
            )
            return context.get_dummy_value()

        return types.void(addresses, arguments), code

    return enter


def _item(context, builder, array_type, array, place):
    """LLVM: array[place] of an array of integers."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.load(builder.gep(data, [ir.Constant(ir.IntType(64), place)]))


@intrinsic
def enter_c(_, address, arguments):
    """Call a C function that returns nothing.

    It is called as enter_c(address, (integer or pointer, ...)), with pointers as
    integers.
    """
    plain_types = tuple(types.unliteral(argument) for argument in arguments)

    def code(context, builder, signature, values):
        parts = [
            context.cast(
                builder,
                builder.extract_value(values[1], i),
                arguments[i],
                plain_types[i],
            )
            for i in range(len(plain_types))
        ]
        kind = ir.FunctionType(ir.VoidType(), [part.type for part in parts])
        builder.call(builder.inttoptr(values[0], kind.as_pointer()), parts)
        return context.get_dummy_value()

    return types.void(address, arguments), code


@intrinsic
def address_of(_, array):
    """Return the address of an array's first element."""

    def code(context, builder, signature, values):
        data = context.make_array(signature.args[0])(context, builder, values[0]).data
        return builder.ptrtoint(data, ir.IntType(64))

    return types.int64(array), code


class Memory(NamedTuple):
    """Flat memory, and the layout of the arrays in it."""

    numbers: np.ndarray
    layout: np.ndarray
    """int64 [parts, 5]: the start and four sizes of each array."""


@intrinsic(prefer_literal=True)
def array_at(_, memory, part, dimensions):
    """Return the C-contiguous array `part` of a `Memory`.

    The array is valid as long as the memory, which its owner has to keep.
    """
    kind = types.Array(memory[0].dtype, dimensions.literal_value, "C")

    def code(context, builder, signature, values):
        base, rows = (
            context.make_array(array)(context, builder, value).data
            for array, value in zip(
                memory, cgutils.unpack_tuple(builder, values[0]), strict=True
            )
        )
        number = ir.IntType(64)
        first = builder.mul(
            context.cast(builder, values[1], signature.args[1], types.int64), number(5)
        )
        start, *shape = (
            builder.load(builder.gep(rows, [builder.add(first, number(i))]))
            for i in range(kind.ndim + 1)
        )
        size = number(context.get_abi_sizeof(context.get_data_type(kind.dtype)))
        strides = []
        step = size
        for length in reversed(shape):
            strides.insert(0, step)
            step = builder.mul(step, length)
        view = context.make_array(kind)(context, builder)
        populate_array(
            view, builder.gep(base, [start]), shape, strides, size, meminfo=None
        )
        return view._getvalue()

    return kind(memory, part, dimensions), code


@exact
def copy(numbers, to):
    """Copy one-dimensional arrays: to[:] = numbers."""
    for i in range(len(to)):
        to[i] = numbers[i]


# numpy's own loops

_UFUNCS = (np.matmul, np.add, np.exp, np.log, np.power)
MATMUL, ADD, EXP, LOG, POWER = range(len(_UFUNCS))
BATCH = len(_UFUNCS)
"""Index of the address of MKL's batched products, which is 0 if torch has no MKL."""
MULTIPLY = BATCH + 1
"""Index of the address of MKL's single product."""
FIRST_LOOP = BATCH + 2


class _Ufunc(ctypes.Structure):
    """Beginning of numpy's PyUFuncObject, which is part of its C interface."""

    _fields_ = [
        ("head", ctypes.c_byte * object.__basicsize__),
        ("inputs", ctypes.c_int),
        ("outputs", ctypes.c_int),
        ("arguments", ctypes.c_int),
        ("identity", ctypes.c_int),
        ("functions", ctypes.POINTER(ctypes.c_void_p)),
        ("data", ctypes.POINTER(ctypes.c_void_p)),
    ]


def _numpy_loop(function: np.ufunc, number: np.dtype) -> tuple[int, int]:
    """Return the address of numpy's loop for one type, and the data that it needs."""
    signature = number.char * function.nin + "->" + number.char
    loop_index = function.types.index(
        signature
    )  # numpy uses the first loop of this type
    ufunc = _Ufunc.from_address(id(function))
    return int(ufunc.functions[loop_index] or 0), int(ufunc.data[loop_index] or 0)


@functools.cache
def _mkl(name: str) -> int:
    """Return the address of a product in torch's MKL, or 0 if torch has no MKL."""
    try:
        library = ctypes.CDLL(
            os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so")
        )
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
    except (OSError, AttributeError):
        return 0


def addresses(calls: list[Call], number: np.dtype) -> np.ndarray:
    """Return the addresses of numpy's loops, torch's products and these loops.

    They are those for the given type of numbers.
    """
    letter = {"f": "s", "d": "d"}[number.char]
    products = [_mkl(f"cblas_{letter}gemm_batch"), _mkl(f"{letter}gemm_")]
    if not all(products):
        products = [0, 0]
    plain = [_numpy_loop(function, number) for function in _UFUNCS] + [
        (product, 0) for product in products
    ]
    loops_and_data = [first for first, _ in plain] + [second for _, second in plain]
    together((call.loop, call.types(number)) for call in calls)
    return np.array(loops_and_data + [call.address(number) for call in calls], np.int64)


class Native(NamedTuple):
    """Arguments of numpy's loops and torch's products: buffers of one thread."""

    addresses: np.ndarray
    words: np.ndarray
    """int64: pointers, sizes and strides."""
    ints: np.ndarray
    """int32 [10]: sizes of products."""
    factors: np.ndarray
    """The constants 1 and 0."""
    spare: np.ndarray
    """Buffer for one product of a batch, if torch has no MKL."""
    deepest: int
    """See `products.deepest`."""


def native(
    calls: list[Call], number: np.dtype, *, products: int, largest: int
) -> Native:
    """Return the buffers for batches of products.

    Args:
        calls: loops that are called by address.
        number: type of the numbers.
        products: number of products in a batch.
        largest: number of values of the largest product.
    """
    table = addresses(calls, number)
    return Native(
        addresses=table,
        words=np.zeros(16 + 3 * products, np.int64),
        ints=np.zeros(10, np.int32),
        factors=np.array([1, 0], number),
        spare=np.empty(0 if table[BATCH] else largest, number),
        deepest=0,
    )


@exact
def _enter_numpy(native, function, sizes):
    """Call a numpy loop with the arguments in `words`.

    These are two or three pointers in three places, then sizes and strides.
    """
    start = address_of(native.words)
    loop_data = native.addresses[FIRST_LOOP + function]
    enter_c(
        native.addresses[function],
        (start, start + 24, start + 24 + 8 * sizes, loop_data),
    )


@exact
def matmul(native, a, b, out):
    """Compute out = a @ b of two matrices, as numpy does."""
    words = native.words
    words[0] = address_of(a)
    words[1] = address_of(b)
    words[2] = address_of(out)
    words[3] = 1
    words[4] = a.shape[0]
    words[5] = a.shape[1]
    words[6] = b.shape[1]
    words[7] = 0
    words[8] = 0
    words[9] = 0
    words[10] = a.strides[0]
    words[11] = a.strides[1]
    words[12] = b.strides[0]
    words[13] = b.strides[1]
    words[14] = out.strides[0]
    words[15] = out.strides[1]
    _enter_numpy(native, MATMUL, 4)


@exact
def elementwise(native, function, array, out):
    """Compute out = function(array) of contiguous arrays, as numpy does."""
    words = native.words
    words[0] = address_of(array)
    words[1] = address_of(out)
    words[3] = array.size
    words[4] = array.itemsize
    words[5] = array.itemsize
    _enter_numpy(native, function, 1)


@exact
def power(native, array, exponent, out):
    """Compute out = array ** exponent of contiguous arrays, as numpy does.

    `exponent` has one number.
    """
    words = native.words
    words[0] = address_of(array)
    words[1] = address_of(exponent)
    words[2] = address_of(out)
    words[3] = array.size
    words[4] = array.itemsize
    words[5] = 0
    words[6] = array.itemsize
    _enter_numpy(native, POWER, 1)


@exact
def sum_of(native, array, out):
    """Compute out[0] = sum of a contiguous array, as numpy does."""
    words = native.words
    out[0] = 0
    words[0] = address_of(out)
    words[1] = address_of(array)
    words[2] = address_of(out)
    words[3] = array.size
    words[4] = 0
    words[5] = array.itemsize
    words[6] = 0
    _enter_numpy(native, ADD, 1)
