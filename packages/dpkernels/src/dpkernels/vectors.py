"""Vectors of processor registers for numba's compiled loops.

With them, a loop can hold a block of numbers in registers, which is impossible in plain
numba. The vector type becomes LLVM's vector type. On a processor without AVX-512, LLVM
splits the vectors. Indices count an array's elements.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, models, register_model


class Vector(types.Type):
    """Vector of a fixed number of lanes, preferably a whole number of registers."""

    def __init__(self, lanes: int, number: types.Type = types.float32) -> None:
        self.lanes = lanes
        self.number = number
        super().__init__(name=f"{number}x{lanes}")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, dmm, vector) -> None:
        super().__init__(
            dmm,
            vector,
            ir.VectorType(dmm.lookup(vector.number).get_value_type(), vector.lanes),
        )


def _spread(builder, scalar, vector):
    """LLVM: a vector with the scalar in each lane."""
    single = builder.insert_element(
        ir.Constant(vector, ir.Undefined), scalar, ir.IntType(32)(0)
    )
    lanes = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), None)
    return builder.shuffle_vector(single, ir.Constant(vector, ir.Undefined), lanes)


def _place(context, builder, array_type, array, start, vector):
    """LLVM: the address of a vector in an array."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [start]), vector.as_pointer())


@intrinsic(prefer_literal=True)
def load(_, array, start, lanes):
    """Return array[start : start + lanes] as a vector."""
    result = Vector(lanes.literal_value, array.dtype)

    def code(context, builder, signature, arguments):
        vector = context.get_value_type(result)
        loaded = builder.load(
            _place(context, builder, array, arguments[0], arguments[1], vector)
        )
        loaded.align = 4
        return loaded

    return result(array, types.intp, lanes), code


@intrinsic
def store(_, array, start, value):
    """Compute array[start : start + lanes] = value."""

    def code(context, builder, signature, arguments):
        vector = context.get_value_type(value)
        stored = builder.store(
            arguments[2],
            _place(context, builder, array, arguments[0], arguments[1], vector),
        )
        stored.align = 4
        return context.get_dummy_value()

    return types.void(array, types.intp, value), code


@intrinsic
def prefetch(_, array, start):
    """Prefetch the cache line of array[start], which need not be inside the array."""

    def code(context, builder, signature, arguments):
        data = context.make_array(array)(context, builder, arguments[0]).data
        address = builder.bitcast(
            builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer()
        )
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
        prefetch = cgutils.get_or_insert_function(
            builder.module, kind, "llvm.prefetch.p0"
        )
        builder.call(prefetch, [address, number(0), number(2), number(1)])
        return context.get_dummy_value()

    return types.void(array, types.intp), code


def _added(builder, total, factor, value):
    """LLVM: total + factor * value, with a scalar factor."""
    product = builder.fmul(
        _spread(builder, factor, value.type), value, flags=("contract",)
    )
    return builder.fadd(total, product, flags=("contract",))


@intrinsic
def add_product(_, total, factor, value):
    """Return total + factor * value, with a scalar factor."""
    return value(
        value, value.number, value
    ), lambda _, builder, signature, arguments: _added(builder, *arguments)


@intrinsic(prefer_literal=True)
def several(_, value, count):
    """Return a tuple of `count` copies of a vector.

    They stay in registers if there are enough registers.
    """
    result = types.UniTuple(value, count.literal_value)
    return result(
        value, count
    ), lambda context, builder, signature, arguments: context.make_tuple(
        builder, result, arguments[:1] * result.count
    )


@intrinsic
def add_products_at(_, totals, array, start, places, value):
    """Return a tuple of totals[k] + array[start + places[k]] * value.

    `places` is a tuple of as many integers as there are totals.
    """

    def code(context, builder, signature, arguments):
        data = context.make_array(array)(context, builder, arguments[1]).data
        first = context.cast(builder, arguments[2], start, types.int64)
        sums = []
        for k, kind in enumerate(places):
            offset = context.cast(
                builder, builder.extract_value(arguments[3], k), kind, types.int64
            )
            factor = builder.load(builder.gep(data, [builder.add(first, offset)]))
            sums.append(
                _added(
                    builder,
                    builder.extract_value(arguments[0], k),
                    factor,
                    arguments[4],
                )
            )
        return context.make_tuple(builder, totals, sums)

    return totals(totals, array, start, places, value), code


def _lines(context, builder, signature, arguments):
    """LLVM: addresses array[start + k * step], for each vector of a tuple.

    The first three arguments are array, start and step.
    """
    array, _, _, values = signature.args
    start, step = (
        context.cast(builder, arguments[i], signature.args[i], types.int64)
        for i in (1, 2)
    )
    for _ in range(values.count):
        yield _place(
            context,
            builder,
            array,
            arguments[0],
            start,
            context.get_value_type(values.dtype),
        )
        start = builder.add(start, step)


@intrinsic
def store_several(_, array, start, step, values):
    """Compute array[start + k * step : ...] = values[k], for each vector of a tuple."""

    def code(context, builder, signature, arguments):
        for k, address in enumerate(_lines(context, builder, signature, arguments)):
            builder.store(builder.extract_value(arguments[3], k), address).align = 4
        return context.get_dummy_value()

    return types.void(array, start, step, values), code


@intrinsic
def plus_several(_, array, start, step, values):
    """Return a tuple of array[start + k * step : ...] + values[k], for each vector."""

    def code(context, builder, signature, arguments):
        sums = []
        for k, address in enumerate(_lines(context, builder, signature, arguments)):
            stored = builder.load(address)
            stored.align = 4
            sums.append(builder.fadd(stored, builder.extract_value(arguments[3], k)))
        return context.make_tuple(builder, signature.return_type, sums)

    return values(array, start, step, values), code


@intrinsic
def add_outer(_, totals, array, start, step, value):
    """Return a tuple of totals[k] + array[start + k * step] * value."""

    def code(context, builder, signature, arguments):
        data = context.make_array(array)(context, builder, arguments[1]).data
        offset, step_ = (
            context.cast(builder, arguments[i], signature.args[i], types.int64)
            for i in (2, 3)
        )
        sums = []
        for k in range(totals.count):
            factor = builder.load(builder.gep(data, [offset]))
            sums.append(
                _added(
                    builder,
                    builder.extract_value(arguments[0], k),
                    factor,
                    arguments[4],
                )
            )
            offset = builder.add(offset, step_)
        return context.make_tuple(builder, totals, sums)

    return totals(totals, array, start, step, value), code


@intrinsic(prefer_literal=True)
def transpose_block(_, array, start, width, out, to, lanes):
    """Transpose a block of `lanes` rows and columns.

    Rows are `width` apart in both arrays.
    """
    vector_type = Vector(lanes.literal_value, array.dtype)

    def code(context, builder, signature, arguments):
        vector = context.get_value_type(vector_type)
        count = vector_type.lanes
        array_, offset, width_, out_, to_, _ = arguments
        rows = []
        for _ in range(count):
            rows.append(
                builder.load(_place(context, builder, array, array_, offset, vector))
            )
            rows[-1].align = 4
            offset = builder.add(offset, width_)
        numbers = ir.VectorType(ir.IntType(32), count)
        step = count // 2
        # Rows i and i + step exchange the lanes that belong to the other row.
        while step:
            upper = [k if not k & step else count + k - step for k in range(count)]
            lower = [k + step if not k & step else count + k for k in range(count)]
            for i in (i for i in range(count) if not i & step):
                pair = rows[i], rows[i + step]
                for row, mask in ((i, upper), (i + step, lower)):
                    rows[row] = builder.shuffle_vector(
                        *pair, ir.Constant(numbers, mask)
                    )
            step //= 2
        for row in rows:
            builder.store(
                row, _place(context, builder, out, out_, to_, vector)
            ).align = 4
            to_ = builder.add(to_, width_)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, out, types.intp, lanes), code


@intrinsic
def add(_, a, b):
    """Return a + b."""
    return a(a, a), lambda context, builder, signature, arguments: builder.fadd(
        *arguments
    )


@intrinsic
def sum_of_lanes(_, a):
    """Return the sum of all lanes."""

    def code(context, builder, signature, arguments):
        vector = context.get_value_type(a)
        scalar = ir.FloatType()
        name = f"llvm.vector.reduce.fadd.v{a.lanes}f32"
        reduce = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(scalar, [scalar, vector]), name
        )
        return builder.call(reduce, [scalar(-0.0), arguments[0]], fastmath=("reassoc",))

    return types.float32(a), code


@intrinsic
def add_products(_, total, a, b):
    """Return total + a * b."""

    def code(context, builder, signature, arguments):
        product = builder.fmul(*arguments[1:], flags=("contract",))
        return builder.fadd(arguments[0], product, flags=("contract",))

    return a(a, a, a), code


@intrinsic
def where_greater(_, a, b, x, y):
    """Return, lane by lane, x where a > b, else y."""

    def code(context, builder, signature, arguments):
        return builder.select(builder.fcmp_ordered(">", *arguments[:2]), *arguments[2:])

    return a(a, a, a, a), code


@intrinsic
def where_equal(_, a, scalar, x):
    """Return, lane by lane, x where a equals the scalar, else 0."""

    def code(context, builder, signature, arguments):
        vector = context.get_value_type(a)
        equal = builder.fcmp_ordered(
            "==", arguments[0], _spread(builder, arguments[1], vector)
        )
        return builder.select(equal, arguments[2], ir.Constant(vector, None))

    return a(a, types.float32, a), code


@intrinsic
def where_code(_, codes, start, code, value):
    """Return value in lanes where the byte codes[start + lane] is `code`, else 0."""

    def code_of(context, builder, signature, arguments):
        vector = context.get_value_type(value)
        byte = ir.IntType(8)
        loaded = builder.load(
            _place(
                context,
                builder,
                codes,
                arguments[0],
                arguments[1],
                ir.VectorType(byte, value.lanes),
            )
        )
        loaded.align = 1
        equal = builder.icmp_unsigned(
            "==", loaded, _spread(builder, arguments[2], loaded.type)
        )
        return builder.select(equal, arguments[3], ir.Constant(vector, None))

    return value(codes, types.intp, types.uint8, value), code_of


@intrinsic(prefer_literal=True)
def zeros(_, like, lanes):
    """Return a vector of zeros, of an array's type."""
    result = Vector(lanes.literal_value, like.dtype)
    return result(like, lanes), lambda context, builder, *_: ir.Constant(
        context.get_value_type(result), None
    )


@intrinsic(prefer_literal=True)
def constant(_, scalar, lanes):
    """Return a vector with the scalar in each lane."""
    result = Vector(lanes.literal_value)

    def code(context, builder, signature, arguments):
        return _spread(builder, arguments[0], context.get_value_type(result))

    return result(types.float32, lanes), code
