"""Training of a network of known cells: DP-FNAS' augmentation (Singh et al. 2020,
Section 4), and its private rival.

The cells that a search found make a larger network, which is trained from scratch on
all training records, and tested. As the paper has it the records are then used without
privacy, whatever the search was: nothing finite holds.
"""

import dataclasses

from dpfedbench.methods.over_parties import OverParties
from dpfedbench.parts.budget import Budget
from dpfedbench.parts.client_updates.batch_steps import BatchSteps
from dpfedbench.parts.client_updates.summed_steps import SummedSteps
from dpfedbench.parts.clipping.rule import Constant
from dpfedbench.parts.noise.noise import Fixed
from dpsum.sums import Sum


class Cells(OverParties):
    """Each round a sum over a lot of each party, as it is, and a step along all of
    them. Not private.

    With `batch-steps` the network is trained as DARTS' is: batch normalisation,
    augmented images, drop path and a second classifier. Then no sum over records is
    taken at all.
    """

    name = "cells"
    title = "Known cells, not private"
    paper = "dp-fnas"
    defaults = OverParties.defaults | {
        "client_update": {"kind": "summed-steps"},
        "model": {"kind": "darts-cells"},
    }

    client_update: SummedSteps | BatchSteps = SummedSteps()

    def own_sums(self) -> tuple[Sum, ...]:
        if isinstance(self.client_update, BatchSteps):
            return ()
        return (
            Sum(
                name=self.client_update.sends,
                unit="record",
                observer="server",
                added=True,
            ),
        )

    def server_sum(self) -> Sum:
        if isinstance(self.client_update, BatchSteps):
            return Sum(name="model", unit="client", observer="everyone")
        return super().server_sum()


class DpCells(Cells):
    """DP-SGD (Abadi et al. 2016): a private sum of each party a round, over single
    records.

    Each party takes a Poisson lot of its records, clips each record's gradient to C,
    adds them up and adds N(0, z^2 C^2 I); the server steps along the sum of the
    parties' sums. Where a search found the cells, its releases read the same records:
    the account is of both together.
    """

    name = "dp-cells"
    title = "Known cells, DP-SGD"
    defaults = Cells.defaults | {
        "clipping": {"kind": "constant"},
        "noise": {"kind": "fixed"},
        "budget": {"profile": "holds"},
    }

    client_update: SummedSteps = SummedSteps()
    clipping: Constant = Constant(threshold=1.0)
    noise: Fixed = Fixed()
    budget: Budget = Budget()

    def own_sums(self) -> tuple[Sum, ...]:
        (own,) = super().own_sums()
        return (
            dataclasses.replace(
                own, clipping=self.clipping, noise=self.noise, budget=self.budget
            ),
        )
