"""DP-AGR with noise that is correlated over rounds.

Correlated noise needs neither sampling nor a secret. The rounds are those of DP-AGR
(one pass over blocks that an observer may know), but the server's noise in a round
cancels part of the noise of earlier rounds (`dpsum.correlated_noise`), since the model
follows the sum of all rounds and not each round separately. Each client is in one
round. All releases together are therefore one Gaussian release whose multiplier is z
over the encoder's largest column norm, which is scaled to 1. In several passes
(min-separation), the norm is that of all rounds of a client together. With
balls-and-bins the client's round is secret, and the part that columns do not share is
amplified (`dpsum.accounting`). The threshold is constant: noise of another scale would
not cancel.
"""

import dataclasses

from dpfedbench.papers.dp_fedmeta import DpAgr
from dpfedbench.parts.optimizers.optimizer import Sgd
from dpfedbench.parts.server.server_step import Step
from dpsum.accounting.claims import Claim, one_release
from dpsum.clipping import Constant
from dpsum.correlated_noise import Factorised
from dpsum.participation import BallsAndBins, MinSeparation, OnePass
from dpsum.sums import SumSpec


class DpAgrFtrl(DpAgr):
    """DP-AGR with noise that is correlated over rounds: one private sum in each round,
    over disjoint blocks.
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
    # Adam divides by the noise of a round before later rounds cancel it; see
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
    noise: Factorised = Factorised()  # type: ignore[assignment]  # another of the family
    server: Step = Step(optimizer=Sgd(momentum=0.9), rate=1.0)

    def sums(self) -> list[SumSpec]:
        (gradient_sum,) = super().sums()
        separation = self.participation.apart(self.clients.count)
        noise = self.noise.planned(self.participation.rounds, self.server, separation)
        return [dataclasses.replace(gradient_sum, noise=noise)]
