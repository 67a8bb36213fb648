"""Record gradients by hand-written passes against torch's automatic differentiation."""

import ast
import concurrent.futures
import inspect
import textwrap

import numpy as np
import pytest
import torch
from numba.core.dispatcher import Dispatcher
from torch.nn import functional

from dpkernels import (
    calls,
    clipped_sum,
    conv4_first,
    conv4_order,
    fused_cnn,
    winograd,
)
from dpkernels.fused_cnn import FusedCnn
from dpsum import private_sum
from tests.dpfedbench.models.nets import cnn

NET = cnn()


def records(net, count, seed=0, filled=0.3):
    rng = np.random.default_rng(seed)
    shape = (count, *net.input_shape)
    images = (rng.integers(0, 256, shape) * (rng.random(shape) < filled)).astype(
        np.uint8
    )
    return images, rng.integers(0, net.outputs, count)


def gradients(net, theta, images, labels):
    out = np.full((len(images), net.dimension), 7, np.float32)
    return FusedCnn(net).each(theta, images, labels, out).losses, out


def reference(net, theta, images, labels):
    def loss(weights, image, label):
        return functional.cross_entropy(net.logits(weights, image[None]), label[None])

    derivative = torch.func.vmap(torch.func.grad_and_value(loss), (None, 0, 0))
    x = torch.from_numpy(images.astype(np.float32) / np.float32(255))
    rows, losses = derivative(torch.from_numpy(theta), x, torch.from_numpy(labels))
    return losses.numpy(), rows.numpy()


def assert_rows_close(rows, expected):
    worst = np.abs(rows - expected).max(axis=1) / np.abs(expected).max(axis=1)
    assert worst.max() < 1e-5


NORMALISED = cnn(pixel_mean=0.286, pixel_deviation=0.353)


@pytest.mark.parametrize(
    "net",
    [
        NET,
        NORMALISED,
        cnn(image_shape=(26, 29, 3), classes=7),
        cnn(image_shape=(29, 27, 1)),
    ],
)
@pytest.mark.parametrize("filled", [0.0, 0.2, 1.0])
def test_gradients_equal_automatic_differentiation(net, filled):
    theta = net.initial(np.random.default_rng(1))
    images, labels = records(net, 9, filled=filled)
    losses, rows = gradients(net, theta, images, labels)
    expected_losses, expected = reference(net, theta, images, labels)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    assert_rows_close(rows, expected)


def test_gradients_of_larger_weights():
    theta = 4 * NET.initial(np.random.default_rng(2))
    images, labels = records(NET, 20, seed=2)
    losses, rows = gradients(NET, theta, images, labels)
    expected_losses, expected = reference(NET, theta, images, labels)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-4)
    assert_rows_close(rows, expected)


@pytest.mark.parametrize("value", [0, 128, 255])
def test_the_first_of_equal_maxima_gets_the_gradient(value):
    # Inside a constant image all outputs of a filter are equal; with sums that are
    # exact they are so bit for bit.
    theta = NET.initial(np.random.default_rng(4))
    theta[: 1024 + 16] = np.round(theta[: 1024 + 16] * 64) / 64
    images = np.full((3, 28, 28, 1), value, np.uint8)
    labels = np.array([0, 4, 9])
    _, rows = gradients(NET, theta, images, labels)
    assert_rows_close(rows, reference(NET, theta, images, labels)[1])


@pytest.mark.parametrize("filled", [0.2, 1.0])
def test_rows_depend_on_nothing_beside_them(filled):
    theta = NET.initial(np.random.default_rng(5))
    images, labels = records(NET, 24, seed=5, filled=filled)
    losses, rows = gradients(NET, theta, images, labels)
    order = np.random.default_rng(6).permutation(24)
    again_losses, again = gradients(NET, theta, images[order], labels[order])
    assert np.array_equal(again, rows[order]) and np.array_equal(
        again_losses, losses[order]
    )
    for i in (0, 7, 23):
        alone_losses, alone = gradients(
            NET, theta, images[i : i + 1], labels[i : i + 1]
        )
        assert np.array_equal(alone[0], rows[i]) and alone_losses[0] == losses[i]
    parts = [np.arange(start, start + 6) for start in range(0, 24, 6)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        threaded = list(
            pool.map(
                lambda ids: gradients(NET, theta, images[ids], labels[ids])[1], parts
            )
        )
    assert np.array_equal(np.concatenate(threaded), rows)


@pytest.mark.parametrize("count", [0, 1, 4, 11])
@pytest.mark.parametrize("private", [True, False])
def test_gradients_go_to_a_sum_as_they_would_one_by_one(count, private):
    theta = NET.initial(np.random.default_rng(7))
    images, labels = records(NET, count, seed=7)
    losses, rows = gradients(NET, theta, images, labels)
    norms = np.linalg.norm(rows.astype(np.float64), axis=1)
    limit = np.inf
    total = private_sum.PlainSum(dimension=NET.dimension)
    if private:
        limit = float(np.median(norms)) if count else 1.0
        total = private_sum.PrivateSum(
            dimension=NET.dimension, threshold=limit, noise_multiplier=1.0
        )
        total._noised = lambda total, generator: total
    (added_losses, _, _), added = FusedCnn(NET).add_each(theta, images, labels, total)
    assert np.array_equal(added_losses, losses) and total.count == count
    np.testing.assert_allclose(added, norms, rtol=1e-12)
    expected = np.zeros(NET.dimension)
    for row, norm in zip(rows.astype(np.float64), added, strict=True):
        expected += (1.0 if norm <= limit else limit / norm) * row
    assert np.array_equal(total.release(None), expected)


def test_gradients_that_are_not_finite_add_nothing_and_are_counted():
    theta = NET.initial(np.random.default_rng(10))
    theta[2000] = np.nan
    images, labels = records(NET, 5)
    total = private_sum.PlainSum(dimension=NET.dimension)
    (losses, _, _), norms = FusedCnn(NET).add_each(theta, images, labels, total)
    assert np.isnan(losses).all() and np.isnan(norms).all() and total.non_finite == 5
    assert not total.release(None).any()


def test_a_sum_of_another_size_is_refused():
    images, labels = records(NET, 2)
    with pytest.raises(ValueError, match="26010"):
        FusedCnn(NET).add_each(
            NET.initial(np.random.default_rng(0)),
            images,
            labels,
            private_sum.PlainSum(dimension=5),
        )


def test_evaluation_equals_the_reference():
    theta = NET.initial(np.random.default_rng(8))
    images, labels = records(NET, 50, seed=8)
    losses, correct, _ = FusedCnn(NET).evaluate(theta, images, labels)
    logits = NET.logits(torch.from_numpy(theta), images)
    expected = functional.cross_entropy(
        logits, torch.from_numpy(labels), reduction="none"
    )
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert np.array_equal(correct, (logits.argmax(1).numpy() == labels))
    assert (
        losses.dtype == np.float64
        and correct.dtype == np.float64
        and 0 < correct.sum() < 50
    )
    assert np.array_equal(losses, gradients(NET, theta, images, labels)[0])


def test_large_logits_do_not_overflow():
    theta = NET.initial(np.random.default_rng(9))
    theta[-10:] = [3e4, *[0.0] * 8, -3e4]
    images, _ = records(NET, 2)
    losses, rows = gradients(NET, theta, images, np.array([0, 9]))
    assert losses == pytest.approx([0, 6e4], rel=1e-3)
    assert np.isfinite(rows).all() and rows[1, -1] == -1


@pytest.mark.parametrize("place", [0, 1030, 2000, 9240, 10_000, 25_660, 26_009])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_give_rows_that_are_not(place, value):
    theta = NET.initial(np.random.default_rng(10))
    theta[place] = value
    images, labels = records(NET, 3)
    losses, rows = gradients(NET, theta, images, labels)
    assert not np.isfinite(rows).all(axis=1).any() and not np.isfinite(losses).any()
    losses, correct, _ = FusedCnn(NET).evaluate(theta, images, labels)
    assert not np.isfinite(losses).any() and not correct.any()


def test_weights_that_could_overflow_give_no_number():
    signs = np.random.default_rng(11).choice([-1, 1], NET.dimension).astype(np.float32)
    images, labels = records(NET, 3)
    for size, finite in (
        (np.float32(1e6), True),
        (np.float32(1.1e6), False),
        (np.float32(1e38), False),
    ):
        losses, rows = gradients(NET, size * signs, images, labels)
        assert np.isfinite(losses).all() == np.isfinite(rows).all() == finite
        assert np.isnan(losses).all() == np.isnan(rows).all() != finite


def test_read_only_and_strided_arrays_are_taken():
    theta = NET.initial(np.random.default_rng(12))
    images, labels = records(NET, 8)
    expected = FusedCnn(NET).evaluate(theta, images[::2].copy(), labels[::2].copy())
    for array in (theta, images, labels):
        array.setflags(write=False)
    assert np.array_equal(
        FusedCnn(NET).evaluate(theta, images[::2], labels[::2]), expected
    )
    assert len(fused_cnn._records.signatures) == 1


def test_no_records_give_no_rows():
    theta = NET.initial(np.random.default_rng(0))
    losses, rows = gradients(NET, theta, *records(NET, 0))
    assert losses.shape == (0,) and rows.shape == (0, 26_010)
    assert FusedCnn(NET).evaluate(theta, *records(NET, 0))[1].shape == (0,)


@pytest.mark.parametrize(
    "change",
    [
        {"theta": np.zeros(26_009, np.float32)},
        {"theta": np.zeros(26_010)},
        {"images": np.zeros((2, 28, 27, 1), np.uint8)},
        {"labels": np.zeros(3, np.int64)},
        {"labels": np.zeros(2, np.int32)},
        {"labels": np.array([0, 10])},
        {"labels": np.array([-1, 0])},
        {"out": np.zeros((3, 26_010), np.float32)},
        {"out": np.zeros((26_010, 2), np.float32).T},
    ],
)
def test_arrays_that_do_not_fit_are_refused(change):
    arguments = {
        "theta": np.zeros(26_010, np.float32),
        "images": np.zeros((2, 28, 28, 1), np.uint8),
        "labels": np.zeros(2, np.int64),
        "out": np.zeros((2, 26_010), np.float32),
    } | change
    with pytest.raises(ValueError):
        FusedCnn(NET).each(*arguments.values())


def called_loops(loop):
    """The compiled functions that a compiled function calls by their names."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(loop.py_func)))
    names = {
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    found = {name: loop.py_func.__globals__.get(name) for name in names}
    return {
        name: value for name, value in found.items() if isinstance(value, Dispatcher)
    }


def test_loops_called_by_a_loop_exist_only_inside_it():
    """Else their bits depend on whether numba compiled them in this process or read
    them from its cache.

    Seen to: gradients of the same records differed in the last place between a first
    process and the next, until every inner loop was put into `_records`, the one that
    Python calls. A loop whose every operation is rounded in the order written (no
    `fastmath`) has the same bits wherever it is.
    """
    checked = 0
    for module in (fused_cnn, conv4_first, conv4_order, calls, winograd, clipped_sum):
        for loop in [
            value for value in vars(module).values() if isinstance(value, Dispatcher)
        ]:
            for name, called in called_loops(loop).items():
                inside = (
                    called.targetoptions.get("forceinline")
                    or called.targetoptions.get("inline") == "always"
                )
                assert inside or called.targetoptions["fastmath"] is False, (
                    f"{module.__name__}.{loop.__name__} calls {name}, which also exists"
                    " outside it"
                )
                checked += 1
    assert checked > 10
