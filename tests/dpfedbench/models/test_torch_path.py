"""The path of a GPU on a CPU: convolutions as products, and chunks that are too large."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from dpfedbench.models.patches import ConvolutionsAsProducts

from .nets import conv4, gradients_by
from .test_meta_gradient import contributions, draw_tasks, draw_theta


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"padding": 1},
        {"padding": (2, 0), "stride": 2},
        {"stride": (1, 3), "dilation": 2},
        {"padding": "same"},
    ],
    ids=str,
)
def test_convolution_as_a_product_is_the_convolution(options):
    """Values and derivatives, for sides that are no multiple of the stride.

    The value has the usual strides: with others, cuDNN fails under `vmap`.
    """
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (
        torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in ((3, 2, 11, 16), (4, 2, 3, 5), (4,))
    )

    def results():
        value = functional.conv2d(x, weight, bias, **options)
        return value, *torch.autograd.grad(value.sin().sum(), (x, weight, bias))

    expected = results()
    with ConvolutionsAsProducts():
        products = results()
    torch.testing.assert_close(products, expected, rtol=1e-12, atol=1e-12)
    assert products[0].is_contiguous()


def test_chunk_that_is_too_large_is_halved_with_a_notice(monkeypatch, capsys):
    """The path computes 7, then 3, then 1 at once, and tries no larger chunk again."""
    net = conv4(filters=4)
    theta = draw_theta(net)
    parts = draw_tasks(count=7)
    expected = contributions(gradients_by("at once", net), theta, parts)
    gradients = gradients_by("at once", net)
    gradients._limit = 10**6
    counts = []
    vmap = torch.func.vmap

    def vmap_of_a_small_device(function, *sizes):
        def call(*arguments):
            counts.append(max(len(x) for x in arguments if torch.is_tensor(x)))
            if counts[-1] > 2:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return vmap(function, *sizes)(*arguments)

        return call

    monkeypatch.setattr(torch.func, "vmap", vmap_of_a_small_device)
    rows = contributions(gradients, theta, parts)
    np.testing.assert_allclose(rows, expected, rtol=0, atol=1e-12)
    assert counts[:3] == [7, 3, 1]
    assert set(counts[2:]) == {1}
    assert capsys.readouterr().err.splitlines() == [
        "notice: cpu is out of memory: 3 at once instead of 7 from here on",
        "notice: cpu is out of memory: 1 at once instead of 3 from here on",
    ]
