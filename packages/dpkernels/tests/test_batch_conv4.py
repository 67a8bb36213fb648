"""Conv-4 over batches by hand-written passes against torch's differentiation."""

import numpy as np
import pytest
from reference_networks import (
    differentiate_through_steps,
    differentiate_twice,
    draw_parameters,
    leaf_of,
    logits,
)

from dpkernels import Conv4Shape, find_passes
from dpkernels.batch_conv4 import BatchConv4

SMALL = Conv4Shape((28, 28, 1), 16, 5, "batch")


def draw_images(network, *counts, seed=1):
    """Return images of which half the pixels are 0."""
    rng = np.random.default_rng(seed)
    shape = (*counts, *network.input_shape)
    return rng.random(shape) * (rng.random(shape) > 0.5)


def assert_close(values, expected, tolerance=1e-11):
    np.testing.assert_allclose(
        values, expected, rtol=0, atol=tolerance * np.abs(expected).max()
    )


@pytest.mark.parametrize(
    ("shape", "filters", "batch"),
    [
        ((28, 28, 1), 7, 5),
        ((32, 32, 3), 6, 4),
        ((84, 84, 3), 3, 3),
        ((16, 20, 2), 4, 6),
        # The colour data sets with the filters of the papers.
        ((32, 32, 3), 48, 5),
        ((64, 64, 3), 48, 2),
    ],
)
def test_conv4_tasks_equal_automatic_differentiation(shape, filters, batch):
    """The memory has values of another point."""
    network = Conv4Shape(shape, filters, 5, "batch")
    assert find_passes(network, np.float64) is BatchConv4
    passes = BatchConv4(network, np.float64)
    theta = np.stack([draw_parameters(network, seed) for seed in range(2)])
    images = draw_images(network, 2, batch)
    labels = np.tile(np.arange(batch) % 5, (2, 1))
    direction = np.random.default_rng(2).normal(size=theta.shape)
    gradients, products = np.empty((2, *theta.shape))
    prepared = passes.prepare(images)
    before = passes.task_gradients(0.5 * theta, prepared, labels, gradients)
    tasks = passes.task_gradients(theta, prepared, labels, gradients, before=before)
    assert tasks.has_products
    tasks.product(direction, products)
    outputs = passes.logits(theta, prepared)
    for i in range(2):
        records = images[i], labels[i]
        loss, gradient, product = differentiate_twice(
            network, theta[i], *records, direction[i]
        )
        assert tasks.losses[i] == pytest.approx(loss, rel=1e-12)
        assert_close(gradients[i], gradient)
        assert_close(products[i], product)
        expected = logits(network, leaf_of(theta[i]), images[i]).detach().numpy()
        assert_close(outputs[i], expected)


@pytest.mark.parametrize("second", [True, False])
@pytest.mark.parametrize("by_parameter", [True, False])
def test_conv4_gradients_through_steps_equal_automatic_differentiation(
    second, by_parameter
):
    """Two calls with query sets of several sizes, so memory is used again."""
    passes = BatchConv4(SMALL, np.float64)
    theta = draw_parameters(SMALL)
    rates = np.array([[0.1], [0.05], [0.2]])
    if by_parameter:
        rates = rates * np.random.default_rng(3).random((3, len(theta)))
    for query in (4, 6):
        x = draw_images(SMALL, 2, 5 + query, seed=query)
        y = np.tile(np.arange(5 + query) % 5, (2, 1))
        out = np.empty((2, len(theta)))
        losses = passes.gradients_through_steps(
            theta,
            passes.prepare(x[:, :5]),
            y[:, :5],
            passes.prepare(x[:, 5:]),
            y[:, 5:],
            rates,
            second=second,
            out=out,
        )
        for i in range(2):
            support = x[i, :5], y[i, :5]
            held_out = x[i, 5:], y[i, 5:]
            loss, gradient = differentiate_through_steps(
                SMALL, theta, support, held_out, rates, second
            )
            assert losses[i] == pytest.approx(loss, rel=1e-11)
            assert_close(out[i], gradient, 1e-10)


def test_conv4_tasks_together_have_the_bits_of_tasks_alone():
    passes = BatchConv4(SMALL)
    theta = np.tile(draw_parameters(SMALL).astype(np.float32), (7, 1))
    images = draw_images(SMALL, 7, 5)
    labels = np.tile(np.arange(5), (7, 1))
    together, alone = np.empty((2, *theta.shape), np.float32)
    passes.task_gradients(theta, passes.prepare(images), labels, together)
    for i in range(7):
        task = slice(i, i + 1)
        prepared = passes.prepare(images[task])
        passes.task_gradients(theta[task], prepared, labels[task], alone[task])
    assert together.tobytes() == alone.tobytes()


def test_conv4_shows_parameters_that_are_not_finite():
    passes = BatchConv4(SMALL)
    theta = draw_parameters(SMALL).astype(np.float32)
    theta[len(theta) // 2] = np.nan
    out = np.zeros((1, len(theta)), np.float32)
    prepared = passes.prepare(draw_images(SMALL, 1, 5))
    tasks = passes.task_gradients(theta[None], prepared, np.arange(5)[None], out)
    assert np.isnan(tasks.losses).all()
    assert np.isnan(out).any()


@pytest.mark.parametrize(
    "change",
    [
        {"theta": np.zeros((2, 7), np.float32)},
        {"theta": np.zeros((1, SMALL.dimension), np.float32)},
        {"labels": np.zeros((2, 4), np.int64)},
        {"labels": np.full((2, 5), 5)},
        {"labels": np.zeros((2, 5), np.int32)},
        {"out": np.zeros((2, SMALL.dimension))},
    ],
)
def test_conv4_refuses_arrays_beyond_which_it_would_read_or_write(change):
    passes = BatchConv4(SMALL)
    arrays = {
        "theta": np.zeros((2, SMALL.dimension), np.float32),
        "images": passes.prepare(draw_images(SMALL, 2, 5)),
        "labels": np.zeros((2, 5), np.int64),
        "out": np.zeros((2, SMALL.dimension), np.float32),
    }
    passes.task_gradients(*arrays.values())
    with pytest.raises(ValueError):
        passes.task_gradients(*(arrays | change).values())
