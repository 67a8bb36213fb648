"""DP-AGR by secure aggregation: Skellam noise in clients' shares.

Secure aggregation protects a client against the server itself, with little noise.
Clients need to trust nobody with their gradients. Each client clips and rounds its own
gradient and adds a share of the noise. The server sees nothing but the sum of all
messages modulo 2^b (`dpsum.secure`). So the server learns what everyone learns from the
model of DP-AGR. All data of a client, and so each of its records, are protected against
both. DP-AGRLR and local Reptile protect records against the server by noise on each
client's own message, which is as large as the message itself; here the noise is as
large as one message in the sum of a whole cohort. The server knows the participants, so
that the blocks are known: one pass.
"""

import dataclasses

from dpfedbench.papers.dp_fedmeta import DpAgr
from dpfedbench.parts.budget import BudgetSettings
from dpsum.clipping import Constant, PercentileOfReleases
from dpsum.participation import OnePass
from dpsum.skellam_noise import Skellam
from dpsum.sums import SumSpec


class DpAgrSecagg(DpAgr):
    """DP-AGR by secure aggregation: one private sum in each round, of which the server
    sees the noisy total alone.
    """

    name = "dp-agr-secagg"
    title = "DP-AGR, secure aggregation"
    claims = {}
    defaults = {
        "clipping": {"kind": "constant"},
        "noise": {"kind": "skellam"},
        "budget": {"profile": "proven"},
    }

    participation: OnePass = OnePass()
    # A rule with an extra release would need a second sum that is hidden from the
    # server.
    clipping: Constant | PercentileOfReleases = Constant()  # type: ignore[assignment]
    noise: Skellam = Skellam()  # type: ignore[assignment]  # another of the family
    budget: BudgetSettings = BudgetSettings(delta=1e-6, profile="proven")

    def sums(self) -> list[SumSpec]:
        (gradient_sum,) = super().sums()
        return [dataclasses.replace(gradient_sum, observer="server")]
