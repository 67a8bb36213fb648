"""`conv4-variant`: Conv-4 with the details of MAML++'s code."""

import numpy as np
import pytest
import torch
from torch import nn

from dpfedbench.models.conv4 import Conv4
from dpfedbench.models.conv4_variant import Conv4VariantNet
from tests.dpfedbench.training.conftest import make_config

SIZES = {"image_shape": (28, 28, 1), "filters": 4, "ways": 3}
PLAIN = {"slope": 0.0, "biases": False, "glorot_head": False, "inverted": False}
MAML_PLUS_PLUS = {"slope": 0.01, "biases": True, "glorot_head": True, "inverted": True}


def filled(module, theta):
    nn.utils.vector_to_parameters(torch.from_numpy(theta), module.parameters())
    return module


def images(count=5):
    return torch.from_numpy(np.random.default_rng(4).random((count, 1, 28, 28))).float()


@pytest.mark.parametrize("normalisation", ["batch", "record"])
def test_variant_at_its_defaults_is_conv4(normalisation):
    sizes = SIZES | {"normalisation": normalisation}
    plain = Conv4(**sizes)
    variant = Conv4VariantNet(**sizes, **PLAIN)
    theta = plain.initial(np.random.default_rng(0))
    assert np.array_equal(theta, variant.initial(np.random.default_rng(0)))
    rng = np.random.default_rng(1)
    theta = (theta + 0.1 * rng.standard_normal(len(theta))).astype(np.float32)
    logits = filled(plain, theta)(images())
    assert torch.allclose(logits, filled(variant, theta)(images()), atol=1e-5)


def by_layers(weights, x):
    """Compute the whole variant by torch's layers, in MAML++'s order.

    The order is convolution, batch normalisation, leaky ReLU, pooling.
    """
    x = 1 - x
    for block in range(1, 5):
        kernel = weights[f"block{block}.weight"].permute(3, 2, 0, 1)
        out, inputs = kernel.shape[:2]
        convolution = nn.Conv2d(inputs, out, 3, padding=1)
        convolution.weight.data = kernel
        convolution.bias.data = weights[f"block{block}.bias"]
        norm = nn.BatchNorm2d(out, track_running_stats=False)
        norm.weight.data = weights[f"block{block}.scale"]
        norm.bias.data = weights[f"block{block}.shift"]
        x = nn.MaxPool2d(2)(nn.LeakyReLU(0.01)(norm(convolution(x))))
    x = x.permute(0, 2, 3, 1).flatten(1)
    return x @ weights["head.weight"] + weights["head.bias"]


def test_variant_with_all_details_is_maml_plus_plus():
    """Biases, shifts and scales of both signs are drawn at random."""
    variant = Conv4VariantNet(**SIZES, **MAML_PLUS_PLUS)
    theta = variant.initial(np.random.default_rng(0))
    rng = np.random.default_rng(2)
    theta = (theta + 0.7 * rng.standard_normal(len(theta))).astype(np.float32)
    filled(variant, theta)
    weights = {name: value.data for name, value in variant.named_parameters()}
    x = images()
    assert torch.allclose(variant(x), by_layers(weights, x), atol=1e-4)


def test_variants_glorot_head_has_its_bound_and_leaves_the_convolutions():
    """Glorot and Bengio 2010: uniform within sqrt(6 / (in + out)) = sqrt(6 / 7)."""
    details = PLAIN | {"glorot_head": True}
    with_head = Conv4VariantNet(**SIZES, **details)
    theta = with_head.initial(np.random.default_rng(0))
    plain = Conv4(**SIZES).initial(np.random.default_rng(0))
    head = theta[-(4 * 3 + 3) : -3]
    bound = (6 / 7) ** 0.5
    assert 0.5 * bound < np.abs(head).max() <= bound
    assert np.array_equal(theta[: -(4 * 3 + 3)], plain[: -(4 * 3 + 3)])


def test_variant_that_fixes_normalisation_adapts_all_but_scales_and_shifts():
    model = {"kind": "conv4-variant", "adapt_normalisation": False}
    run = make_config({"method": "random", "model": model})
    net = run.tested_net((28, 28, 1))
    names = [f"block{block}.weight" for block in range(1, 5)]
    assert run.adapted(net) == [*names, "head.weight", "head.bias"]
    plain = make_config({"method": "random", "model": {"kind": "conv4-variant"}})
    assert plain.adapted(net) is None
