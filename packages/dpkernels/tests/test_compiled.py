"""Compiled loops: functions called by their address have the bits of numpy and torch, and
loops from numba's cache on disk are those of the present source.
"""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from numba.core.errors import TypingError

from dpkernels import calls, products, winograd
from dpkernels.compiled import compiled, exact


@compiled
def run_products(native, a, turned, b, out, adds):
    products.products(native, a, turned, b, out, adds)


@compiled
def run_product(native, a, turned, b, out):
    products.product(native, a, turned, b, out)


@compiled
def run_matmul(native, a, b, out):
    calls.matmul(native, a.T, b, out)


@compiled
def run_functions(native, array, exponent, outputs):
    calls.elementwise(native, calls.EXP, array, outputs[0])
    calls.elementwise(native, calls.LOG, array, outputs[1])
    calls.power(native, array, exponent, outputs[2])
    calls.sum_of(native, array, outputs[3])


def make_native(number=np.float32):
    return calls.native([], np.dtype(number), products=16, largest=10_000)


@pytest.fixture(params=[np.float32, np.float64])
def native(request):
    return make_native(request.param)


def draw(native, *shapes):
    """Return arrays of the numbers that `native` is for."""
    rng = np.random.default_rng(0)
    number = native.factors.dtype
    return [rng.standard_normal(shape).astype(number) for shape in shapes]


@pytest.mark.parametrize("size", [1, 5, 333])
def test_elementwise_functions_have_the_bits_of_numpy(native, size):
    array, outputs = draw(native, size, (4, size))
    array = abs(array)
    run_functions(native, array, np.array([3], array.dtype), outputs)
    assert (outputs[:3] == [np.exp(array), np.log(array), array**3]).all()
    assert outputs[3, 0] == array.sum()


def test_matmul_has_the_bits_of_numpy(native):
    a, b, out = draw(native, (31, 7), (31, 9), (7, 9))
    run_matmul(native, a, b, out)
    assert (out == a.T @ b).all()


def batched_products(native, x, gradient, w):
    """Yield results and torch's values of x w and x^T gradient, set and added."""
    for a, turned, b in ((x, False, w), (x, True, gradient)):
        factor = torch.from_numpy(a.swapaxes(1, 2) if turned else a)
        right = torch.from_numpy(b)
        expected = torch.bmm(factor, right)
        out = np.empty(expected.shape, a.dtype)
        run_products(native, a, turned, b, out, False)
        yield out.copy(), expected.numpy()
        run_products(native, a, turned, b, out, True)
        yield out, torch.baddbmm(expected, factor, right).numpy()


@pytest.mark.parametrize("mkl", [True, False])
@pytest.mark.parametrize("filters", [3, 33])
@pytest.mark.parametrize("tiles", [4, 245])
def test_products_equal_torch(native, tiles, filters, mkl):
    """All bits are equal where torch has MKL. Without its addresses they are equal up
    to rounding.
    """
    has_mkl = native.addresses[calls.BATCH] and native.addresses[calls.MULTIPLY]
    number = native.factors.dtype
    native = native._replace(spare=np.empty(10_000, number))
    if not mkl:
        native.addresses[[calls.BATCH, calls.MULTIPLY]] = 0
    sizes = (16, tiles, filters), (16, tiles, filters), (16, filters, filters)
    pairs = list(batched_products(native, *draw(native, *sizes)))
    transform, taps, out, back = draw(native, (16, 9), (9, 50), (16, 50), (9, 50))
    run_product(native, transform, False, taps, out)
    run_product(native, transform, True, out, back)
    matrix = torch.from_numpy(transform)
    pairs.append((out, (matrix @ torch.from_numpy(taps)).numpy()))
    pairs.append((back, (matrix.T @ torch.from_numpy(out)).numpy()))
    for values, expected in pairs:
        if mkl and has_mkl:
            assert (values == expected).all()
        tolerance = 1e3 * np.finfo(number).eps
        np.testing.assert_allclose(values, expected, rtol=0, atol=tolerance)


def shapes_of(tiles, filters):
    return [
        (False, False, tiles, filters, filters),
        (False, True, filters, filters, tiles),
        (True, False, 16, 256, 9),
    ]


@pytest.mark.parametrize("filters", [16, 64])
@pytest.mark.parametrize("tiles", [20, 245, 500])
def test_products_by_blocks_have_the_bits_of_torch(tiles, filters):
    native = make_native()
    deepest = products.deepest(native, shapes_of(tiles, filters))
    if not deepest:
        pytest.skip("no loops for this processor")
    native = native._replace(deepest=deepest)
    sizes = (2, tiles, filters), (2, tiles, filters), (2, filters, filters)
    for values, expected in batched_products(native, *draw(native, *sizes)):
        assert (values == expected).all()


def test_products_by_blocks_are_chosen_by_the_bits_of_one_thread():
    """With two threads MKL cuts some sums elsewhere. The passes use one."""
    shapes = [*shapes_of(245, 16), (True, True, 9, 256, 16)]
    native = make_native()
    previous = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = products.deepest(native, shapes)
        torch.set_num_threads(2)
        assert products.deepest(native, shapes) == alone
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(previous)


def test_products_by_blocks_of_other_bits_are_not_used(monkeypatch):
    """MKL starts no new sum after 100 of 245 terms."""
    monkeypatch.setattr(products, "_DEEPEST", (100,))
    assert products.deepest(make_native(), shapes_of(245, 16)) == 0


def test_caller_refuses_arrays_of_other_types():
    enter = calls.caller(0, calls.Call(winograd.tiles_of_input, "4,3"))

    @compiled
    def exchanged_arguments(addresses, padded, out):
        enter(addresses, (out, padded))

    padded = np.zeros((1, 4, 4, 1))
    out = np.zeros((16, 1, 1))
    arrays = padded.astype(np.float32), out.astype(np.float32)
    with pytest.raises(TypingError, match="tiles_of_input takes 4,3"):
        exchanged_arguments(np.zeros(1, np.int64), *arrays)


PART = """
from dpkernels.compiled import part

@part
def add(x):
    return x + {}
"""
CALLER = """
from dpkernels.compiled import compiled
from parts import add

@compiled
def loop(x):
    return add(x)

print(loop(1.0), sum(loop.stats.cache_hits.values()))
"""


def run(folder):
    """Run caller.py with a cache of its own; return the words that it prints."""
    variables = {
        "NUMBA_CACHE_DIR": str(folder / "cache"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        [sys.executable, "caller.py"],
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_compiled_loop_follows_a_part_in_another_file(tmp_path):
    """A copy or checkout changes the file's time only, and compiles nothing."""
    (tmp_path / "caller.py").write_text(CALLER)
    (tmp_path / "parts.py").write_text(PART.format(1))
    assert run(tmp_path) == ["2.0", "0"]
    assert run(tmp_path) == ["2.0", "1"]
    os.utime(tmp_path / "parts.py", (1, 1))
    assert run(tmp_path) == ["2.0", "1"]
    (tmp_path / "parts.py").write_text(PART.format(20))
    assert run(tmp_path) == ["21.0", "0"]


def test_exact_refuses_a_loop_inside_a_function_without_a_name_of_its_own():
    """numba's cache would mix up two loops of one name."""

    def double(x):
        return 2 * x

    with pytest.raises(TypeError, match="double: several loops may have this name"):
        exact(double)
    double.__qualname__ = "double_of_this_test"
    assert exact(double).py_func is double
