"""Record gradients by hand-written passes against torch's automatic differentiation."""

import ast
import concurrent.futures
import inspect
import textwrap

import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher
from reference_networks import differentiate, draw_parameters, leaf_of, logits

from dpkernels import (
    CnnShape,
    calls,
    clipped_sum,
    conv4_first,
    conv4_order,
    find_passes,
    fused_cnn,
    winograd,
)
from dpkernels.fused_cnn import FusedCnn

NETWORK = CnnShape((28, 28, 1), 10)
DIMENSION = 26_010


def draw_weights(seed, network=NETWORK):
    return draw_parameters(network, seed).astype(np.float32)


def make_records(count, seed=0, filled=0.3, network=NETWORK):
    """Return images of which a share of the pixels is not 0, and labels."""
    rng = np.random.default_rng(seed)
    shape = (count, *network.input_shape)
    images = rng.integers(0, 256, shape) * (rng.random(shape) < filled)
    return images.astype(np.uint8), rng.integers(0, network.outputs, count)


def fused_gradients(theta, images, labels, network=NETWORK):
    """Return losses and rows of the fused passes."""
    rows = np.full((len(images), network.dimension), 7, np.float32)
    passes = FusedCnn(network)
    return passes.record_gradients(theta, images, labels, rows), rows


def add_records(theta, images, labels, limit):
    """Return losses, the clipped sum and the norms."""
    total = np.zeros(DIMENSION)
    norms = np.empty(len(images))
    passes = FusedCnn(NETWORK)
    assert passes.adds_records(images)
    losses = passes.add_record_gradients(theta, images, labels, limit, total, norms)
    return losses, total, norms


def assert_rows_close(rows, expected):
    errors = np.abs(rows - expected).max(axis=1) / np.abs(expected).max(axis=1)
    assert errors.max() < 1e-5


@pytest.mark.parametrize(
    ("network", "scale"),
    [
        (NETWORK, 0.5),
        (NETWORK, 2),
        (CnnShape((28, 28, 1), 10, pixel_mean=0.286, pixel_deviation=0.353), 0.5),
        (CnnShape((26, 29, 3), 7), 0.5),
        (CnnShape((29, 27, 1), 10), 0.5),
    ],
)
@pytest.mark.parametrize("filled", [0.0, 0.2, 1.0])
def test_fused_cnn_gradients_equal_automatic_differentiation(network, scale, filled):
    """A larger scale of the weights has larger rounding of losses near 0."""
    assert find_passes(network) is FusedCnn
    theta = np.float32(scale) * draw_weights(1, network)
    records = make_records(9, filled=filled, network=network)
    losses, rows = fused_gradients(theta, *records, network)
    expected_losses, expected = differentiate(network, theta, *records)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5, atol=1e-5 * scale)
    assert_rows_close(rows, expected)


@pytest.mark.parametrize("value", [0, 128, 255])
def test_fused_cnn_gives_the_gradient_to_the_first_of_equal_maxima(value):
    """In a constant image all outputs of a filter are equal, and sums are exact to the
    bit.
    """
    theta = draw_weights(4)
    theta[: 1024 + 16] = np.round(theta[: 1024 + 16] * 64) / 64
    records = np.full((3, 28, 28, 1), value, np.uint8), np.array([0, 4, 9])
    _, rows = fused_gradients(theta, *records)
    assert_rows_close(rows, differentiate(NETWORK, theta, *records)[1])


@pytest.mark.parametrize("filled", [0.2, 1.0])
def test_fused_cnn_rows_have_no_bit_of_another_record(filled):
    """Rows are the same in another order, alone, and with several threads."""
    theta = draw_weights(5)
    images, labels = make_records(24, seed=5, filled=filled)
    losses, rows = fused_gradients(theta, images, labels)

    def check(indices):
        again = fused_gradients(theta, images[indices], labels[indices])
        assert np.array_equal(again[0], losses[indices])
        assert np.array_equal(again[1], rows[indices])

    check(np.random.default_rng(6).permutation(24))
    for index in (0, 7, 23):
        check([index])
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(check, np.arange(24).reshape(4, 6)))


@pytest.mark.parametrize("count", [0, 1, 4, 11])
@pytest.mark.parametrize("is_clipped", [True, False])
def test_fused_cnn_adds_clipped_gradients_in_order(count, is_clipped):
    theta = draw_weights(7)
    records = make_records(count, seed=7)
    losses, rows = fused_gradients(theta, *records)
    rows = rows.astype(np.float64)
    norms = np.linalg.norm(rows, axis=1)
    limit = np.inf
    if is_clipped:
        limit = float(np.median(norms)) if count else 1.0
    added_losses, total, added_norms = add_records(theta, *records, limit)
    assert np.array_equal(added_losses, losses)
    np.testing.assert_allclose(added_norms, norms, rtol=1e-12)
    expected = np.zeros(DIMENSION)
    for row, norm in zip(rows, added_norms, strict=True):
        expected += (1.0 if norm <= limit else limit / norm) * row
    assert np.array_equal(total, expected)


def test_fused_cnn_evaluation_has_the_bits_of_the_losses_of_a_gradient():
    theta = draw_weights(8)
    records = make_records(50, seed=8)
    losses, correct, _ = FusedCnn(NETWORK).evaluate(theta, *records)
    assert losses.dtype == correct.dtype == np.float64
    assert np.array_equal(losses, fused_gradients(theta, *records)[0])
    likeliest = logits(NETWORK, leaf_of(theta), records[0]).argmax(dim=1).numpy()
    assert np.array_equal(correct, likeliest == records[1])
    assert 0 < correct.sum() < 50


def test_fused_cnn_large_logits_do_not_overflow():
    theta = draw_weights(9)
    theta[-10:] = [3e4, *[0.0] * 8, -3e4]
    images, _ = make_records(2)
    losses, rows = fused_gradients(theta, images, np.array([0, 9]))
    assert losses == pytest.approx([0, 6e4], rel=1e-3)
    assert np.isfinite(rows).all()
    assert rows[1, -1] == -1


@pytest.mark.parametrize("place", [0, 1030, 2000, 9240, 10_000, 25_660, 26_009])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_fused_cnn_shows_weights_that_are_not_finite(place, value):
    """A sum counts their gradients as zero."""
    theta = draw_weights(10)
    theta[place] = value
    records = make_records(3)
    losses, rows = fused_gradients(theta, *records)
    assert not np.isfinite(rows).all(axis=1).any()
    added_losses, total, norms = add_records(theta, *records, np.inf)
    assert not total.any()
    evaluation = FusedCnn(NETWORK).evaluate(theta, *records)
    assert not evaluation.right.any()
    values = [losses, added_losses, norms, evaluation.losses]
    assert not np.isfinite(values).any()


@pytest.mark.parametrize(
    ("size", "is_finite"), [(1e6, True), (1.1e6, False), (1e38, False)]
)
def test_fused_cnn_gives_no_number_for_weights_that_could_overflow(size, is_finite):
    signs = np.random.default_rng(11).choice([-1, 1], DIMENSION).astype(np.float32)
    for values in fused_gradients(np.float32(size) * signs, *make_records(3)):
        assert np.isfinite(values).all() == is_finite
        assert np.isnan(values).all() != is_finite


def test_fused_cnn_takes_read_only_and_strided_arrays():
    theta = draw_weights(12)
    images, labels = make_records(8)
    expected = FusedCnn(NETWORK).evaluate(theta, images[::2].copy(), labels[::2].copy())
    for array in (theta, images, labels):
        array.setflags(write=False)
    evaluation = FusedCnn(NETWORK).evaluate(theta, images[::2], labels[::2])
    assert np.array_equal(evaluation, expected)


@pytest.mark.parametrize(
    "change",
    [
        {"theta": np.zeros(26_009, np.float32)},
        {"images": np.zeros((2, 28, 27, 1), np.uint8)},
        {"labels": np.zeros(3, np.int64)},
        {"labels": np.array([0, 10])},
        {"labels": np.array([-1, 0])},
        {"rows": np.zeros((3, DIMENSION), np.float32)},
        {"rows": np.zeros((DIMENSION, 2), np.float32).T},
    ],
)
def test_fused_cnn_refuses_arrays_beyond_which_it_would_read_or_write(change):
    arrays = {
        "theta": np.zeros(DIMENSION, np.float32),
        "images": np.zeros((2, 28, 28, 1), np.uint8),
        "labels": np.zeros(2, np.int64),
        "rows": np.zeros((2, DIMENSION), np.float32),
    }
    with pytest.raises(ValueError):
        FusedCnn(NETWORK).record_gradients(*(arrays | change).values())


def called_loops(loop):
    """Return the compiled functions that a compiled function calls by their names."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(loop.py_func)))
    names = {node.func.id for node in ast.walk(tree) if is_call_by_name(node)}
    called = [loop.py_func.__globals__.get(name) for name in names]
    return [function for function in called if isinstance(function, Dispatcher)]


def is_call_by_name(node):
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)


def test_loops_called_by_a_loop_exist_only_inside_it():
    """Otherwise bits depend on whether numba compiled the loops in this process or read
    them from its cache.

    A loop without `fastmath`, whose operations are rounded in the order written, has
    the same bits wherever it is.
    """
    modules = (fused_cnn, conv4_first, conv4_order, calls, winograd, clipped_sum)
    functions = [function for module in modules for function in vars(module).values()]
    loops = [function for function in functions if isinstance(function, Dispatcher)]
    called = [function for loop in loops for function in called_loops(loop)]
    assert len(called) > 10
    for loop in called:
        options = loop.targetoptions
        is_inlined = options.get("forceinline") or options.get("inline") == "always"
        assert is_inlined or options["fastmath"] is False, loop
