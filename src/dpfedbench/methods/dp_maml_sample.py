"""DP-MAML at sample level (Meta-Learning with Differential Privacy, Algorithm 2):
single examples, a trusted server.

For each task of a lot

1. the inner loop steps along the sum of its support examples' gradients, each clipped
   to C_inner, with noise N(0, z^2 C_inner^2 I);
2. the query examples' gradients at those weights go to the outer loop one by one;

the server clips each of all tasks' query gradients to C_outer, adds them up, adds N(0,
z^2 C_outer^2 I), divides by
|D^q| L and takes a step. First order only: a second-order gradient would carry the raw support set into every query
gradient past the inner loop's noise. Normalisation is within each record.

A record is a support or a query example, and everyone sees the releases of both kinds:
what holds is the worse of the two at one delta. The support releases tell in which
round a client took part, so no account may need that secret: participation is one-pass.
"""

import dataclasses

from dpfedbench.methods.dp_agr import DpAgr
from dpfedbench.parts.budget import WithinTask
from dpfedbench.parts.client_updates.maml import SUPPORT
from dpsum.accounting.claims import ONE_RELEASE, POISSON_MOMENTS
from dpsum.sums import Sum


class DpMamlSample(DpAgr):
    """Private sums within each task, and one over all query examples of the cohort."""

    name = "dp-maml-sample"
    title = "DP-MAML, sample level"
    paper = "dp-maml"
    claims = {"one-pass": POISSON_MOMENTS, "own-records": ONE_RELEASE}
    defaults = {
        "model": {"normalisation": "record"},
        "client_update": {"inner_steps": 1, "order": 1},
        "within_task": {
            "threshold": 0.5,
            "multiplier": 1.0,
            "epsilon": None,
            "delta": 1.0e-5,
            "profile": "holds",
        },
        "clipping": {"kind": "constant"},
        "budget": {"delta": 1.0e-5},
    }

    within_task: WithinTask = WithinTask()

    def own_sums(self) -> tuple[Sum, ...]:
        return (self.within_task.sum(SUPPORT, observer="everyone"),)

    def server_sum(self) -> Sum:
        return dataclasses.replace(super().server_sum(), unit="record")
