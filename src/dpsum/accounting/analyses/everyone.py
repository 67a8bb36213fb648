"""Every unit in every round: to each unit all releases are one Gaussian release.

T releases of independent noise of multipliers z_1, ..., z_T are one of multiplier (sum
of z_t^-2)^-1/2. `correlated` has correlated noise.
"""

from dploss.gaussian import Bracket, exact_bracket, joint_of
from dpsum.accounting.accountant import Accountant, Events
from dpsum.accounting.analyses.known_rounds import OnePassAccountant
from dpsum.accounting.image_level import ImageUse
from dpsum.sampling import Sampling


def check_everyone(self: Accountant, sampling: Sampling) -> None:
    """Check the numbers of a sampler whose cohort is all units: the rate is 1."""
    Accountant.check_numbers(self, sampling)
    if sampling["rate"] != 1:
        raise self.contradiction(sampling, "the cohort is not every unit")


class EveryoneAccountant(OnePassAccountant):
    """Accountant that composes the releases of all rounds exactly, at any noise."""

    pair = "gaussian", "everyone"
    records_too = True
    explanation = "each unit is in each round: one Gaussian for all releases; exact"
    images = (
        "every client that uses the image contributes zero, in each round: one Gaussian"
        " of all of them; exact"
    )

    check_numbers = check_everyone

    def gaussian(self, events: Events) -> float:
        return joint_of(events.schedule)

    def image(self, events: Events, use: ImageUse, delta: float) -> Bracket:
        return exact_bracket(self.gaussian(events) / use.most, delta)
