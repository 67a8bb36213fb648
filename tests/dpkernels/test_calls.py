"""Functions that compiled loops call by their address have the bits of numpy and torch."""

import numpy as np
import pytest
import torch
from numba.core.errors import TypingError

from dpfedbench.models.threads import one_thread
from dpkernels import calls, products, winograd
from dpkernels.compiled import compiled


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


@pytest.fixture(params=[np.float32, np.float64])
def number(request):
    return np.dtype(request.param)


def make_native(number=np.float32):
    return calls.native([], np.dtype(number), products=16, largest=10_000)


@pytest.fixture
def native(number):
    return make_native(number)


def draw(*shapes, number=np.float32):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(number) for shape in shapes]


@pytest.mark.parametrize("size", [1, 5, 333])
def test_elementwise_functions_have_the_bits_of_numpy(native, number, size):
    array = np.random.default_rng(size).random(size).astype(number) + number.type(0.1)
    outputs = np.empty((4, size), number)
    run_functions(native, array, np.array([3], number), outputs)
    assert (outputs[:3] == [np.exp(array), np.log(array), array**3]).all()
    assert outputs[3, 0] == array.sum()


def test_matmul_has_the_bits_of_numpy(native, number):
    a, b, out = draw((31, 7), (31, 9), (7, 9), number=number)
    run_matmul(native, a, b, out)
    assert (out == a.T @ b).all()


def batched_products(native, x, gradient, w):
    """Yield results and torch's values of x w and x^T gradient, set and added."""
    for a, turned, b in ((x, False, w), (x, True, gradient)):
        factor = torch.from_numpy(a)
        right = torch.from_numpy(b)
        if turned:
            factor = factor.mT
        expected = torch.bmm(factor, right)
        out = np.empty(expected.shape, a.dtype)
        run_products(native, a, turned, b, out, False)
        yield out.copy(), expected.numpy()
        run_products(native, a, turned, b, out, True)
        yield out, torch.baddbmm(expected, factor, right).numpy()


@pytest.mark.parametrize("mkl", [True, False])
@pytest.mark.parametrize("filters", [3, 33])
@pytest.mark.parametrize("tiles", [4, 245])
def test_products_equal_torch(native, number, tiles, filters, mkl):
    """All bits are equal where torch has MKL. Without its addresses they are equal up
    to rounding.
    """
    has_mkl = native.addresses[calls.BATCH] and native.addresses[calls.MULTIPLY]
    native = native._replace(spare=np.empty(10_000, number))
    if not mkl:
        native.addresses[[calls.BATCH, calls.MULTIPLY]] = 0
    sizes = (16, tiles, filters), (16, tiles, filters), (16, filters, filters)
    pairs = list(batched_products(native, *draw(*sizes, number=number)))
    transform, taps = draw((16, 9), (9, 50), number=number)
    out = np.empty((16, 50), number)
    back = np.empty((9, 50), number)
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
    native = native._replace(
        deepest=products.deepest(native, shapes_of(tiles, filters))
    )
    if not native.deepest:
        pytest.skip("no loops for this processor")
    sizes = (2, tiles, filters), (2, tiles, filters), (2, filters, filters)
    for values, expected in batched_products(native, *draw(*sizes)):
        assert (values == expected).all()


def test_products_by_blocks_are_chosen_by_the_bits_of_one_thread():
    """With two threads MKL cuts some sums elsewhere. The passes use one."""
    shapes = [*shapes_of(245, 16), (True, True, 9, 256, 16)]
    native = make_native()
    with one_thread():
        alone = products.deepest(native, shapes)
        torch.set_num_threads(2)
        assert products.deepest(native, shapes) == alone
        assert torch.get_num_threads() == 2


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
