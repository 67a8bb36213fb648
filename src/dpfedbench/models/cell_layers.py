"""The layers of networks of cells (`models.darts`), normalised within each record."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

NORMALISATION_EPSILON = 1e-5


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
        self.stride, self.dilation, self.groups = stride, dilation, groups
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
        self.groups, self.affine = groups, affine
        if affine:
            self.scale, self.shift = (
                nn.Parameter(torch.ones(channels)),
                nn.Parameter(torch.zeros(channels)),
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale, shift = (self.scale, self.shift) if self.affine else (None, None)
        return functional.group_norm(
            x, self.groups, scale, shift, eps=NORMALISATION_EPSILON
        )


@dataclass(frozen=True)
class Normalisation:
    """How maps are normalised: in so many groups of channels, one for each where that
    is None; then perhaps scaled.
    """

    groups: int | None
    affine: bool

    def layer(self, channels: int, maps: int = 1) -> Norm:
        """For so many maps side by side, none of which depends on another, of so many
        channels together.
        """
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
        self.pointwise, self.norm = Convolution(channels, out), norm.layer(out)

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
    """What a cell makes of an input whose maps are twice as large as those of the
    other.
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
        self.targets, self.times, out = targets, times, targets * channels
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
        self.stride, self.kind = stride, kind
        self.norm = None if norm is None else norm.layer(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "max":
            x = functional.max_pool2d(x, 3, self.stride, 1)
        else:
            x = functional.avg_pool2d(x, 3, self.stride, 1, count_include_pad=False)
        return x if self.norm is None else self.norm(x)
