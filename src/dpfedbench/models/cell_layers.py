"""The layers of networks of cells (`models.darts`), normalised within each record."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

NORMALISATION_EPSILON = 1e-5
STATISTICS_MOMENTUM = 0.1
"""Weight of a batch in the running statistics, as torch has it."""


class Convolution(nn.Module):
    """A convolution without bias that keeps a map's sides, or divides them by the
    stride; weight [out, in, k, k].
    """

    def __init__(
        self,
        channels: int,
        out: int,
        side: int = 1,
        *,
        stride: int = 1,
        dilation: int = 1,
        groups: int = 1,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(out, channels // groups, side, side))
        self.stride = stride
        self.dilation = dilation
        self.groups = groups
        self.padding = dilation * (side // 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.conv2d(
            x, self.weight, None, self.stride, self.padding, self.dilation, self.groups
        )


class Norm(nn.Module):
    """Each group of channels of a record to mean 0 and variance 1; `affine`: then each
    channel scaled and shifted.
    """

    def __init__(self, channels: int, groups: int, affine: bool) -> None:
        super().__init__()
        self.groups = groups
        self.affine = affine
        if affine:
            self.scale = nn.Parameter(torch.ones(channels))
            self.shift = nn.Parameter(torch.zeros(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale, shift = (self.scale, self.shift) if self.affine else (None, None)
        return functional.group_norm(
            x, self.groups, scale, shift, eps=NORMALISATION_EPSILON
        )


class BatchNorm(nn.Module):
    """Batch normalisation. Its statistics depend on all records of a batch, so that no
    record-level privacy holds.

    The running mean and variance are parameters, so that they are part of the model's
    flat vector and a trained model is tested record by record. They have no gradient;
    `models.batch_gradient` moves them after each step.

    Attributes:
        uses_batch: whether maps are normalised by the statistics of their own batch, as
            in training, and not by the running ones.
        running: after a forward pass with `uses_batch`, the new running mean and
            variance [channels].
    """

    def __init__(self, channels: int, affine: bool) -> None:
        super().__init__()
        self.affine = affine
        self.uses_batch = False
        self.running: tuple[torch.Tensor, torch.Tensor] | None = None
        self.mean = nn.Parameter(torch.zeros(channels))
        self.variance = nn.Parameter(torch.ones(channels))
        if affine:
            self.scale = nn.Parameter(torch.ones(channels))
            self.shift = nn.Parameter(torch.zeros(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale, shift = (self.scale, self.shift) if self.affine else (None, None)
        mean = self.mean.detach()
        variance = self.variance.detach()
        if self.uses_batch:
            mean = mean.clone()
            variance = variance.clone()
            self.running = mean, variance
        return functional.batch_norm(
            x,
            mean,
            variance,
            scale,
            shift,
            training=self.uses_batch,
            momentum=STATISTICS_MOMENTUM,
            eps=NORMALISATION_EPSILON,
        )


@dataclass(frozen=True)
class Normalisation:
    """Normalisation of feature maps, with or without a scale.

    Attributes:
        groups: of channels of one record; None: one for each channel.
        affine: whether each channel is scaled and shifted.
        batch: whether each channel is normalised over the batch instead.
    """

    groups: int | None
    affine: bool
    batch: bool = False

    def layer(self, channels: int, maps: int = 1) -> nn.Module:
        """For so many maps side by side, none of which depends on another, of so many
        channels together.
        """
        if self.batch:
            return BatchNorm(channels, self.affine)
        return Norm(
            channels,
            channels if self.groups is None else maps * self.groups,
            self.affine,
        )


class Preparation(nn.Module):
    """ReLU, 1x1 convolution and normalisation: what a cell makes of an input of other
    channels.
    """

    def __init__(self, channels: int, out: int, norm: Normalisation) -> None:
        super().__init__()
        self.pointwise = Convolution(channels, out)
        self.norm = norm.layer(out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.pointwise(functional.relu(x)))


class Halving(nn.Module):
    """DARTS' FactorizedReduce for several targets: half the channels of each read the
    even pixels, half the odd.

    Takes maps [n, channels, H, W] already cut below zero; gives [n, targets x out,
    ceil(H / 2), ceil(W / 2)].
    """

    def __init__(
        self, channels: int, out: int, norm: Normalisation, targets: int = 1
    ) -> None:
        super().__init__()
        self.targets = targets
        self.even = Convolution(channels, targets * (out // 2), stride=2)
        self.odd = Convolution(channels, targets * (out - out // 2), stride=2)
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
    """Preparation of a cell's input whose maps are twice as large as those of the other
    input.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(functional.relu(x))


class Separable(nn.Module):
    """Depthwise and pointwise convolution and normalisation, once or twice, for several
    targets.

    Takes maps [n, channels, H, W] already cut below zero; gives [n, targets x channels,
    ...].
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
            depthwise = Convolution(
                out,
                out,
                side,
                stride=stride if time == 0 else 1,
                dilation=dilation,
                groups=out,
            )
            self.add_module(f"depthwise{time}", depthwise)
            self.add_module(f"pointwise{time}", Convolution(out, out, groups=targets))
            self.add_module(f"norm{time}", norm.layer(out, targets))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.repeat(1, self.targets, 1, 1) if self.targets > 1 else x
        for time in range(self.times):
            x = functional.relu(x) if time else x
            for part in ("depthwise", "pointwise", "norm"):
                x = self.get_submodule(f"{part}{time}")(x)
        return x


class Pooling(nn.Module):
    """3x3 pooling, the same for all targets; normalised where operations are mixed."""

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
    """DARTS' second classifier, on the maps of an inner cell. It helps in training and
    is no part of the tested network.

    A mean over 5 x 5 pixels in steps of 3 leaves 2 x 2 of maps of 8 x 8; maps of other
    sides have the means of their quarters instead.
    """

    def __init__(self, channels: int, classes: int, norm: Normalisation) -> None:
        super().__init__()
        self.pointwise = Convolution(channels, 128)
        self.norm1 = norm.layer(128)
        self.corner = Convolution(128, 768, 2)
        self.norm2 = norm.layer(768)
        self.classifier = nn.Linear(768, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits [n, classes] of maps [n, channels, H, W]."""
        x = functional.relu(x)
        if x.shape[2:] == (8, 8):
            x = functional.avg_pool2d(x, 5, 3)
        else:
            x = functional.adaptive_avg_pool2d(x, 2)
        x = functional.relu(self.norm1(self.pointwise(x)))
        corner = functional.conv2d(x, self.corner.weight)
        return self.classifier(functional.relu(self.norm2(corner)).flatten(1))


class DropPath:
    """Drop path (Larsson et al. 2017) as DARTS has it: each edge's map of a record is
    zero with a probability, and divided by the rest of it else.

    Args:
        probability: of zero.
        generator: draws the masks.
    """

    def __init__(self, probability: float, generator: torch.Generator) -> None:
        self.probability = probability
        self._generator = generator

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The maps [n, ...] of one edge, each record's dropped or scaled."""
        keep_rate = 1 - self.probability
        drawn = torch.rand(len(x), generator=self._generator) < keep_rate
        mask = (drawn.to(x.dtype) / keep_rate).to(x.device)
        return x * mask.reshape(-1, *[1] * (x.dim() - 1))
