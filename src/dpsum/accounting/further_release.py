"""Noise of a sum beside a further release of the same cohort."""

import math

from dploss.gaussian import joint_multiplier
from dpsum.errors import DpsumError


def rest_multiplier(total: float, other: float) -> float:
    """Return the multiplier that remains after another release of the same cohort.

    Both releases together cost as much as one of multiplier `total`: (total^-2 -
    other^-2)^-1/2 (Andrew et al. 2019, Theorem 1), rounded up in the last digits.

    Raises:
        DpsumError: the other release alone costs as much already.
    """
    if not other > total:
        raise DpsumError(
            f"a further release with multiplier {other:g} leaves no noise multiplier"
            f" for the gradients out of noise.multiplier {total:g}: raise"
            " clipping.count_noise (it is half that multiplier) or lower the noise"
        )
    rest = (total**-2 - other**-2) ** -0.5
    while joint_multiplier([rest, other]) < total:
        rest = math.nextafter(rest, math.inf)
    return rest
