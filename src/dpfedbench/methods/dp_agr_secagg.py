"""DP-AGR by secure aggregation: a client's privacy against the server itself, without
noise that drowns its signal.

As DP-AGR, but nobody is trusted with a client's gradient. Each client clips and rounds
its own and adds a share of the noise, and the server sees nothing but the sum of all
messages modulo 2^b (`dpsum.secure`). So what the server learns is what DP-AGR tells
everyone who gets the model, and all that a client holds is protected against both: each
of its records too. DP-AGRLR and local Reptile protect records against the server by
noise on each client's own message, which is as large as the message itself; here it is
as large as one message in a sum of a whole cohort.

The server knows who takes part, so that blocks are known: one pass.
"""

import dataclasses

from dpfedbench.methods.dp_agr import DpAgr
from dpfedbench.parts.clipping.percentiles import PercentileOfReleases
from dpfedbench.parts.clipping.rule import Constant
from dpfedbench.parts.noise.skellam import Skellam
from dpfedbench.parts.participation.cohorts import OnePass
from dpsum.sums import Sum


class DpAgrSecagg(DpAgr):
    """One private sum a round, which the server sees as secure aggregation shows it."""

    name = "dp-agr-secagg"
    title = "DP-AGR, secure aggregation"
    claims = {}
    defaults = {
        "clipping": {"kind": "constant"},
        "noise": {"kind": "skellam"},
        "budget": {"profile": "holds"},
    }

    participation: OnePass = OnePass()
    # A rule that released something beside the sum would need a sum of its own that the
    # server does not see.
    clipping: Constant | PercentileOfReleases = Constant()  # type: ignore[assignment]
    noise: Skellam = Skellam()  # type: ignore[assignment]  # another of the family

    def server_sum(self) -> Sum:
        return dataclasses.replace(super().server_sum(), observer="server")
