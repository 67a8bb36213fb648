"""DP-AGR with other noise: correlated over rounds, and by secure aggregation.

Correlated noise needs neither sampling nor a secret. The rounds are those of DP-AGR
(one pass over blocks that an observer may know), but the server's noise of a round
takes back part of what earlier rounds added (`dpsum.correlated_noise`), since a model
sees the sum of all rounds and not each by itself. Each client is in one round, so all
releases together are one Gaussian release of multiplier z over the encoder's largest
column norm, which is scaled to 1; in several passes (min-separation) it is the change
that all rounds of a client make together. With balls-and-bins its round is secret, and
what columns do not have in common is amplified (`dpsum.accounting`). The threshold is
constant: noise of another scale would not be taken back.

By secure aggregation a client is protected against the server itself, without noise
that drowns its signal. Nobody is trusted with a client's gradient. Each client clips
and rounds its own and adds a share of the noise, and the server sees nothing but the
sum of all messages modulo 2^b (`dpsum.secure`). So the server learns what DP-AGR tells
everyone who receives the model, and all that a client holds is protected against both,
each of its records too. DP-AGRLR and local Reptile protect records against the server
by noise on each client's own message, which is as large as the message itself; here it
is as large as one message in a sum of a whole cohort. The server knows who takes part,
so that blocks are known: one pass.
"""

import dataclasses

from dpfedbench.papers.dp_fedmeta import DpAgr
from dpsum.accounting.claims import Claim, one_release
from dpsum.clipping import Constant, PercentileOfReleases
from dpsum.correlated_noise import Factorised
from dpsum.participation import BallsAndBins, MinSeparation, OnePass
from dpsum.skellam_noise import Skellam
from dpsum.sums import SumSpec


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
    noise: Factorised = Factorised()  # type: ignore[assignment]  # another of the family

    def sums(self) -> list[SumSpec]:
        (gradient_sum,) = super().sums()
        separation = self.participation.apart(self.clients.count)
        noise = self.noise.planned(self.participation.rounds, self.server, separation)
        return [dataclasses.replace(gradient_sum, noise=noise)]


class DpAgrSecagg(DpAgr):
    """One private sum a round, which the server sees as secure aggregation shows it."""

    name = "dp-agr-secagg"
    title = "DP-AGR, secure aggregation"
    claims = {}
    defaults = {
        "clipping": {"kind": "constant"},
        "noise": {"kind": "skellam"},
        "budget": {"profile": "proven"},
    }

    participation: OnePass = OnePass()
    # A rule that released something beside the sum would need a sum of its own that the
    # server does not see.
    clipping: Constant | PercentileOfReleases = Constant()  # type: ignore[assignment]
    noise: Skellam = Skellam()  # type: ignore[assignment]  # another of the family

    def sums(self) -> list[SumSpec]:
        (gradient_sum,) = super().sums()
        return [dataclasses.replace(gradient_sum, observer="server")]
