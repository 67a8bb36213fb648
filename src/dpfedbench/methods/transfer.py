"""Pre-training: all images of the training classes told apart at once, and the body then adapted to each task.

DP-FedMeta (Section 6.3, "transfer learning") and DP-MAML (Section 6.5, "pre-training", after Donahue et al. 2014) set
it beside meta-learning. One holder has all images of the training classes as records, labelled by their place among
these classes. In each round it takes a Poisson lot, and a step of Adam along the mean gradient of the network with one
output for each training class. At the meta-test the last layer is replaced by a fresh one, at zero, and all of the
network is adapted to the task's support set. Normalisation is within each image, as it has to be for `dp-transfer`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dpfedbench.method import Method
from dpfedbench.parts.client_updates.local_steps import LocalSteps
from dpfedbench.parts.participation.poisson_lots import PoissonLots
from dpfedbench.parts.server.average import Average
from dpsum.sums import Sum

PRE_TRAINING: dict[str, Any] = {
    # The sizes of few-shot clients are not used; they stand here so that tasks that differ in them share a training.
    "clients": {
        "count": 1, "partition": "fragments", "fragments": 1, "examples_per_class": 2, "support_per_class": 1,
        "query_per_class": 1,
    },
    "model": {"normalisation": "record"},
    "client_update": {
        "kind": "local-steps", "inner_steps": 1, "inner_rate": 0.004, "optimizer": "adam", "keep_state": True,
    },
    "server": {"kind": "average"},
    "validation": {"every": 0},
    "evaluation": {"every": 0},
}  # fmt: skip


class Transfer(Method):
    """Each round: the mean gradient of a lot as it is, and a step of the holder's optimiser."""

    name: ClassVar[str] = "transfer"
    title: ClassVar[str] = "Transfer learning"
    paper: ClassVar[str] = "dp-fedmeta"
    pretrains: ClassVar[bool] = True
    defaults: ClassVar[dict[str, Any]] = PRE_TRAINING | {
        "participation": {"kind": "poisson-lots", "cohort": 100, "rounds": 150}
    }

    participation: PoissonLots = PoissonLots()
    client_update: LocalSteps = LocalSteps()
    server: Average = Average()

    def own_sums(self) -> tuple[Sum, ...]:
        return (Sum(name=self.client_update.sends, unit="record", observer="everyone"),)

    def server_sum(self) -> Sum:
        return Sum(name="model-mean", unit="record", observer="everyone")
