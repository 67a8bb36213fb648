"""Networks of the zoo, modules of a user, and each path of their gradients, for tests."""

import functools

import pytest
import torch
from torch import nn

from dpfedbench.models.choose import choose
from dpfedbench.models.cnn import Cnn
from dpfedbench.models.conv4 import Conv4
from dpfedbench.models.gradients import AllAtOnce, Gradients
from dpfedbench.models.net import Net

KERNELS = pytest.mark.parametrize("path", ["kernels", "torch"])
CUDA = ["cuda", "cuda as products"]
PATHS = pytest.mark.parametrize(
    "path",
    ["kernels", "torch", "at once", "at once as products"]
    + [pytest.param(path, marks=pytest.mark.cuda) for path in CUDA],
)


class AtOnce(Gradients):
    """Torch path that computes the tasks of a chunk at once on a CPU too."""

    def _task_gradients(self, theta, x, y, out, products, into):
        labels = torch.as_tensor(y, device=self.device)
        return AllAtOnce(self, self._theta(theta), x.value, labels, out)


def gradients_by(path, net, dtype=torch.float64):
    """Return the gradients of a network by one of `PATHS`."""
    if path in ("kernels", "torch"):
        return choose(net, enabled=path == "kernels", dtype=dtype).make()
    if path.startswith("cuda"):
        gradients = Gradients(net, device="cuda", dtype=dtype)
    else:
        gradients = AtOnce(net, dtype=dtype)
    gradients.as_products = path.endswith("products")
    return gradients


def of(make, shape=(8, 8, 2), outputs=3):
    """Return a network of a module that a test makes."""
    return Net(make, input_shape=shape, outputs=outputs)


def conv4(image_shape=(28, 28, 1), ways=5, rates=None, **options):
    options = {"filters": 8, "normalisation": "batch", "ways": ways} | options
    build = functools.partial(Conv4, image_shape=image_shape, **options)
    net = of(build, image_shape, ways)
    return net if rates is None else net.with_rates(*rates)


def cnn(image_shape=(28, 28, 1), classes=10, **pixels):
    build = functools.partial(Cnn, image_shape=image_shape, classes=classes, **pixels)
    return of(build, image_shape, classes)


def layers(*between):
    """Return a convolution, the layers of a test, and a linear layer."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), *between, nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)
    )


def with_group_norm():
    return layers(nn.GroupNorm(2, 4))


class Recurrent(nn.Module):
    """An embedding, an LSTM and a linear layer, on sequences of tokens."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 5)
        self.lstm = nn.LSTM(5, 6, batch_first=True)
        self.linear = nn.Linear(6, 7)

    def forward(self, x):
        return self.linear(self.lstm(self.embedding(x))[0][:, -1])


class Careful(nn.Module):
    """Module with a branch on values, which `vmap` cannot take."""

    def __init__(self):
        super().__init__()
        self.layers = with_group_norm()

    def forward(self, x):
        if not x.isfinite().all():
            raise ValueError("not finite")
        return self.layers(x)


class Ordered(nn.Module):
    """Module with branches on values and a bare parameter."""

    def __init__(self):
        super().__init__()
        self.factors = nn.Parameter(torch.ones(2, 3))

    def forward(self, x):
        rows = [
            record.mean((1, 2)) @ self.factors * (2.0 if record.sum() > 64 else 1.0)
            for record in x
        ]
        return torch.stack(rows)


class Tied(nn.Module):
    """Module whose two layers have the same parameter, under two names."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(128, 128, bias=False)
        self.decoder = nn.Linear(128, 128)
        self.decoder.weight = self.encoder.weight
        self.linear = nn.Linear(128, 3)

    def forward(self, x):
        hidden = torch.tanh(self.encoder(x.flatten(1)))
        return self.linear(torch.tanh(self.decoder(hidden)))


class Twice(nn.Module):
    """Module that uses one layer twice."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(128, 128)
        self.linear = nn.Linear(128, 3)

    def forward(self, x):
        hidden = torch.tanh(self.layer(x.flatten(1)))
        return self.linear(torch.tanh(self.layer(hidden)))


class Attending(nn.Module):
    """Attention between the rows of a picture."""

    def __init__(self):
        super().__init__()
        self.sides = nn.Linear(16, 3 * 8)
        self.linear = nn.Linear(64, 3)

    def forward(self, x):
        sides = self.sides(x.transpose(1, 2).flatten(2)).chunk(3, dim=-1)
        attended = nn.functional.scaled_dot_product_attention(*sides)
        return self.linear(attended.flatten(1))


class Viewing(nn.Module):
    """Module with `view`, which needs maps in torch's memory layout."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(2, 4, 3, padding=1)
        self.linear = nn.Linear(256, 3)

    def forward(self, x):
        return self.linear(self.convolution(x).view(x.size(0), -1))


class OwnLoss(nn.Module):
    """Module with two answers a record, and a loss and a measure."""

    answers = (2,)

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(128, 6)

    def forward(self, x):
        return self.linear(x.flatten(1)).unflatten(1, (3, 2))

    def losses(self, x, y):
        return nn.functional.cross_entropy(self(x), y, reduction="none").sum(1)

    def correct(self, x, y):
        right = (self(x).argmax(1) == y).sum(1)
        return right, torch.full_like(right, 2)
