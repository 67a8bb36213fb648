"""Convolutions as matrix products: patches times weights.

If each task or record has its own weights, `torch.func.vmap` turns a convolution into a
grouped one, with one group per task. cuDNN runs these slowly. The same sums as
products, [n H' W', kh kw C] times [kh kw C, out], become one batched matrix product
under `vmap`, which is the fastest form on a GPU. On a CPU it takes about three times as
long as convolutions, so it is used on GPUs only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_Pair = int | Sequence[int]


class ConvolutionsAsProducts(TorchFunctionMode):
    """Context in which `conv2d` is computed as a matrix product.

    Results and all derivatives agree with `conv2d` up to float error. Grouped
    convolutions and paddings given by name stay as they are.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        options = kwargs or {}
        if func is functional.conv2d:
            return _conv2d(*args, **options)
        return func(*args, **options)


def _conv2d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: _Pair = 1,
    padding: str | _Pair = 0,
    dilation: _Pair = 1,
    groups: int = 1,
) -> torch.Tensor:
    """Return `conv2d` of images [n, C, H, W] and weights [out, C, kh, kw].

    The result is [n, out, H', W'].
    """
    if groups != 1 or isinstance(padding, str) or x.dim() != 4:
        return functional.conv2d(x, weight, bias, stride, padding, dilation, groups)
    (down, right) = _pair(stride)
    (pad_y, pad_x) = _pair(padding)
    (apart_y, apart_x) = _pair(dilation)
    out, channels, height, width = weight.shape
    x = functional.pad(x, (pad_x, pad_x, pad_y, pad_y)).permute(0, 2, 3, 1)
    rows = (x.shape[1] - apart_y * (height - 1) - 1) // down + 1
    columns = (x.shape[2] - apart_x * (width - 1) - 1) // right + 1
    # Slices instead of `unfold`: torch has no batching rule for the operations in the
    # derivative of `unfold`.
    taps = [
        x[:, i * apart_y : i * apart_y + down * (rows - 1) + 1 : down][
            :, :, j * apart_x : j * apart_x + right * (columns - 1) + 1 : right
        ]
        for i in range(height)
        for j in range(width)
    ]
    patches = torch.cat(taps, dim=3).reshape(-1, height * width * channels)
    product = patches @ weight.permute(2, 3, 1, 0).reshape(-1, out)
    if bias is not None:
        product = product + bias
    # A copy with the usual strides. Without it, cuDNN takes the result for an image in
    # channels-last format and fails under `vmap` (CUDNN_STATUS_EXECUTION_FAILED).
    return product.view(-1, rows, columns, out).permute(0, 3, 1, 2).contiguous()


def _pair(value: _Pair) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])
