"""Named parts of a network: where they lie, and gradients of one of them by every
implementation.
"""

import numpy as np
import pytest
from torch import nn

from dpfedbench.errors import BenchError
from dpfedbench.models.choose import choose
from dpsum.private_sum import PrivateSum

from .nets import Careful, Ordered, layers, of


class Parted(nn.Module):
    """A module in two parts."""

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


WAYS = {
    "torch": lambda: layers(nn.GroupNorm(2, 4)),
    "torch-opacus": Careful,
    "torch-loop": Ordered,
}


@pytest.mark.parametrize("way", WAYS)
def test_rows_of_a_part_are_its_columns_of_all(way):
    net = of(lambda: Parted(WAYS[way]))
    choice, rng = choose(net), np.random.default_rng(0)
    assert choice.name == way
    assert net.blocks == {
        "body": slice(0, net.dimension - 12),
        "factor": slice(net.dimension - 12, net.dimension),
    }
    theta, gradients = net.initial(rng), choice.make()
    x, y = rng.integers(0, 256, (6, 8, 8, 2), np.uint8), rng.integers(0, 3, 6)
    rows = np.empty((6, net.dimension), np.float32)
    gradients.each(theta, x, y, rows)
    for block, place in net.blocks.items():
        own = np.empty((6, gradients.width(block)), np.float32)
        gradients.each(theta, x, y, own, block=block)
        np.testing.assert_allclose(own, rows[:, place], rtol=1e-5, atol=1e-6)
        total = PrivateSum(
            dimension=gradients.width(block), threshold=1.0, noise_multiplier=1.0
        )
        _, norms = gradients.add_each(theta, x, y, total, block=block)
        np.testing.assert_allclose(
            norms, np.linalg.norm(rows[:, place], axis=1), rtol=1e-5
        )


def test_the_head_is_the_last_layer_of_the_first_part_and_most_networks_have_none():
    assert of(lambda: Parted(lambda: layers())).head == ("body.3.weight", "body.3.bias")
    assert of(layers).blocks == {}


@pytest.mark.parametrize(
    "blocks", [{"a": ("factor.weight",)}, {"a": ("factor.bias", "factor.weight")}]
)
def test_parts_must_name_all_parameters_in_order(blocks):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor, self.blocks = nn.Linear(128, 3), blocks

        def forward(self, x):
            return self.factor(x.flatten(1))

    with pytest.raises(
        BenchError, match="must name all of its parameters, in their order"
    ):
        _ = of(Own).blocks
