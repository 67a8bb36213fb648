"""Layers of networks of cells (`models.darts`), normalised within each record."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

NORMALISATION_EPSILON = 1e-5
STATISTICS_MOMENTUM = 0.1
"""Weight of a batch in the running statistics, torch's default."""


def convolution(
    channels: int,
    out: int,
    side: int = 1,
    *,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
) -> nn.Conv2d:
    """Return a convolution without bias.

    It keeps the sides of a map, or divides them by the stride. The weight is
    [out, in, k, k].
    """
    padding = dilation * (side // 2)
    return nn.Conv2d(channels, out, side, stride, padding, dilation, groups, bias=False)


class Norm(nn.Module):
    """Group normalisation: mean 0 and variance 1 per record and group of channels.

    With `affine`, each channel is then scaled and shifted.
    """

    def __init__(self, channels: int, groups: int, affine: bool) -> None:
        super().__init__()
        self.groups = groups
        self.scale = nn.Parameter(torch.ones(channels)) if affine else None
        self.shift = nn.Parameter(torch.zeros(channels)) if affine else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.group_norm(
            x, self.groups, self.scale, self.shift, eps=NORMALISATION_EPSILON
        )


class BatchNorm(nn.Module):
    """Batch normalisation.

    Its statistics depend on all records of a batch, so record-level privacy does not
    hold.

    The running mean and variance are parameters. They are therefore part of the model's
    flat vector, and a trained model is tested record by record. They have no gradient;
    `models.batch_gradient` updates them after each step.

    Attributes:
        uses_batch: whether maps are normalised by the statistics of their own batch, as
            in training, instead of the running statistics.
        running: new running "mean" and "variance" [channels], set by a forward pass with
            `uses_batch`.
    """

    def __init__(self, channels: int, affine: bool) -> None:
        super().__init__()
        self.uses_batch = False
        self.running: dict[str, torch.Tensor] = {}
        self.mean = nn.Parameter(torch.zeros(channels))
        self.variance = nn.Parameter(torch.ones(channels))
        self.scale = nn.Parameter(torch.ones(channels)) if affine else None
        self.shift = nn.Parameter(torch.zeros(channels)) if affine else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = self.mean.detach()
        variance = self.variance.detach()
        if self.uses_batch:
            mean = mean.clone()
            variance = variance.clone()
            self.running = {"mean": mean, "variance": variance}
        return functional.batch_norm(
            x,
            mean,
            variance,
            self.scale,
            self.shift,
            training=self.uses_batch,
            momentum=STATISTICS_MOMENTUM,
            eps=NORMALISATION_EPSILON,
        )


@dataclass(frozen=True)
class Normalisation:
    """Normalisation of feature maps, with or without a scale.

    Attributes:
        groups: number of groups of channels, normalised within one record. None: one
            group per channel.
        affine: whether each channel is scaled and shifted.
        batch: whether each channel is normalised over the batch instead.
    """

    groups: int | None
    affine: bool
    batch: bool = False

    def layer(self, channels: int, maps: int = 1) -> nn.Module:
        """Return the normalisation layer for `maps` independent maps side by side.

        Args:
            channels: total number of channels of all maps.
            maps: number of maps.
        """
        if self.batch:
            return BatchNorm(channels, self.affine)
        return Norm(
            channels,
            channels if self.groups is None else maps * self.groups,
            self.affine,
        )


class Preparation(nn.Module):
    """ReLU, 1x1 convolution and normalisation of a cell's input."""

    def __init__(self, channels: int, out: int, norm: Normalisation) -> None:
        super().__init__()
        self.pointwise = convolution(channels, out)
        self.norm = norm.layer(out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.pointwise(functional.relu(x)))


class Halving(nn.Module):
    """DARTS' FactorizedReduce for several targets.

    Half of each target's channels read the even pixels, the other half the odd pixels.
    The input maps [n, channels, H, W] have already passed a ReLU. The output is [n,
    targets x out, ceil(H / 2), ceil(W / 2)].
    """

    def __init__(
        self, channels: int, out: int, norm: Normalisation, targets: int = 1
    ) -> None:
        super().__init__()
        self.targets = targets
        self.even = convolution(channels, targets * (out // 2), stride=2)
        self.odd = convolution(channels, targets * (out - out // 2), stride=2)
        self.norm = norm.layer(targets * out, targets)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        height, width = x.shape[2:]
        shifted = functional.pad(x, (0, width % 2, 0, height % 2))[:, :, 1:, 1:]
        halves = (
            part.unflatten(1, (self.targets, -1))
            for part in (self.even(x), self.odd(shifted))
        )
        return self.norm(torch.cat(list(halves), dim=2).flatten(1, 2))


class HalvedPreparation(Halving):
    """Preparation of a cell input with maps twice as large as the other input's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(functional.relu(x))


class Separable(nn.Module):
    """Depthwise-separable convolution with normalisation, for several targets.

    Depthwise convolution, pointwise convolution and normalisation are applied once or
    twice. The input maps [n, channels, H, W] have already passed a ReLU. The output is
    [n, targets x channels, ...].
    """

    def __init__(
        self,
        channels: int,
        side: int,
        stride: int,
        targets: int,
        norm: Normalisation,
        *,
        times: int,
        dilation: int,
    ) -> None:
        super().__init__()
        self.targets = targets
        self.times = times
        out = targets * channels
        for time in range(times):
            depthwise = convolution(
                out,
                out,
                side,
                stride=stride if time == 0 else 1,
                dilation=dilation,
                groups=out,
            )
            self.add_module(f"depthwise{time}", depthwise)
            self.add_module(f"pointwise{time}", convolution(out, out, groups=targets))
            self.add_module(f"norm{time}", norm.layer(out, targets))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.repeat(1, self.targets, 1, 1) if self.targets > 1 else x
        for time in range(self.times):
            x = functional.relu(x) if time else x
            for part in ("depthwise", "pointwise", "norm"):
                x = self.get_submodule(f"{part}{time}")(x)
        return x


class Pooling(nn.Module):
    """3x3 pooling, the same for all targets; normalised in a mixed edge."""

    def __init__(
        self, channels: int, stride: int, kind: str, norm: Normalisation | None
    ) -> None:
        super().__init__()
        self.stride = stride
        self.kind = kind
        self.norm = None if norm is None else norm.layer(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "max":
            x = functional.max_pool2d(x, 3, self.stride, 1)
        else:
            x = functional.avg_pool2d(x, 3, self.stride, 1, count_include_pad=False)
        return x if self.norm is None else self.norm(x)


class AuxiliaryHead(nn.Module):
    """DARTS' second classifier, on the maps of an inner cell.

    It helps in training and is not part of the tested network. A mean over 5 x 5 pixels
    in steps of 3 reduces maps of 8 x 8 to 2 x 2. Maps of other sizes are reduced to the
    means of their four quarters.
    """

    def __init__(self, channels: int, classes: int, norm: Normalisation) -> None:
        super().__init__()
        self.pointwise = convolution(channels, 128)
        self.norm1 = norm.layer(128)
        self.corner = nn.Conv2d(128, 768, 2, bias=False)
        self.norm2 = norm.layer(768)
        self.classifier = nn.Linear(768, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits [n, classes] of maps [n, channels, H, W]."""
        x = functional.relu(x)
        if x.shape[2:] == (8, 8):
            x = functional.avg_pool2d(x, 5, 3)
        else:
            x = functional.adaptive_avg_pool2d(x, 2)
        x = functional.relu(self.norm1(self.pointwise(x)))
        x = functional.relu(self.norm2(self.corner(x)))
        return self.classifier(x.flatten(1))


class DropPath:
    """Drop path (Larsson et al. 2017), as in DARTS.

    Each edge's map of a record is set to zero with a given probability. Otherwise it is
    divided by the probability of being kept.

    Args:
        probability: probability of zero.
        generator: source of the masks.
    """

    def __init__(self, probability: float, generator: torch.Generator) -> None:
        self.probability = probability
        self._generator = generator

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Drop or rescale the maps [n, ...] of one edge, for each record separately."""
        keep_rate = 1 - self.probability
        drawn = torch.rand(len(x), generator=self._generator) < keep_rate
        mask = (drawn.to(x.dtype) / keep_rate).to(x.device)
        return x * mask.reshape(-1, *[1] * (x.dim() - 1))
