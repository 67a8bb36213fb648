"""Named blocks of a network, and gradients of one of them by every implementation."""

from collections import OrderedDict

import numpy as np
import pytest
from torch import nn

from dpfedbench.errors import BenchError
from dpfedbench.models.choose import choose
from dpsum.private_sum import PrivateSum

from .nets import Careful, Ordered, layers, of


class Blocks(nn.Module):
    """A module in two blocks."""

    def __init__(self, body):
        super().__init__()
        self.body = body()
        self.factor = nn.Linear(3, 3)

    @property
    def blocks(self):
        names = [name for name, _ in self.named_parameters()]
        return {"body": tuple(names[:-2]), "factor": tuple(names[-2:])}

    def forward(self, x):
        return self.factor(self.body(x))


BODIES = {
    "torch": lambda: layers(nn.GroupNorm(2, 4)),
    "torch-opacus": Careful,
    "torch-loop": Ordered,
}


@pytest.mark.parametrize("implementation", BODIES)
def test_block_gradients_are_columns_of_the_whole_gradients(implementation):
    net = of(lambda: Blocks(BODIES[implementation]))
    choice = choose(net)
    assert choice.name == implementation
    assert net.blocks == {
        "body": slice(0, net.dimension - 12),
        "factor": slice(net.dimension - 12, net.dimension),
    }
    rng = np.random.default_rng(0)
    theta = net.initial(rng)
    gradients = choice.make()
    x = rng.integers(0, 256, (6, 8, 8, 2), np.uint8)
    y = rng.integers(0, 3, 6)
    whole = np.empty((6, net.dimension), np.float32)
    gradients.record_gradients(theta, x, y, whole)
    for block, coordinates in net.blocks.items():
        width = gradients.width(block)
        rows = np.empty((6, width), np.float32)
        gradients.record_gradients(theta, x, y, rows, block=block)
        np.testing.assert_allclose(rows, whole[:, coordinates], rtol=1e-5, atol=1e-6)
        total = PrivateSum(dimension=width, threshold=1.0, noise_multiplier=1.0)
        _, norms = gradients.add_record_gradients(theta, x, y, total, block=block)
        expected = np.linalg.norm(whole[:, coordinates], axis=1)
        np.testing.assert_allclose(norms, expected, rtol=1e-5)


def test_head_of_a_network_with_blocks_is_in_its_first_block():
    assert of(lambda: Blocks(layers)).head == ("body.3.weight", "body.3.bias")
    assert of(layers).blocks == {}


@pytest.mark.parametrize(
    "blocks", [{"a": ("factor.weight",)}, {"a": ("factor.bias", "factor.weight")}]
)
def test_blocks_have_to_name_all_parameters_in_order(blocks):
    def make():
        module = nn.Sequential(OrderedDict(factor=nn.Linear(128, 3)))
        module.blocks = blocks
        return module

    with pytest.raises(BenchError, match="must name all its parameters in order"):
        _ = of(make).blocks
