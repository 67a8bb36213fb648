"""DP-AGR with correlated noise: a repair that needs neither sampling nor a secret.

As DP-AGR (one pass over blocks that an observer may know), but the server's noise of a
round takes back part of what earlier rounds added (`parts.noise.correlated`), since a
model sees the sum of all rounds and not each by itself. Each client is in one round, so
all releases together are one Gaussian release of multiplier z over the encoder's
largest column norm, which is scaled to 1; in several passes (min-separation) what all
of its rounds move is. With balls-and-bins its round is secret, and what columns do not
have in common is amplified (`dpsum.accounting`). The threshold is constant: noise of
another scale would not be taken back.
"""

import dataclasses

from dpfedbench.methods.dp_agr import DpAgr
from dpfedbench.parts.clipping.rule import Constant
from dpfedbench.parts.noise.correlated import Correlated
from dpfedbench.parts.participation.cohorts import BallsAndBins, MinSeparation, OnePass
from dpsum.accounting.claims import Claim, one_release
from dpsum.sums import Sum


class DpAgrFtrl(DpAgr):
    """One private sum a round over disjoint blocks, with noise that is correlated over
    rounds.
    """

    name = "dp-agr-ftrl"
    title = "DP-AGR, correlated noise"
    claims = {
        "one-pass": Claim(
            epsilon=one_release,
            explanation=(
                "Denisov et al. 2022: one Gaussian release, of the encoder's largest"
                " column norm"
            ),
        )
    }
    # Adam divides by the noise that a round has before it is taken back; see
    # docs/findings/correlated-noise.md.
    defaults = {
        "clipping": {"kind": "constant"},
        "noise": {
            "kind": "correlated",
            "factorisation": {"kind": "optimised", "workload": "server"},
        },
        "server": {"rate": 1.0, "optimizer": {"kind": "sgd", "momentum": 0.9}},
    }

    participation: OnePass | MinSeparation | BallsAndBins = OnePass()  # type: ignore[assignment]  # some of the family
    clipping: Constant = Constant()
    noise: Correlated = Correlated()  # type: ignore[assignment]  # another of the family

    def server_sum(self) -> Sum:
        apart = self.participation.apart(self.clients.count)
        noise = self.noise.planned(self.participation.rounds, self.server, apart)
        return dataclasses.replace(super().server_sum(), noise=noise)
