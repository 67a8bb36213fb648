"""Non-private MAML (Finn et al. 2017): the same rounds as DP-AGR without clipping and
noise, the ceiling.
"""

from dpfedbench.method import Method
from dpfedbench.parts.client_updates.maml import Maml
from dpfedbench.parts.participation.cohorts import Cohorts, OnePass
from dpfedbench.parts.server.server_step import Step
from dpsum.sums import Sum


class NonPrivateMaml(Method):
    """Each round: the cohort's MAML query gradients, summed as they are, and a step
    along their mean.
    """

    name = "maml"
    title = "Non-private MAML"
    paper = "dp-fedmeta"

    participation: Cohorts = OnePass()
    client_update: Maml = Maml()
    server: Step = Step()

    def server_sum(self) -> Sum:
        return Sum(name=self.client_update.sends, unit="client", observer="everyone")
