"""DP-FedAvg (McMahan et al., Learning Differentially Private Recurrent Language Models,
2018): user-level privacy.

Each round the server clips the cohort's model differences to C in L2 norm over all
weights, sums them, adds N(0, z^2 C^2 I), and takes the sum / L as the gradient of a
step.
"""

import dataclasses

from dpfedbench.methods.over_clients import OverClients
from dpfedbench.parts.client_updates.model_difference import ModelDifference
from dpfedbench.parts.client_updates.proximal import Proximal
from dpfedbench.parts.clipping.rule import CohortRule, Constant
from dpsum.accounting.claims import POISSON_MOMENTS


class DpFedAvg(OverClients):
    """One private sum a round, over the cohort's model differences; of FedProx's steps,
    where they are `proximal`.
    """

    name = "dp-fedavg"
    title = "DP-FedAvg"
    paper = "dp-fedavg"
    claims = {
        "poisson": dataclasses.replace(
            POISSON_MOMENTS,
            status="proved",
            explanation=(
                "the paper's: moments accounting of Poisson sampling, by TensorFlow"
                " Privacy's orders"
            ),
        )
    }

    client_update: ModelDifference | Proximal = ModelDifference()
    clipping: CohortRule = Constant()
