"""What compiled loops call by its address has the bits that it has where Python calls
it.
"""

import numpy as np
import pytest
import torch

from dpfedbench.models.threads import one_thread
from dpkernels import calls, products
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
def run_functions(native, array, exponent, found):
    calls.elementwise(native, calls.EXP, array, found[0])
    calls.elementwise(native, calls.LOG, array, found[1])
    calls.power(native, array, exponent, found[2])
    calls.sum_of(native, array, found[3])


@pytest.fixture(params=[np.float32, np.float64])
def number(request):
    return np.dtype(request.param)


@pytest.fixture
def native(number):
    return calls.native([], number, products=16, largest=10_000)


def drawn(*shapes, number):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(number) for shape in shapes]


@pytest.mark.parametrize("size", [1, 5, 25, 333])
def test_functions_are_numpys(native, number, size):
    array = np.random.default_rng(size).random(size).astype(number) + number.type(0.1)
    found = np.empty((4, size), number)
    run_functions(native, array, np.array([3], number), found)
    assert (found[:3] == [np.exp(array), np.log(array), array**3]).all() and found[
        3, 0
    ] == array.sum()


def test_matrix_products_are_numpys(native, number):
    a, b, out = drawn((31, 7), (31, 9), (7, 9), number=number)
    run_matmul(native, a, b, out)
    assert (out == a.T @ b).all()


@compiled
def run_transpose(matrices, out):
    products.transpose(matrices, out)


@pytest.mark.parametrize("side", [3, 16, 48])
def test_transposes_are_numpys(number, side):
    (matrices,) = drawn((2, side, side), number=number)
    out = np.empty_like(matrices)
    run_transpose(matrices, out)
    assert (out == matrices.transpose(0, 2, 1)).all()


@pytest.mark.parametrize("mkl", [True, False])
@pytest.mark.parametrize("filters", [3, 16, 33])
@pytest.mark.parametrize("tiles", [4, 80, 245])
def test_products_are_torchs(native, number, tiles, filters, mkl):
    """All bits where torch brings MKL; else, as here where its addresses are taken out,
    up to rounding.
    """
    has_it = native.addresses[calls.BATCH] and native.addresses[calls.MULTIPLY]
    native = native._replace(spare=np.empty(10_000, number))
    if not mkl:
        native.addresses[[calls.BATCH, calls.MULTIPLY]] = 0
    x, gradient, w, taps = drawn(
        (16, tiles, filters),
        (16, tiles, filters),
        (16, filters, filters),
        (9, 50),
        number=number,
    )
    pairs = []
    for a, turned, b in ((x, False, w), (x, True, gradient)):
        left = torch.from_numpy(a).mT if turned else torch.from_numpy(a)
        wanted = torch.bmm(left, torch.from_numpy(b))
        out = np.empty(wanted.shape, number)
        run_products(native, a, turned, b, out, False)
        pairs.append((out, wanted.numpy().copy()))
        twice = out.copy()
        run_products(native, a, turned, b, twice, True)
        pairs.append((twice, torch.baddbmm(wanted, left, torch.from_numpy(b)).numpy()))
    (transform,) = drawn((16, 9), number=number)
    out, back = np.empty((16, 50), number), np.empty((9, 50), number)
    run_product(native, transform, False, taps, out)
    run_product(native, transform, True, out, back)
    t = torch.from_numpy(transform)
    pairs += [
        (out, (t @ torch.from_numpy(taps)).numpy()),
        (back, (t.T @ torch.from_numpy(out)).numpy()),
    ]
    for found, wanted in pairs:
        if mkl and has_it:
            assert (found == wanted).all()
        np.testing.assert_allclose(
            found, wanted, rtol=0, atol=1e3 * np.finfo(number).eps
        )


def shapes(tiles, filters):
    return [
        (False, False, tiles, filters, filters),
        (False, True, filters, filters, tiles),
        (True, False, 16, 256, 9),
    ]


@pytest.mark.parametrize("filters", [16, 48, 64])
@pytest.mark.parametrize("tiles", [20, 245, 500])
def test_products_by_blocks_have_torchs_bits(tiles, filters):
    number = np.dtype(np.float32)
    native = calls.native([], number, products=16, largest=10_000)
    native = native._replace(deepest=products.deepest(native, shapes(tiles, filters)))
    if not native.deepest:
        pytest.skip("no loops for this processor")
    x, gradient, w = drawn(
        (2, tiles, filters), (2, tiles, filters), (2, filters, filters), number=number
    )
    for a, turned, b in ((x, False, w), (x, True, gradient)):
        left, right = (
            torch.from_numpy(a).mT if turned else torch.from_numpy(a),
            torch.from_numpy(b),
        )
        wanted = torch.bmm(left, right)
        out = np.empty(wanted.shape, number)
        run_products(native, a, turned, b, out, False)
        assert (out == wanted.numpy()).all()
        run_products(native, a, turned, b, out, True)
        assert (out == torch.baddbmm(wanted, left, right).numpy()).all()


def test_loops_have_the_bits_of_one_thread_and_are_used_whatever_torch_may_take():
    """By two threads MKL cuts some sums elsewhere; passes are computed by one."""
    native = calls.native([], np.dtype(np.float32), products=16, largest=10_000)
    asked = [*shapes(245, 16), (True, True, 9, 256, 16)]
    with one_thread():
        alone = products.deepest(native, asked)
        torch.set_num_threads(2)
        assert products.deepest(native, asked) == alone and torch.get_num_threads() == 2


def test_loops_of_other_bits_are_not_used(monkeypatch):
    monkeypatch.setattr(
        products, "_DEEPEST", (100,)
    )  # MKL begins no new sum after 100 of 245 terms
    native = calls.native([], np.dtype(np.float32), products=16, largest=10_000)
    assert products.deepest(native, shapes(245, 16)) == 0


def test_loops_are_not_used_without_registers_for_them(monkeypatch, number):
    monkeypatch.setattr(products.binding, "get_host_cpu_features", dict)
    native = calls.native([], number, products=16, largest=10_000)
    assert products.deepest(native, shapes(20, 16)) == 0


def test_a_loop_is_not_called_with_other_types():
    from numba.core.errors import TypingError

    from dpkernels import winograd

    enter = calls.caller(0, calls.Call(winograd.tiles_of_input, "4,3"))

    @compiled
    def wrong(addresses, padded, out):
        enter(addresses, (out, padded))

    with pytest.raises(TypingError, match="tiles_of_input takes 4,3"):
        wrong(
            np.zeros(1, np.int64),
            np.zeros((1, 4, 4, 1), np.float32),
            np.zeros((16, 1, 1), np.float32),
        )
