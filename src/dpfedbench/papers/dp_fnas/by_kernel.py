"""Clipping of one mean gradient, kernel by kernel, as in DP-FNAS's released code."""

import dataclasses
import math
from typing import ClassVar

from dpfedbench.errors import BenchError
from dpfedbench.method import Method
from dpsum.clipping import LARGEST_THRESHOLD, SMALLEST_THRESHOLD, ClippingRule
from dpsum.parameters import parameter


@dataclasses.dataclass(frozen=True)
class ByKernel(ClippingRule):
    """Clipping of each kernel of a lot's mean gradient to C, with noise of standard
    deviation z C^2 in place of z C.

    The released code multiplies the noise by C twice. The sum's threshold in the ledger
    is its `sensitivity`, which no contribution exceeds.
    """

    kind: ClassVar[str] = "by-kernel"
    finds_threshold: ClassVar[bool] = True

    threshold: float | None = parameter(
        None,
        ge=SMALLEST_THRESHOLD,
        le=LARGEST_THRESHOLD,
        doc="null: twice C times the square root of the number of kernels",
    )
    kernel_norm: float = parameter(
        0.01,
        ge=1e-10,
        le=1e10,
        doc="C of each kernel",
        paper="0.01 (DP-FNAS's released command)",
    )

    def check(self, run: Method) -> None:
        """Refuse other client updates, groups, and a configured threshold."""
        kind = run.client.kind
        if kind != "released-search-steps":
            raise BenchError(
                f"clipping.kind is by-kernel, but client_update.kind is {kind}:"
                " by-kernel is for released-search-steps"
            )
        if self.groups != "all":
            raise BenchError(
                f"clipping.groups is {self.groups}, but by-kernel defines its own"
                " groups: set it to all"
            )
        if self.threshold is not None:
            raise BenchError(
                f"clipping.threshold is {self.threshold:g}, but by-kernel computes it"
                " from the network: set it to null"
            )

    def sensitivity(self, kernel_count: int) -> float:
        """Return the largest change of a lot's clipped gradient by one record.

        It is the largest distance of two vectors of `kernel_count` clipped kernels.
        """
        return 2 * self.kernel_norm * math.sqrt(kernel_count)

    def claimed_ratio(self, sensitivity: float) -> float:
        """Return the ratio of `dpsum.clipping` for noise of deviation z C^2."""
        return sensitivity / self.kernel_norm**2
