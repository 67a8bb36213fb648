"""What every noise of a configuration is: settings, on top of what `dpsum.noise` draws.

A class that draws, sums or combines in its own way names a mechanism of its own; see `dpsum.noise.Noise`.
"""

from __future__ import annotations

from typing import ClassVar

from dpfedbench.settings.part import Part
from dpsum import noise


class Noise(Part, noise.Noise):
    """Base of the kinds of noise.

    Raises:
        BenchError: when a class is made that changes what is drawn or summed under a mechanism that it did not name.
    """

    place: ClassVar[str] = "dpfedbench.parts.noise"
    columns: ClassVar[tuple[str, ...]] = ()
    """Columns of history.csv that its sums fill (`PrivateSum.told`)."""

    multiplier: float | None
